"""Outcomes: the counters add up to all that ended, and are shown."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from sharequeue.database import Database
from sharequeue.domain.errors import InvalidRecordState
from sharequeue.domain.figures import SharePartitionStatus
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, Lease, LeaseOutput, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from tests import single
from tests.integration.cli.test_offsets import Command, command

__all__ = ["command"]

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, GAP = AcknowledgeType.REJECT, AcknowledgeType.GAP
AT = SharePartition("g", "t", 0)


@pytest.fixture
def state(private_database: Database) -> State:
    """Give the state of a database of this test alone, with group g."""
    ensure_group(private_database, "g")
    return State(private_database)


def configure(database: Database, name: str, value: str) -> None:
    alter_group_configs(database, "g", {name: value})


def lease_and_acknowledge(state: State, count: int, **given: tuple[int, int]) -> None:
    """Lease so many records, and acknowledge runs of them by the kind's name."""
    lease = single.acquire(state, AT, "m", None, count)
    assert lease is not None
    assert lease.offsets.count == count
    single.acknowledge(
        state, lease, {AcknowledgeType[kind]: OffsetSet.of(run) for kind, run in given.items()}
    )


def close(state: State, records: int, *, dropped: bool = False) -> None:
    batch = state.dead_letters.open(AT, records)
    assert batch is not None
    assert state.dead_letters.close(batch, dropped=dropped) == records


def ended(status: SharePartitionStatus) -> int:
    return status.accepted + status.rejected + status.exhausted + status.gap


def test_they_add_up(state: State, private_database: Database) -> None:
    """A mixed history: acknowledgements of every type, moves by hand, a dead-letter topic set later, letters written
    and dropped, a last delivery that is not acknowledged, retention. At every step what ended, and what was lost, is
    all that SPSO has passed and all that is complete past it."""
    configure(private_database, "share.delivery.count.limit", "2")
    configure(private_database, "sharequeue.retry.backoff.ms", "0")
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 100, 100)

    def check(**expected: int) -> SharePartitionStatus:
        (status,) = state.figures.describe("g")
        assert {name: getattr(status, name) for name in expected} == expected
        assert ended(status) + status.lost_records == status.spso + status.delivery_complete_count
        counted = sum(row.records for row in state.figures.delivery_counts("g"))
        assert counted == ended(status)
        letters = [run for run in state.dead_letters.written("g") if not run.dropped]
        written = sum(run.offsets.count for run in letters)
        assert status.rejected + status.exhausted == written + status.no_dlq + status.dropped_letters
        return status

    check(accepted=0, rejected=0, exhausted=0, gap=0, no_dlq=0, dropped_letters=0)
    lease_and_acknowledge(state, 10, ACCEPT=(0, 5), REJECT=(5, 7), GAP=(7, 8), RELEASE=(8, 10))
    lease_and_acknowledge(state, 2, RELEASE=(8, 10))
    check(accepted=5, rejected=2, exhausted=2, gap=1, no_dlq=4)
    lease_and_acknowledge(state, 10, RELEASE=(10, 20))
    state.administration.force_dead_letter(AT, OffsetSet.of((10, 11)), execute=True)
    check(rejected=3, no_dlq=5)

    configure(private_database, "errors.deadletterqueue.topic.name", "dlq.t")
    lease_and_acknowledge(state, 9, ACCEPT=(11, 15), REJECT=(15, 17), RELEASE=(17, 19), GAP=(19, 20))
    check(accepted=9, gap=2, archiving=4, rejected=3, exhausted=2)
    close(state, 2)
    check(rejected=5, exhausted=2, archiving=2)
    close(state, 2, dropped=True)
    check(rejected=5, exhausted=4, no_dlq=5, dropped_letters=2)
    lease_and_acknowledge(state, 10, RELEASE=(20, 30))
    state.administration.force_dead_letter(AT, OffsetSet.of((20, 21)), execute=True)
    close(state, 1)
    check(rejected=6, exhausted=4, no_dlq=5)

    single.observe(state, AT, "id", 25, 100, 100)
    check(lost_records=4, spso=25)
    assert single.acquire(state, AT, "m", None, 1) is not None
    assert state.release_member("g", "m") == 1
    check(archiving=1, exhausted=4)
    close(state, 1)
    check(exhausted=5)
    configure(private_database, "errors.deadletterqueue.topic.name", "")
    lease_and_acknowledge(state, 4, REJECT=(26, 28), ACCEPT=(28, 30))
    check(accepted=11, rejected=8, exhausted=5, gap=2, no_dlq=7, dropped_letters=2, lost_records=4, spso=30)


def test_what_retention_takes_from_a_lease_is_lost_or_accepted(
    state: State, private_database: Database
) -> None:
    """Who read and wrote a record in time accepts it, with its output, though the log start has passed it: it is lost
    no longer. What has another outcome, or none, stays lost; the rest of the lease is as ever. A lock that lapsed
    keeps nothing."""
    configure(private_database, "sharequeue.retry.backoff.ms", "0")
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 100, 100)

    def check(accepted: int, lost: int, spso: int) -> None:
        (status,) = state.figures.describe("g")
        assert (status.accepted, status.lost_records, status.spso) == (accepted, lost, spso)
        assert ended(status) + status.lost_records == status.spso + status.delivery_complete_count
        assert state.figures.verify("g") == []

    def acquired() -> Lease:
        lease = single.acquire(state, AT, "m", None, 10)
        assert lease is not None
        return lease

    def output(lease: Lease) -> list[LeaseOutput]:
        return [LeaseOutput("files", f"lease={lease.lease_id}", 1)]

    partly = acquired()
    single.observe(state, AT, "id", 6, 100, 100)
    check(accepted=0, lost=6, spso=6)
    outcomes = {ACCEPT: OffsetSet.of((0, 3), (6, 9)), RELEASE: OffsetSet.of((3, 4), (9, 10))}
    outcomes |= {REJECT: OffsetSet.of((4, 5))}
    done = single.acknowledge(state, partly, outcomes, outputs=output(partly))
    assert (done.accepted, done.released, done.rejected) == (6, 1, 0)
    check(accepted=6, lost=3, spso=9)

    again = acquired()  # 9 for the second time
    assert again.offsets == OffsetSet.of((9, 19))
    single.observe(state, AT, "id", 30, 100, 100)
    check(accepted=6, lost=3 + 21, spso=30)
    assert single.acknowledge(state, again, {ACCEPT: again.offsets}, outputs=output(again)).accepted == 10
    check(accepted=16, lost=14, spso=30)
    assert [row.lease_id for row in state.outputs.counted("g", "files")] == [partly.lease_id, again.lease_id]
    assert [row.records for row in state.figures.delivery_counts("g") if row.delivery_count == 2] == [1]

    late = acquired()
    single.observe(state, AT, "id", 40, 100, 100)
    state.release_member("g", "m")
    with pytest.raises(InvalidRecordState, match="output"):
        single.acknowledge(state, late, {ACCEPT: late.offsets}, outputs=output(late))
    check(accepted=16, lost=24, spso=40)


def test_who_resets_keeps_what_has_been(private_database: Database) -> None:
    """A reset with an open batch: its records did not end, and the totals go on."""
    state = State(private_database)
    ensure_group(private_database, "g")
    alter_group_configs(private_database, "g", {"errors.deadletterqueue.topic.name": "dlq.t"})
    state.initialize(AT, "id", 0, 1)
    single.observe(state, AT, "id", 0, 100, 100)
    lease_and_acknowledge(state, 4, REJECT=(0, 4))
    close(state, 2)
    assert state.dead_letters.open(AT, 2) is not None
    single.alter_offsets(state, AT, "id", 0)
    lease_and_acknowledge(state, 4, REJECT=(0, 4))
    close(state, 4)
    (status,) = state.figures.describe("g")
    assert (status.rejected, status.no_dlq, status.dropped_letters) == (6, 0, 0)


def test_describe_shows_them(command: Command, group: str, topic: str, private_database: Database) -> None:
    """The same figures as a table and as JSON, the sum of the counters among them; what waits for its time; and that
    nobody is there to write the dead letters, or why they are held."""
    state, at = State(private_database), SharePartition(group, topic, 0)
    url = private_database.engine.url.render_as_string(hide_password=False)
    describe = ("groups", "describe", "--group", group, "--database-url", url)
    state.administration.reset_offsets(group, {(topic, 0): 0}, {topic: "id"}, execute=True)
    single.observe(state, at, "id", 0, 100, 100)
    lease = single.acquire(state, at, "m", None, 10)
    assert lease is not None
    single.acknowledge(
        state, lease, {ACCEPT: OffsetSet.of((0, 5)), REJECT: OffsetSet.of((5, 7)), GAP: OffsetSet.of((7, 8))}
    )
    later = state.now() + timedelta(days=365)
    single.acknowledge(state, lease, {RELEASE: OffsetSet.of((8, 10))}, not_before=later)
    (row,) = json.loads(command(*describe, "-o", "json")[1])
    figures = ("accepted", "rejected", "exhausted", "gap", "no_dlq", "dropped_letters", "waiting", "remark")
    assert [row[name] for name in figures] == [5, 2, 0, 1, 2, 0, 2, None]
    told = command(*describe)[1]
    heads = [line.split() for line in told.splitlines() if line.startswith("GROUP")]
    assert heads[0][:5] == ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    assert "WAITING" in heads[0]
    assert heads[1][3:8] == ["ACCEPTED", "REJECTED", "EXHAUSTED", "GAP", "NO-DLQ"]

    alter_group_configs(private_database, group, {"errors.deadletterqueue.topic.name": f"dlq.{topic}"})
    state.administration.force_dead_letter(at, OffsetSet.of((8, 9)), execute=True)
    (row,) = json.loads(command(*describe, "-o", "json")[1])
    assert "no service writes the dead letters" in row["remark"]
    assert f"sharequeue dlq write --group {group} --execute" in row["remark"]
    state.dead_letters.hold(at, "the topic takes none")
    (row,) = json.loads(command(*describe, "-o", "json")[1])
    assert row["remark"] == "dead letters are held: the topic takes none"
