"""Dead letters that the service writes by itself: each exactly once, beside others, and nobody waits for another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]
from sqlalchemy import event, text

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import Topics
from sharequeue.service.context import Service
from sharequeue.service.coordinator import Coordinator, dead_letter_turns
from sharequeue.service.coordinator.dead_letter_turns import DeadLetterTurns
from tests.fixtures.deadletters import GivenUp, alter_configs
from tests.waiting import running, wait_until

Make = Callable[..., GivenUp]


@pytest.fixture
def alone(given_up: Make, private_database: Database) -> Make:
    """Give what `given_up` gives, in a database of this test alone."""

    def make(**arguments: int) -> GivenUp:
        shared = given_up(**arguments)
        group = f"group-of-{shared.topic}"
        made = GivenUp(shared.settings, private_database, group, shared.topic, shared.dead_letter_topic)
        made.configure(
            errors_deadletterqueue_topic_name=made.dead_letter_topic,
            share_partition_max_record_locks="2000000",
        )
        return made

    return make


def archiving(case: GivenUp) -> int:
    return sum(status.archiving for status in case.state.figures.describe(case.group))


def is_written(case: GivenUp) -> bool:
    """Whether all of it is closed, and readers see it: a broker answers a commit before its partitions know of it."""
    return archiving(case) == 0 and len(case.letters()) >= sum(case.expected.values())


def turns(case: GivenUp, name: str = "replica") -> DeadLetterTurns:
    return DeadLetterTurns(case.settings, case.database, name)


def test_the_service_writes_and_nobody_waits_for_another(
    alone: Make, settings: Settings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no job at all, records that are rejected become letters, each once. A group whose topic takes none is held
    and told, delays nobody, and goes on by itself once the topic takes them."""
    monkeypatch.setattr(dead_letter_turns, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(dead_letter_turns, "FIRST_PAUSE_SECONDS", 0.5)
    monkeypatch.setattr(dead_letter_turns, "LONGEST_PAUSE_SECONDS", 0.5)
    well, ill = alone(partitions=3), alone()
    alter_configs(
        settings, ResourceType.TOPIC, ill.dead_letter_topic, errors_deadletterqueue_group_enable="false"
    )
    for case in (ill, well):
        case.produce(30, partitions=3 if case is well else 1)
        case.reject()
    with running(Coordinator(well.database, topics, dead_letters=settings)):
        wait_until(lambda: is_written(well))
        well.assert_each_exactly_once()
        wait_until(lambda: len(ill.state.dead_letters.held(ill.group)) == 1)
        assert archiving(ill) == 30
        well.produce(30, partitions=3)
        well.reject()
        wait_until(lambda: is_written(well))
        alter_configs(
            settings, ResourceType.TOPIC, ill.dead_letter_topic, errors_deadletterqueue_group_enable="true"
        )
        wait_until(lambda: is_written(ill))
    well.assert_each_exactly_once()
    ill.assert_each_exactly_once()
    assert ill.state.dead_letters.held() == []


def test_one_replica_at_a_time(alone: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another replica has under its lease is left to it; if that replica is dead, for the lease's time only."""
    monkeypatch.setattr(dead_letter_turns, "LEASE_SECONDS", 30.0)
    case = alone()
    case.produce(10)
    case.reject()
    source = SharePartition(case.group, case.topic, 0)
    dead = turns(case, "dead")
    assert dead.lease(source).take()
    assert turns(case).waiting() == [source]
    assert turns(case).write([source]) is None
    assert archiving(case) == 10
    case.database.rows(text("select sharequeue.set_clock_offset(interval '31 s')"))
    report = turns(case).write([source])
    assert report is not None
    assert report.written == 10
    case.assert_each_exactly_once()
    assert turns(case).waiting() == []
    assert case.database.rows(text("select * from sharequeue.service_leases")) == []


def test_whoever_loses_its_lease_writes_nothing_more(alone: Make) -> None:
    """A replica that was stopped and overtaken ends at its next step, and what it had written counts once."""
    case = alone()
    case.produce(20)
    case.reject()
    source = SharePartition(case.group, case.topic, 0)
    slow = turns(case, "slow")
    lease = slow.lease(source)
    assert lease.take()
    case.database.rows(text("select sharequeue.set_clock_offset(interval '2 min')"))
    other = turns(case, "other")
    taken = other.lease(source)
    assert taken.take()
    left = slow.write_under({source: lease})
    assert (left.written, [each.takeovers for each in left.partitions]) == (0, [1])
    taken.end()
    report = other.write([source])
    assert report is not None
    assert report.written == 20
    case.assert_each_exactly_once()


def test_a_turn_has_an_end(alone: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends with the batch at which it is, after its letters or its time; the next one goes on."""
    monkeypatch.setattr(dead_letter_turns, "BATCH_RECORDS", 10)
    case = alone()
    case.produce(50)
    case.reject()
    source = SharePartition(case.group, case.topic, 0)
    monkeypatch.setattr(dead_letter_turns, "TURN_RECORDS", 20)
    first = turns(case).write([source])
    assert first is not None
    assert first.written == 20
    monkeypatch.setattr(dead_letter_turns, "TURN_SECONDS", 0.0)
    second = turns(case).write([source])
    assert second is not None
    assert second.written == 10
    monkeypatch.undo()
    turns(case).write([source])
    case.assert_each_exactly_once()


def test_a_batch_is_two_calls_of_the_state_and_one_of_the_lease(
    alone: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened with the attempts at its records, and closed; the lease is renewed once a batch."""
    monkeypatch.setattr(dead_letter_turns, "BATCH_RECORDS", 10)
    case = alone()
    case.produce(30)
    case.reject()
    calls = Counter[str]()

    def count(*arguments: object) -> None:
        calls.update(re.findall(r"sharequeue\.(\w+)\(", str(arguments[2])))

    event.listen(case.database.engine, "before_cursor_execute", count)
    turns(case).write([SharePartition(case.group, case.topic, 0)])
    event.remove(case.database.engine, "before_cursor_execute", count)
    # One more to find that nothing is left, and two of the lease to begin.
    assert (calls["open_dead_letters"], calls["close_dead_letters"]) == (4, 3)
    assert calls["take_service_lease"] == 5
    case.assert_each_exactly_once()


def test_beside_a_writer_elsewhere(alone: Make, settings: Settings, topics: Topics) -> None:
    """A job's own writer works beside the service, may find nothing left, and still reports; each letter is one."""
    case = alone(partitions=2)
    with running(Coordinator(case.database, topics, dead_letters=settings)):
        for _ in range(4):
            case.produce(400, partitions=2)
            case.reject()
            report = case.writer(batch_records=50).write()
            assert report.held == ()
        wait_until(lambda: is_written(case))
        assert case.writer().write().written == 0
    case.assert_each_exactly_once()


def test_it_can_be_switched_off(settings: Settings, no_environment: pytest.MonkeyPatch) -> None:
    """By default the service writes them; a setting leaves it to others."""
    here = {"database_url": settings.database_url, "bootstrap_servers": settings.bootstrap_servers}
    for given, writes in ((None, True), ("true", True), ("false", False)):
        if given is not None:
            no_environment.setenv("SHAREQUEUE_SERVICE_WRITE_DEAD_LETTERS", given)
        service = Service(Settings.load(settings.home, **here))
        assert service.coordinator.writes_letters is writes
        service.close()
