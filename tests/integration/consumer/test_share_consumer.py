"""What a share consumer delivers, and what becomes of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
import sqlalchemy as sa
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from sharequeue import AcknowledgeType, Database, Settings, ShareConsumer, State
from sharequeue.consumer import fetcher
from sharequeue.domain.values import READ_COMMITTED, READ_UNCOMMITTED
from sharequeue.kafka.clients import client_config
from sharequeue.state.locks import Lock
from tests.fixtures.logs import delete_before
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import Work, poll_some, seen, wait_until, work_on
from tests.waiting import PATIENCE_S, pass_time


@pytest.fixture
def work(settings: Settings, database: Database, group: str) -> Iterator[Work]:
    """Give a group with a coordinator at work, in the shared database."""
    with work_on(settings, database, group) as work:
        yield work


@pytest.mark.rule("R-AQ-17")
def test_two_consumers_of_one_partition_get_every_record_once(work: Work, make_topic: MakeTopic) -> None:
    """Nothing is lost, nothing comes twice, no poll returns more than it may; values are those of their offsets."""
    topic = make_topic()
    work.produce(topic, 3000)
    found: Counter[int] = Counter()
    lock = threading.Lock()

    def consume() -> None:
        with work.consumer(topic, max_poll_records=50) as consumer:
            while sum(found.values()) < 3000:
                messages = consumer.poll(0.2)
                assert len(messages) <= 50
                with lock:
                    found.update(m.offset() for m in messages if m.value() == b"%d" % m.offset())  # type: ignore[misc,str-format]
            consumer.commit_sync()

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == Counter(range(3000))
    assert work.done()


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
@pytest.mark.rule("R-IL-4")
def test_offsets_without_a_record_are_gaps(work: Work, make_topic: MakeTopic, level: str) -> None:
    """Markers, and aborted transactions under read_committed: nobody sees them, and nothing waits for them."""
    topic = make_topic()
    work.configure(share_isolation_level=level)
    producer = Producer(client_config(work.settings, transactional_id=f"tx-{topic}"))
    producer.init_transactions(PATIENCE_S)
    for number, end in enumerate(("commit", "abort", "commit", "abort")):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, value=b"%d" % number)
        producer.flush()
        getattr(producer, f"{end}_transaction")()
    values = {b"0", b"2"} if level == "read_committed" else {b"0", b"1", b"2", b"3"}
    with work.consumer(topic) as consumer:
        messages = poll_some(consumer, 3 * len(values))
        assert Counter(message.value() for message in messages) == dict.fromkeys(values, 3)
        consumer.commit_sync()
        wait_until(lambda: not consumer.poll(0.05) and work.done(), otherwise=work.status)
    [row] = work.status()
    assert (row.spso, row.accepted, row.accepted + row.gap) == (16, 3 * len(values), 16)


@pytest.mark.parametrize("level", [READ_COMMITTED, READ_UNCOMMITTED])
@pytest.mark.rule("R-IL-1")
def test_records_are_read_at_the_level_of_their_lease(
    work: Work, make_topic: MakeTopic, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's level changes, and the consumer hears of it late: what it leases meanwhile comes as it was leased,
    without the records of an aborted transaction, or with those of an open one."""
    topic = make_topic()
    work.configure(share_isolation_level=READ_UNCOMMITTED if level == READ_COMMITTED else READ_COMMITTED)
    work.produce(topic, 1)
    given = {"transactional_id": f"tx-{topic}", "transaction_timeout_ms": 600_000}
    producer = Producer(client_config(work.settings, **given))
    producer.init_transactions(PATIENCE_S)
    with work.consumer(topic) as consumer:
        poll_some(consumer)
        consumer.commit_sync()
        # The heartbeats go on, and none tells of the new level.
        before = consumer._member.isolation_level
        deaf = property(lambda _: before, lambda *_: None)
        monkeypatch.setattr(type(consumer._member), "isolation_level", deaf, raising=False)
        work.configure(share_isolation_level=level)
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, value=b"open")
        assert producer.flush(PATIENCE_S) == 0
        if level == READ_COMMITTED:
            producer.abort_transaction(PATIENCE_S)
            work.produce(topic, 1)
        values = [b"0"] if level == READ_COMMITTED else [b"open"] * 3
        assert [message.value() for message in poll_some(consumer, len(values))] == values
        consumer.commit_sync()
        wait_until(lambda: not consumer.poll(0.05) and work.done(), otherwise=work.status)
    [row] = work.status()
    assert (row.accepted, row.gap) == (1 + len(values), 4 if level == READ_COMMITTED else 0)
    if level == READ_UNCOMMITTED:
        producer.abort_transaction(PATIENCE_S)


def test_an_exception_gives_back_what_is_in_hand(work: Work, make_topic: MakeTopic) -> None:
    """Leaving the block gives back the poll's records, and what was leased ahead as if it never had been."""
    topic = make_topic()
    work.produce(topic, 30)
    polled: list[int | None] = []

    def fail() -> None:
        with work.consumer(topic, max_poll_records=10) as consumer:
            for _ in range(2):
                polled.extend(message.offset() for message in poll_some(consumer))
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    assert polled == list(range(20))
    with work.consumer(topic, max_poll_records=500) as consumer:
        assert seen(poll_some(consumer, 20)) == [
            (offset, 2 if offset < 20 else 1) for offset in range(10, 30)
        ]


def test_records_come_from_what_the_producer_just_wrote(work: Work, make_topic: MakeTopic) -> None:
    """A consumer that waits at the log's end sees a new record without the service's watch."""
    topic = make_topic()
    work.produce(topic, 1)
    with work.consumer(topic) as consumer:
        poll_some(consumer)
        for _ in range(5):
            work.produce(topic, 1)
            assert len(consumer.poll(PATIENCE_S)) == 1


def test_polls_that_do_not_wait(work: Work, make_topic: MakeTopic) -> None:
    """poll(0) returns at once, and what it asked for comes with a later one."""
    topic = make_topic()
    work.produce(topic, 3)
    with work.consumer(topic) as consumer:
        found: list[tuple[int, int]] = []

        def all_came() -> bool:
            found.extend(seen(list(consumer.poll(0))))
            return len(found) >= 3

        wait_until(all_came)
        assert found == [(offset, 1) for offset in range(3)]


def test_the_log_may_lose_what_is_leased(work: Work, make_topic: MakeTopic) -> None:
    """DeleteRecords past what is to be read: the consumer goes on with what is left."""
    topic = make_topic()
    work.produce(topic, 20)
    with work.consumer(topic, max_poll_records=5) as consumer:
        assert len(poll_some(consumer)) == 5
        delete_before(work.settings, topic, 15)
        last = poll_some(consumer)
        while last[-1].offset() != 19:
            last += poll_some(consumer)
        consumer.commit_sync()
        wait_until(work.done, otherwise=work.status)


def test_a_broker_that_cannot_be_read_costs_no_delivery(
    work: Work, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is leased and cannot be read comes back as if it had not been leased."""
    topic = make_topic()
    work.produce(topic, 5)
    monkeypatch.setattr(fetcher, "BROKER_PATIENCE_S", 2.0)  # far less than a lock
    with work.consumer(topic, bootstrap_servers="127.0.0.1:1", log_level=0) as consumer:
        consumer._fetcher._ends._right_cluster = True  # as if it had gone away a moment ago
        wait_until(lambda: bool(work.status()))
        assert not consumer.poll(2)
        wait_until(lambda: work.status()[0].acquired == 0)
    with work.consumer(topic) as consumer:
        assert seen(poll_some(consumer, 5)) == [(offset, 1) for offset in range(5)]


def test_another_cluster_is_not_read(
    settings: Settings, private_database: Database, make_topic: MakeTopic, group: str
) -> None:
    """Its offsets would be acknowledged as gaps: a poll raises, and nothing is leased."""
    topic = make_topic()
    with work_on(settings, private_database, group) as work:
        work.produce(topic, 2)
        with work.consumer(topic) as consumer:
            wait_until(lambda: consumer.metrics()["assigned-partitions"] > 0)
            rebind = sa.text("select sharequeue.rebind_cluster(:cluster)")
            [bound] = private_database.rows(rebind, cluster="another")
            with pytest.raises(KafkaException, match="belongs to Kafka cluster"):
                consumer.poll()
            private_database.rows(rebind, cluster=bound["rebind_cluster"])
        assert work.status()[0].spso == work.status()[0].speo == 0


def test_a_topic_made_again_is_another(work: Work, make_topic: MakeTopic) -> None:
    """Under the same name: the records of the new one are not delivered as if they were those of the old."""
    topic = make_topic()
    work.produce(topic, 3)
    admin = AdminClient(client_config(work.settings))
    with work.consumer(topic) as consumer:
        assert len(poll_some(consumer, 3)) == 3
        consumer.commit_sync()
        admin.delete_topics([topic])[topic].result(PATIENCE_S)
        wait_until(lambda: topic not in admin.list_topics(timeout=PATIENCE_S).topics)
        make_topic(name=topic)
        work.produce(topic, 6)

        def nothing(seconds: float) -> bool:
            with suppress(KafkaException):  # which says so
                return not consumer.poll(seconds)
            return True

        wait_until(lambda: nothing(0.1) and work.status()[0].status == "topic_recreated")
        assert nothing(1)


def test_what_has_lapsed_is_not_handed_out(
    work: Work, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that waited for a poll until their lock lapsed come again, counted once more."""
    topic = make_topic()
    work.produce(topic, 20)
    with work.consumer(topic, max_poll_records=10) as consumer:
        assert len(poll_some(consumer)) == 10
        handover = consumer._handover
        handover.lease_ahead(10)
        handover.wake()
        wait_until(lambda: handover.queue.records == 10)
        for holding in handover.queue.leases():
            holding.lock = Lock(0.0, 0.0)
        monkeypatch.setattr(handover, "lease_ahead", lambda records: None)
        assert not consumer.poll(0.3)
    with work.consumer(topic, max_poll_records=10) as consumer:
        assert seen(poll_some(consumer)) == [(offset, 2) for offset in range(10, 20)]


def test_a_member_that_expired_joins_again(
    settings: Settings, private_database: Database, make_topic: MakeTopic, group: str
) -> None:
    """What it held is another delivery then, and its late acknowledgement is refused by Kafka's name."""
    topic = make_topic()
    with work_on(settings, private_database, group) as work:
        work.produce(topic, 3)
        with work.consumer(topic, explicit=True) as consumer:
            for message in poll_some(consumer, 3):
                consumer.acknowledge(message)
            leases = State(private_database).figures.leases
            held = {each.lease_id for each in leases(group)}
            pass_time(private_database, 50)
            # Not until nothing is held: the consumer may have leased the records again by the next look.
            wait_until(lambda: held.isdisjoint(each.lease_id for each in leases(group)))
            [error] = consumer.commit_sync().values()
            assert isinstance(error, KafkaException)
            assert error.args[0].name() == "INVALID_RECORD_STATE"
            assert seen(poll_some(consumer, 3)) == [(offset, 2) for offset in range(3)]


def test_rejects_releases_and_their_counts(work: Work, make_topic: MakeTopic) -> None:
    """A released record comes again until its deliveries are used up; a rejected one does not."""
    topic = make_topic()
    work.produce(topic, 2)
    work.configure(share_delivery_count_limit=3)
    with work.consumer(topic, explicit=True) as consumer:
        counts = []
        while not work.status() or work.status()[0].exhausted == 0:
            for message in consumer.poll(0.5):
                counts.append((message.offset(), message.delivery_count()))
                first = message.offset() == 0
                consumer.acknowledge(message, AcknowledgeType.REJECT if first else AcknowledgeType.RELEASE)
            consumer.commit_sync()
    assert counts == [(0, 1), (1, 1), (1, 2), (1, 3)]
    assert (work.status()[0].rejected, work.status()[0].exhausted) == (1, 1)


def test_members_share_partitions(work: Work, make_topic: MakeTopic) -> None:
    """Four partitions, two consumers, each gets its own; when one leaves the other gets all."""
    topic = make_topic(4)
    with work.consumer(topic) as one:
        with work.consumer(topic) as other:

            def shared() -> bool:
                for each in (one, other):
                    each._member.membership._wake.set()  # the next heartbeat now
                return [each.metrics()["assigned-partitions"] for each in (one, other)] == [2, 2]

            wait_until(shared)
            for partition in range(4):
                work.produce(topic, 5, partition)
            assert len(poll_some(one, 10)) == 10
            assert len(poll_some(other, 10)) == 10
            assert all(error is None for each in (one, other) for error in each.commit_sync().values())
        one._member.membership._wake.set()
        wait_until(lambda: one.metrics()["assigned-partitions"] == 4)


def test_a_consumer_out_of_use_stops(work: Work, make_topic: MakeTopic) -> None:
    """Without close its threads end with it; its records wait for their locks."""
    topic = make_topic()
    work.produce(topic, 1)
    consumer = work.consumer(topic)
    poll_some(consumer)
    member = consumer._member
    threads = (consumer._fetcher._thread, member.membership._thread)
    del consumer
    wait_until(lambda: not any(thread is not None and thread.is_alive() for thread in threads))
    assert State(work.database).figures.leases(work.group)


def test_closing_does_not_wait_for_a_database_that_is_away(settings: Settings, make_topic: MakeTopic) -> None:
    """close(timeout) returns in its time, whatever is out of reach."""
    consumer = ShareConsumer(
        {
            "group.id": "g",
            "bootstrap.servers": settings.bootstrap_servers,
            "sharequeue.database.url": "postgresql://x:y@10.255.255.1/none",
        }
    )
    consumer.subscribe(["t"])
    assert not consumer.poll(0.1)
    consumer.close(timeout=0.3)
