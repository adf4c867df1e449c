"""The journal: what operations write there and what it costs them, replay, and the figures that outlive its days."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from sharequeue.cli.journal import COMMANDS
from sharequeue.database import Database
from sharequeue.domain.errors import FencedStateEpoch, InvalidRecordState
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, Lease, SharePartition
from sharequeue.state import State
from sharequeue.state.journal import Journal
from tests import single
from tests.waiting import pass_time, set_clock

AT = SharePartition("g", "t", 0)


@pytest.fixture
def journal(private_database: Database) -> Journal:
    """Give the journal of a database in which share-partition t-0 of group g has 1,000,000 fresh records."""
    with private_database.transaction() as connection:
        connection.exec_driver_sql(
            "insert into sharequeue.share_groups (group_id) values ('g');"
            "insert into sharequeue.group_configs values ('g', 'share.partition.max.record.locks', '1000000'),"
            " ('g', 'errors.deadletterqueue.topic.name', 'dlq.t'), ('g', 'share.delivery.count.limit', '2')"
        )
    state = State(private_database)
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 1_000_000, 1_000_000)
    return Journal(private_database)


def fetch(state: State, held: Lease | None = None, request_id: UUID | None = None) -> Lease:
    """Accept what the last fetch gave, and acquire 500 records, in one transaction."""
    request_id = request_id or uuid4()
    with state.transaction() as (_, both):
        if held is not None:
            single.acknowledge(both, held, {AcknowledgeType.ACCEPT: held.offsets}, request_id=request_id)
        lease = single.acquire(both, AT, "m1", None, 500, redelivery="kafka", request_id=request_id)
    assert lease is not None
    return lease


def kinds(journal: Journal, after: int) -> list[str]:
    return [change.kind for change in journal.changes(AT, after)]


def test_every_column_of_the_state_is_journalled_or_known_not_to_be(private_database: Database) -> None:
    """A column added to a table of the state must get a place in the journal, or a reason here why it has none."""
    # What the broker said, and whose word of it is out of date.
    observations = {"log_start", "log_end", "last_stable_offset", "observed_at", "replaced_topic_ids"}
    # Numbers of rows of open_key_records, which are journalled.
    counted = {"open_keys", "open_key_records"}
    # Not kept_records: the log has the same records, so that nothing is lost without the rows.
    names = {"group_id", "topic", "partition"}
    rows = private_database.rows(
        sa.text(
            "select table_name, column_name from information_schema.columns where table_schema = 'sharequeue'"
            " and table_name in"
            " ('share_partitions', 'in_flight_batches', 'leases', 'open_key_records', 'journal')"
        )
    )
    columns: dict[str, set[str]] = {}
    for row in rows:
        columns.setdefault(row["table_name"], set()).add(row["column_name"])
    assert columns["share_partitions"] - columns["journal"] == observations | counted
    assert names <= columns["journal"]
    assert columns["in_flight_batches"] <= columns["journal"]
    assert columns["leases"] <= columns["journal"]
    # In `offsets` and `not_before`.
    assert columns["open_key_records"] - columns["journal"] == {"offset", "until"}


def test_the_journal_has_a_lease_with_holder_and_expiry_and_an_acknowledgement_with_cause_and_not_before(
    journal: Journal, private_database: Database
) -> None:
    """Acquired batches are journalled as state 1 with their lease; a release with its not-before, a rejection with
    its cause."""
    state = State(private_database)
    before = journal.snapshots(AT)[0].journal_id
    lease = single.acquire(state, AT, "m1", None, 10)
    assert lease is not None
    changes = {change.kind: change.values for change in journal.changes(AT, before)}
    batch = changes["batch"]
    assert (batch["first_offset"], batch["last_offset"], batch["state"], batch["delivery_count"]) == (
        0,
        9,
        1,
        1,
    )
    assert batch["lease_id"] == changes["lease"]["lease_id"] == lease.lease_id
    assert (changes["lease"]["member_id"], changes["lease"]["token"]) == ("m1", str(lease.token))
    assert datetime.fromisoformat(changes["lease"]["expires_at"]) == lease.expires_at
    later = state.now() + timedelta(hours=1)
    single.acknowledge(
        state,
        lease,
        {AcknowledgeType.RELEASE: OffsetSet.of((0, 5)), AcknowledgeType.REJECT: OffsetSet.of((5, 10))},
        not_before=later,
    )
    replayed = journal.replay(AT)
    assert replayed is not None
    assert replayed.leases == ()
    assert [(b.state, b.cause, b.offsets) for b in replayed.batches] == [
        (0, None, OffsetSet.of((0, 5))),
        (3, "rejected", OffsetSet.of((5, 10))),
    ]
    assert replayed.batches[0].not_before is not None
    assert replayed.batches[0].not_before >= later
    at_first = journal.replay(AT, until=journal.changes(AT, before)[-1].journal_id)
    assert at_first == replayed
    (snapshot,) = journal.snapshots(AT)
    granted = journal.replay(AT, snapshot.journal_id, until=_last(journal, "lease"))
    assert granted is not None
    assert [(held.lease_id, held.expires_at) for held in granted.leases] == [
        (lease.lease_id, lease.expires_at)
    ]


def _last(journal: Journal, kind: str) -> int:
    return next(change.journal_id for change in reversed(journal.changes(AT)) if change.kind == kind)


def test_an_acknowledgement_of_100_000_alternating_runs_writes_a_handful_of_rows(
    journal: Journal, private_database: Database
) -> None:
    """Sets of offsets are journalled whole: the rows of an acknowledgement do not grow with its runs."""
    state = State(private_database)
    lease = single.acquire(state, AT, "m1", None, 200_000)
    assert lease is not None
    before = journal.changes(AT, limit=1000)[-1].journal_id
    even = OffsetSet.from_offsets(range(0, 200_000, 2))
    single.acknowledge(
        state, lease, {AcknowledgeType.ACCEPT: even, AcknowledgeType.RELEASE: lease.offsets - even}
    )
    assert len(kinds(journal, before)) < 12
    assert journal.verify("g") == []
    again = single.acquire(state, AT, "m1", None, 1)
    assert again is not None
    # One run of 100,000 moves on: the difference is journalled, not the image of the set.
    sizes = private_database.rows(
        sa.text(
            "select kind, pg_column_size(offsets) as bytes from sharequeue.journal where journal_id > :before"
        ),
        before=_last(journal, "lease_gone"),
    )
    assert max(row["bytes"] or 0 for row in sizes) < 100
    assert journal.verify("g") == []


@pytest.mark.parametrize(
    "act",
    [
        "select sharequeue.set_clock_offset(interval '31 s')",
        "select sharequeue.pause('g', 'why')",
        "select sharequeue.release('g', 'm1')",
        "select sharequeue.alter_offsets('g', 't', 0, 'id', 7)",
        "select sharequeue.raise_state_epochs()",
        "select sharequeue.observe('g', 't', 0, 'id', 2000, 1000000, 1000000)",
        "select sharequeue.acquire('g', 't', 0, null, 'm2', null, 10)",
        "select sharequeue.take_snapshot(1)",
        "select sharequeue.extend_locks(interval '1 s')",
    ],
)
def test_a_fetch_repeated_after_a_lost_reply_returns_its_first_result_whatever_happened_since(
    journal: Journal, private_database: Database, act: str
) -> None:
    """The results are kept though the lease is gone, and replay stays exact through it all."""
    state, request_id = State(private_database), uuid4()
    before = fetch(state)
    first = fetch(state, before, request_id)
    assert fetch(state, before, request_id) == first
    second_id = uuid4()
    second = fetch(state, first, second_id)
    private_database.rows(sa.text(act))
    assert fetch(state, first, second_id) == second
    assert state.figures.verify("g") == []
    assert journal.verify("g", snapshots=1000) == []


def test_the_lapse_of_a_fetched_lease_is_a_fact_of_the_clock(
    journal: Journal, private_database: Database
) -> None:
    """An acknowledgement that comes after the lock has lapsed is refused, and the records come again with count 2."""
    state = State(private_database)
    held = fetch(state)
    set_clock(private_database, timedelta(seconds=31))
    with pytest.raises(InvalidRecordState):
        single.acknowledge(state, held, {AcknowledgeType.ACCEPT: held.offsets})
    again = fetch(state)
    assert [delivery.delivery_count for delivery in again.deliveries] == [2]
    assert again.offsets.first == held.offsets.first
    assert journal.verify("g") == []


@pytest.mark.rule("R-SS-2", "R-SS-4")
def test_a_stranger_a_stale_token_and_a_stale_epoch_are_refused(
    journal: Journal, private_database: Database
) -> None:
    """Nothing is accepted for another member, token or epoch, and nothing is journalled."""
    state = State(private_database)
    held = fetch(state)
    before = journal.changes(AT)[-1].journal_id
    for wrong, error in (
        (replace(held, member_id="m2"), InvalidRecordState),
        (replace(held, token=uuid4()), InvalidRecordState),
        (replace(held, state_epoch=7), FencedStateEpoch),
    ):
        with pytest.raises(error):
            single.acknowledge(state, wrong, {AcknowledgeType.ACCEPT: held.offsets})
    assert kinds(journal, before) == []
    assert state.figures.describe("g")[0].spso == held.offsets.first
    assert single.acknowledge(state, held, {AcknowledgeType.ACCEPT: held.offsets}).accepted == 500


def test_a_snapshot_is_taken_after_so_many_updates(journal: Journal, private_database: Database) -> None:
    """A share-partition whose journal has grown by the bound gets a snapshot at the next round; others do not."""
    state = State(private_database)
    held = fetch(state)
    for _ in range(30):
        held = fetch(state, held)
    for _ in range(40):
        assert single.acquire(state, AT, "m2", None, 10) is not None
    assert journal.keep(retention=timedelta(days=7), updates_per_snapshot=500).snapshots == 0
    assert journal.keep(retention=timedelta(days=7), updates_per_snapshot=30).snapshots == 1
    assert journal.keep(retention=timedelta(days=7), updates_per_snapshot=30).snapshots == 0
    assert len(journal.snapshots(AT)) == 2
    assert journal.verify("g", snapshots=2) == []


def test_old_days_are_dropped_once_nothing_leans_on_them_and_their_figures_stay(
    journal: Journal, private_database: Database
) -> None:
    """After the retention a day's partition is gone, replay goes on from a newer snapshot, and what the day saw is in
    the daily rollup: records, outcomes, SPSO."""
    state = State(private_database)
    held = fetch(state)
    for _ in range(4):
        held = fetch(state, held)
    state.release_member("g", "m1")
    for result in (AcknowledgeType.REJECT, AcknowledgeType.ACCEPT):
        lease = single.acquire(state, AT, "m1", None, 100)
        assert lease is not None
        single.acknowledge(state, lease, {result: lease.offsets})
    batch = state.dead_letters.open(AT, 1000)
    assert batch is not None
    state.dead_letters.close(batch)
    today = state.now().astimezone(UTC).date()
    assert today in [p.day for p in journal.partitions()]
    assert journal.days("g") == []
    pass_time(private_database, 86_400)
    assert journal.keep(retention=timedelta(days=7)).rolled_up[-1] == today
    (day,) = journal.days("g")
    assert (day.day, day.entered, day.accepted_first, day.leases) == (today, 2500, 2000, 7)
    assert (day.spso, day.speo, day.highest_delivery_count) == (2200, 2500, 2)
    assert private_database.rows(
        sa.text(
            "select outcome, delivery_count, records from sharequeue.journal_daily_outcomes order by outcome"
        )
    ) == [
        {"outcome": "accepted", "delivery_count": 2, "records": 100},
        {"outcome": "rejected", "delivery_count": 2, "records": 100},
    ]
    pass_time(private_database, 4 * 86_400)
    kept = journal.keep(retention=timedelta(days=3))
    assert kept.waiting is None
    assert today in kept.dropped
    assert today not in [p.day for p in journal.partitions()]
    assert journal.verify("g", snapshots=1000) == []
    assert journal.days("g") == [day]
    assert journal.replay(AT) is not None


def test_a_partition_that_somebody_reads_is_dropped_later(
    journal: Journal, private_database: Database
) -> None:
    """Dropping gives way to whoever holds the day's partition, says so, and succeeds at a later round."""
    set_clock(private_database, timedelta(days=9))
    with private_database.transaction() as reader:
        reader.execute(sa.text("select count(*) from sharequeue.journal"))
        kept = journal.keep(retention=timedelta(days=7))
        assert kept.dropped == ()
        assert kept.waiting is not None
    assert journal.keep(retention=timedelta(days=7)).dropped != ()
    assert journal.verify("g") == []


def test_maintenance_at_once_creates_and_drops_each_day_once(
    journal: Journal, private_database: Database
) -> None:
    """While one call creates or drops partitions, another one leaves them alone, and neither fails."""
    set_clock(private_database, timedelta(days=9))
    with private_database.transaction() as first:
        made = first.execute(sa.text("select sharequeue.make_journal_partitions(1)")).scalar_one()
        assert len(made) == 2
        assert private_database.rows(
            sa.text(
                "select sharequeue.make_journal_partitions(1) as made,"
                " sharequeue.drop_journal_partition(interval '7 days') as dropped"
            )
        ) == [{"made": [], "dropped": None}]
    kept = journal.keep(retention=timedelta(days=7), ahead=1)
    assert kept.made == ()
    assert kept.dropped != ()


def test_deleting_is_in_the_journal_by_name(journal: Journal, private_database: Database) -> None:
    """The journal says which share-partition went, after it is gone."""
    State(private_database).administration.delete_group("g")
    rows = private_database.rows(
        sa.text("select group_id, topic, partition from sharequeue.journal where kind = 'deleted'")
    )
    assert rows == [{"group_id": "g", "topic": "t", "partition": 0}]
    assert journal.verify() == []


def test_a_forged_row_is_found(journal: Journal, private_database: Database) -> None:
    """Verification fails where state was changed behind the journal's back."""
    single.acquire(State(private_database), AT, "m1", None, 10)
    for table, change in (
        ("leases", "expires_at = expires_at + interval '1 s'"),
        ("in_flight_batches", "last_offset = 8"),
        ("share_partitions", "spso = 1"),
    ):
        with private_database.transaction() as connection:
            # No trigger fires.
            connection.exec_driver_sql("set local session_replication_role = replica")
            connection.exec_driver_sql(f"update sharequeue.{table} set {change}")  # noqa: S608
        assert any(table in line for line in journal.verify("g"))


def test_the_command_shows_changes_and_days_and_fails_where_replay_differs(
    journal: Journal, private_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sharequeue journal` says what the module says, and `verify` exits with 1 for a forged state."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    (command,) = COMMANDS

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(command, arguments)

    fetch(State(private_database), fetch(State(private_database)))
    shown = json.loads(run("changes", "--group", "g", "--topic", "t:0", "-o", "json").output)
    assert [row["kind"] for row in shown] == kinds(journal, 0)
    assert run("changes", "--group", "g", "--topic", "t:9").exit_code != 0
    assert "0 days are older" in run("keep").output
    assert "took snapshots" in run("keep", "--execute", "--yes").output
    journal.roll_up(State(private_database).now().astimezone(UTC).date())
    (day,) = json.loads(run("days", "--group", "g", "-o", "json").output)
    assert (day["topic"], day["entered"], day["spso"]) == ("t", 1000, 500)
    assert run("verify").exit_code == 0
    with private_database.transaction() as connection:
        connection.exec_driver_sql("set local session_replication_role = replica")
        connection.exec_driver_sql("update sharequeue.share_partitions set spso = 501")
    assert run("verify").exit_code == 1
