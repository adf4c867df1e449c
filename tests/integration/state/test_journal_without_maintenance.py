"""Days on which no service kept the journal: work goes on, maintenance catches up, and no day is missing."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, timedelta

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from sharequeue.cli.journal import COMMANDS
from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgementBatch, AcknowledgeType, SharePartition
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.state import State
from sharequeue.state.journal import Journal
from tests import single
from tests.fixtures.stack import LOCK_BOUNDS
from tests.integration.state.state_calls import take
from tests.waiting import PATIENCE_S, pass_time, wait_for_locks

ACCEPT, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.RENEW
WEEK = timedelta(days=7)
DAY = 86_400.0


@pytest.fixture
def at_configs() -> Mapping[str, str | int]:
    """Enough records in flight for every test."""
    return {"share.partition.max.record.locks": 1000}


@pytest.fixture
def journal(state: State, at: SharePartition) -> Journal:
    """Give the journal of a day's beginning, with a share-partition of a thousand records."""
    return Journal(state.database)


def today(state: State) -> date:
    return state.now().astimezone(UTC).date()


def accept(state: State, at: SharePartition, records: int) -> None:
    lease = take(state, at, records)
    single.acknowledge(state, lease, {ACCEPT: lease.offsets})


def days_of_other(database: Database) -> list[date]:
    rows = database.rows(
        sa.text("select distinct cast(at at time zone 'UTC' as date) as day from sharequeue.journal_other")
    )
    return sorted(row["day"] for row in rows)


def test_no_day_without_a_service_is_missing(journal: Journal, state: State, at: SharePartition) -> None:
    """Every day has its own figures, however late maintenance counts it, and keeps them when its rows are gone."""
    first = today(state)
    for day in range(9):
        accept(state, at, day + 1)
        if day < 8:
            pass_time(state.database, DAY)
    kept = journal.keep(retention=timedelta(days=30))
    assert kept.waiting is None
    # The database may have been made on the day before.
    rolled_up = [day for day in kept.rolled_up if day >= first]
    assert rolled_up == [first + timedelta(days=day) for day in range(8)]
    days = {day.day: day for day in journal.days("g")}
    assert [days[first + timedelta(days=day)].accepted_first for day in range(8)] == list(range(1, 9))
    assert days[first + timedelta(days=4)].entered == 5
    assert journal.days_with_figures("g") == sorted(days)
    # The ninth day is still going on; it is counted the day after, from the partition for all other times.
    pass_time(state.database, DAY)
    journal.keep(retention=WEEK)
    days = {day.day: day for day in journal.days("g")}
    assert days[first + timedelta(days=8)].accepted_first == 9
    pass_time(state.database, 20 * DAY)
    assert journal.keep(retention=WEEK).waiting is None
    assert days_of_other(state.database) == []
    assert {day.day: day for day in journal.days("g") if day.day in days} == days
    assert journal.verify("g", snapshots=1000) == []


def test_maintenance_catches_up_beside_ordinary_work(
    journal: Journal, state: State, at: SharePartition
) -> None:
    """After days without maintenance no call fails, of work or of maintenance, and tomorrow has a partition."""
    pass_time(state.database, 5 * DAY)
    stop = threading.Event()

    def work(member: str) -> int:
        done = 0
        while not stop.is_set():
            lease = single.acquire(state, at, member, None, 1)
            if lease is not None:
                single.acknowledge(state, lease, {AcknowledgeType.RELEASE: lease.offsets})
                done += 1
        return done

    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(work, f"m{number}") for number in range(3)]
        try:
            for _ in range(12):
                journal.keep(retention=WEEK)
        finally:
            stop.set()
        assert all(worker.result(PATIENCE_S) > 0 for worker in workers)
    assert days_of_other(state.database)[-1] == today(state)
    assert journal.keep(retention=WEEK).waiting is None
    assert today(state) + timedelta(days=1) in [each.day for each in journal.partitions()]
    assert journal.verify("g") == []
    # From the next day on, rows are in the partitions again.
    pass_time(state.database, DAY)
    accept(state, at, 1)
    assert today(state) not in days_of_other(state.database)


def test_a_call_in_flight_while_today_gets_its_partition(
    journal: Journal, state: State, at: SharePartition
) -> None:
    """A call that waits for the new partition of its own day writes into it; none fails because of it."""
    pass_time(state.database, 5 * DAY)
    with ThreadPoolExecutor(1) as pool:
        with state.database.transaction() as maintenance:
            made = maintenance.execute(sa.text("select sharequeue.make_journal_partitions(0)")).scalar_one()
            assert made == [today(state)]
            call = pool.submit(take, state, at)
            wait_for_locks(state.database)
        assert call.result(PATIENCE_S).offsets.first == 0
    assert days_of_other(state.database) == []
    assert journal.verify("g") == []


def test_a_call_in_flight_before_today_gets_its_partition(
    journal: Journal, state: State, at: SharePartition
) -> None:
    """A transaction that has written rows of today is not disturbed: today stays, and later days follow."""
    pass_time(state.database, 5 * DAY)
    with state.transaction() as (_, open_):
        assert single.acquire(open_, at, "m", None, 1) is not None
        kept = journal.keep(retention=timedelta(days=4))
        # The other steps of the round do not wait for this one.
        assert kept.waiting is not None
        assert (kept.made, len(kept.rolled_up)) == ((), 3)
    kept = journal.keep(retention=WEEK)
    assert kept.made == tuple(today(state) + timedelta(days=ahead) for ahead in (1, 2))
    assert days_of_other(state.database) == [today(state)]


def test_a_day_counts_the_leases_that_it_granted(journal: Journal, state: State, at: SharePartition) -> None:
    """Neither a renewal on a later day nor a snapshot is another lease, nor is a part that was renewed."""
    state.administration.extend_locks(timedelta(0))
    lease = take(state, at)
    single.take_snapshot(state, at)
    first = today(state)
    state.administration.extend_locks(timedelta(days=2))
    pass_time(state.database, DAY)
    journal.keep(retention=WEEK)
    single.renew(state, lease)
    state.fetches.acknowledge_batches(at, "m", [AcknowledgementBatch.of(3, 4, RENEW)])
    take(state, at)
    single.take_snapshot(state, at)
    journal.roll_up(first)
    journal.roll_up(today(state))
    assert [(day.day, day.leases) for day in journal.days("g")] == [(first, 1), (today(state), 1)]


def test_lost_and_skipped_records_did_not_enter(journal: Journal, state: State, at: SharePartition) -> None:
    """Only records that came into flight count as entered: not those that retention or a reset passed over."""
    lease = take(state, at, 10)
    single.observe(state, at, "id", 20, 1000, 1000)
    # The holder accepts what retention had counted as lost, so the number falls; then retention removes more.
    single.acknowledge(state, lease, {ACCEPT: OffsetSet.of((0, 10))})
    single.observe(state, at, "id", 25, 1000, 1000)
    single.alter_offsets(state, at, "id", 500)
    accept(state, at, 7)
    journal.roll_up(today(state))
    (day,) = journal.days("g")
    assert (day.entered, day.lost_records, day.accepted_first) == (17, 15, 17)


def test_the_command_keeps_the_journal_as_long_as_the_service_does(
    journal: Journal, state: State, at: SharePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`journal keep` takes the retention of the service, and without --execute counts what would go."""
    configs = {**LOCK_BOUNDS, "journal.retention.minutes": str(30 * 24 * 60)}
    publish_service_configs(state.database, ServiceConfigs.of(configs))
    monkeypatch.setenv(
        "SHAREQUEUE_DATABASE_URL", state.database.engine.url.render_as_string(hide_password=False)
    )
    (command,) = COMMANDS
    first = today(state)
    accept(state, at, 3)
    (rows,) = state.database.rows(sa.text("select count(*) as rows from sharequeue.journal"))
    pass_time(state.database, 23 * DAY)
    accept(state, at, 3)
    runner = CliRunner()
    assert json.loads(runner.invoke(command, ["keep", "-o", "json"]).output) == []
    assert "dropped" not in runner.invoke(command, ["keep", "--execute", "--yes"]).output
    assert first in [each.day for each in journal.partitions()]
    would = json.loads(runner.invoke(command, ["keep", "--retention-days", "7", "-o", "json"]).output)
    (oldest,) = (each for each in would if each["day"] == str(first))
    assert (oldest["act"], oldest["rows"]) == ("would drop", rows["rows"])
    assert "dropped" in runner.invoke(command, ["keep", "--retention-days", "7", "--execute", "--yes"]).output
