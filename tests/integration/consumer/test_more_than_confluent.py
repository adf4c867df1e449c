"""What this consumer does that confluent's does not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import IllegalStateException, KafkaError, Message
from confluent_kafka.serialization import StringDeserializer

from sharequeue import (
    AcknowledgeType,
    Database,
    DeserializingShareConsumer,
    Settings,
    SharePartition,
    State,
    WakeupException,
)
from sharequeue.deadletters.attempts import read_errors
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import (
    Work,
    let_locks_lapse,
    poll_some,
    seen,
    wait_until,
    work_on,
)
from tests.waiting import PATIENCE_S, pass_time

RENEW, RELEASE, REJECT = AcknowledgeType.RENEW, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@pytest.fixture
def work(settings: Settings, database: Database, group: str) -> Iterator[Work]:
    """Give a group with a coordinator at work, in the shared database."""
    with work_on(settings, database, group) as work:
        yield work


def test_wakeup_ends_a_poll_and_loses_nothing(work: Work, make_topic: MakeTopic) -> None:
    """From another thread at once; before a poll, with that one; what comes then is there in the next."""
    topic = make_topic()
    with work.consumer(topic) as consumer:
        threading.Timer(0.2, consumer.wakeup).start()
        with pytest.raises(WakeupException):
            consumer.poll()
        work.produce(topic, 2)
        consumer.wakeup()
        with pytest.raises(WakeupException):
            consumer.poll(PATIENCE_S)
        assert len(poll_some(consumer, 2)) == 2


def test_a_renewed_record_comes_again_with_its_lock(
    settings: Settings, private_database: Database, make_topic: MakeTopic, group: str
) -> None:
    """RENEW keeps the lock for another full duration, and the count; the others of the poll are not kept."""
    topic = make_topic()
    with work_on(settings, private_database, group) as work:
        work.produce(topic, 3)
        with work.consumer(topic, explicit=True) as consumer:
            first, second, third = poll_some(consumer, 3)
            assert 5 < consumer.lock_remaining(first) <= 30
            for _ in range(3):
                pass_time(private_database, 12)  # together more than the lock, and less than the session
                consumer.acknowledge(first, RENEW)
                if second is not None:
                    consumer.acknowledge(second)
                    consumer.acknowledge(third, RENEW)
                    second = None  # type: ignore[assignment]
                else:
                    consumer.acknowledge(third, RENEW)
                assert all(error is None for error in consumer.commit_sync().values())
                with pytest.raises(IllegalStateException):
                    consumer.acknowledge(first)
                first, third = poll_some(consumer, 2)
                assert seen([first, third]) == [(0, 1), (2, 1)]
            consumer.acknowledge(first)
            consumer.acknowledge(third)
            assert all(error is None for error in consumer.commit_sync().values())
        wait_until(work.done)


def test_a_renewal_may_be_refused(
    settings: Settings, private_database: Database, make_topic: MakeTopic, group: str
) -> None:
    """Where the group forbids it: the commit says so, and the record comes back with its next delivery. So do others
    of its partition that were acknowledged with it: what is reported refused was not done."""
    topic = make_topic()
    with work_on(settings, private_database, group, share_renew_acknowledge_enable=False) as work:
        work.produce(topic, 2)
        with work.consumer(topic, explicit=True) as consumer:
            first, second = poll_some(consumer, 2)
            consumer.acknowledge(first)
            consumer.acknowledge(second, RENEW)
            [error] = consumer.commit_sync().values()
            assert error is not None
            assert error.args[0].name() == "INVALID_RECORD_STATE"
            let_locks_lapse(work)
            assert seen(poll_some(consumer, 2)) == [(0, 2), (1, 2)]


@pytest.mark.parametrize("other", [False, True])
def test_what_was_leased_ahead_is_given_back_with_the_subscription(
    other: bool, settings: Settings, private_database: Database, make_topic: MakeTopic, group: str
) -> None:
    """Also the rest of a lease of which some records were polled: others get it at once, with its delivery."""
    topic, another = make_topic(), make_topic()
    with work_on(settings, private_database, group) as work:
        work.produce(topic, 40)
        with work.consumer(topic, max_poll_records=2) as first, work.consumer(topic) as second:
            polled = poll_some(first, 2)
            first.commit_sync()
            if other:
                first.subscribe([another])
            else:
                first.unsubscribe()
            rest = poll_some(second, 40 - len(polled))
            assert sorted(seen(rest)) == [(offset, 1) for offset in range(len(polled), 40)]
            second.commit_sync()
        wait_until(work.done)


def test_a_released_record_may_wait(
    settings: Settings, private_database: Database, make_topic: MakeTopic, group: str
) -> None:
    """With a delay it is not delivered before its time; others that were released are."""
    topic = make_topic()
    with work_on(settings, private_database, group) as work:
        work.produce(topic, 2)
        with work.consumer(topic, explicit=True) as consumer:
            for message in poll_some(consumer, 2):
                consumer.acknowledge(message, RELEASE, delay=30 if message.offset() == 0 else None)
            consumer.commit_sync()
            [message] = poll_some(consumer)
            assert seen([message]) == [(1, 2)]
            consumer.acknowledge(message)
            assert not consumer.poll(0.3)
            pass_time(private_database, 31)
            assert seen(poll_some(consumer)) == [(0, 2)]
            with pytest.raises(ValueError, match="expected 0 to"):
                consumer.acknowledge(message, RELEASE, delay=-1)
            with pytest.raises(TypeError, match="must be real number, not str"):
                consumer.acknowledge(message, RELEASE, delay="20")  # type: ignore[arg-type]
            for kind in (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.RENEW):
                with pytest.raises(ValueError, match="a delay was given"):
                    consumer.acknowledge(message, kind, delay=20)
            with pytest.raises(ValueError, match="an error was given"):
                consumer.acknowledge(message, error="wrong")


@pytest.mark.usefixtures("patient_failures")
def test_the_error_is_kept_for_the_dead_letter(work: Work, make_topic: MakeTopic, tmp_path: Path) -> None:
    """The writer of dead letters finds class and message of what each record failed with."""
    topic = make_topic()
    work.produce(topic, 3)
    work.configure(errors_deadletterqueue_topic_name=f"dlq.{topic}")
    home = {"sharequeue_home": str(tmp_path), "max_poll_records": 2}
    with work.consumer(topic, explicit=True, **home) as consumer:
        done = 0
        while done < 3:
            for message in consumer.poll(0.5):
                done += 1
                consumer.acknowledge(message, REJECT, error=ValueError(f"no {message.offset()}"))
        assert all(error is None for error in consumer.commit_sync().values())
    state = State(work.database)
    found: dict[int, str] = {}
    at = SharePartition(work.group, topic, 0)
    batch = state.dead_letters.open(at, 100)
    assert batch is not None
    for attempt in batch.attempts:
        assert attempt.exceptions is not None
        table = read_errors(attempt.exceptions)
        assert table is not None
        found.update(zip(table["offset"].to_pylist(), table["error"].to_pylist(), strict=True))
    assert found == {offset: f"ValueError: no {offset}" for offset in range(3)}


@pytest.mark.rule("R-IL-5")
def test_an_undecodable_record_is_released(work: Work, make_topic: MakeTopic) -> None:
    """In implicit mode too: it comes again until its deliveries are used up; in explicit mode it may be rejected."""
    topic = make_topic()
    work.produce(topic, 3)
    work.configure(share_delivery_count_limit=2)

    def decode(value: bytes | None, _: object) -> str:
        if value == b"1":
            raise ValueError("not mine")
        return str(value)

    config = work.config(key_deserializer=StringDeserializer(), value_deserializer=decode)
    counts = []
    with DeserializingShareConsumer(config) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_S
        while not work.done() and time.monotonic() < deadline:
            for message in consumer.poll(0.2):
                error = message.error()
                counts.append(
                    (message.value(), message.delivery_count(), None if error is None else error.code())
                )
    wrong = KafkaError._VALUE_DESERIALIZATION
    assert counts == [("b'0'", 1, None), (b"1", 1, wrong), ("b'2'", 1, None), (b"1", 2, wrong)]
    [row] = work.status()
    assert (row.accepted, row.exhausted) == (2, 1)


def test_figures_and_id(work: Work, make_topic: MakeTopic) -> None:
    """metrics() counts what was read and sent; client_instance_id() is the member's id in the group."""
    topic = make_topic()
    work.produce(topic, 4)
    with work.consumer(topic) as consumer:
        poll_some(consumer, 4)
        [lease] = State(work.database).figures.leases(work.group)
        assert consumer.client_instance_id() == lease.member_id
        consumer.commit_sync()
        metrics = consumer.metrics()
    assert (metrics["records-consumed-total"], metrics["bytes-consumed-total"]) == (4, 4)
    assert metrics["acknowledgements-send-total"] == metrics["assigned-partitions"] == 1
    assert metrics["heartbeat-total"] > 0


def test_a_poll_waits_for_fetch_min_bytes(work: Work, make_topic: MakeTopic) -> None:
    """It returns with so many bytes, or after fetch.max.wait.ms or its own time-out with what there is."""
    topic = make_topic()
    work.produce(topic, 1)
    with work.consumer(topic, fetch_min_bytes=5, fetch_max_wait_ms=60_000) as consumer:
        wait_until(lambda: consumer.metrics()["assigned-partitions"] > 0)
        found: Sequence[Message] = []
        while not found:  # on a busy machine the record may come later than the first time-out
            began = time.monotonic()
            found = list(consumer.poll(1))
            assert time.monotonic() - began >= 1
        assert len(found) == 1
        work.produce(topic, 9)
        assert len(consumer.poll(PATIENCE_S)) >= 5
    with work.consumer(topic, fetch_min_bytes=500, fetch_max_wait_ms=100) as consumer:
        assert poll_some(consumer)


def test_polls_in_other_threads(work: Work, make_topic: MakeTopic) -> None:
    """One call at a time, each in another thread, as in a program of asyncio."""
    topic = make_topic()
    work.produce(topic, 3)

    async def program() -> list[tuple[int, int]]:
        with work.consumer(topic, explicit=True) as consumer:
            found: list[Message] = []
            while len(found) < 3:
                for message in await asyncio.to_thread(consumer.poll, 0.5):
                    found.append(message)
                    consumer.acknowledge(message)
            assert list((await asyncio.to_thread(consumer.commit_sync)).values()) == [None]
            return seen(found)

    assert asyncio.run(program()) == [(offset, 1) for offset in range(3)]
    wait_until(work.done)


def test_a_program_that_does_not_poll_leaves(work: Work, make_topic: MakeTopic) -> None:
    """After max.poll.interval.ms what it holds comes to the others; it joins again when it polls."""
    topic = make_topic()
    work.produce(topic, 2)
    with work.consumer(topic, max_poll_interval_ms=3000) as slow, work.consumer(topic) as other:
        poll_some(slow, 2)
        assert seen(poll_some(other, 2)) == [(0, 2), (1, 2)]
        [error] = slow.commit_sync().values()
        assert error is not None
        other.commit_sync()
        slow.poll(0.1)
        wait_until(lambda: slow._member.membership.joined)
