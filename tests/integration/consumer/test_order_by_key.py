"""A consumer of a group that is ordered by key: what its polls return, in which order, with which delivery counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sharequeue import AcknowledgeType, Database, Settings, ShareConsumer
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import Work, poll_some, seen, wait_until, work_on
from tests.waiting import pass_time

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, RENEW = AcknowledgeType.REJECT, AcknowledgeType.RENEW
DELAY_S = 10
"""Of released records. The clock is moved past it several times within a session."""


@pytest.fixture
def work(settings: Settings, private_database: Database, standing_clock: None, group: str) -> Iterator[Work]:
    """Give a group that is ordered by key, with a coordinator at work, in a database whose clock the test moves."""
    at_once = {"share_assignment_interval_ms": 0}
    with work_on(settings, private_database, group, sharequeue_order="key", **at_once) as work:
        yield work


def handle(consumer: ShareConsumer, records: int, **kinds: AcknowledgeType) -> list[tuple[int, int]]:
    """Poll and acknowledge one record after the other; return offset and delivery count of each.

    `kinds` has the acknowledgements of the first deliveries of some offsets, as `_3=RELEASE`; all else is accepted.
    """
    handled: list[tuple[int, int]] = []
    while len(handled) < records:
        for message in poll_some(consumer):
            kind = kinds.pop(f"_{message.offset()}", ACCEPT)
            consumer.acknowledge(message, kind, delay=DELAY_S if kind == RELEASE else None)
            if kind != RENEW:
                handled += seen([message])
        assert all(error is None for error in consumer.commit_sync().values())
    return handled


def test_only_the_key_of_a_released_record_waits(work: Work, make_topic: MakeTopic) -> None:
    """Also for what is produced meanwhile, and without a delivery; the others go on, null keys among themselves."""
    topic = make_topic()
    work.produce_keys(topic, b"a", b"b", b"a", None, b"b", b"a", None)
    with work.consumer(topic, explicit=True) as consumer:
        assert handle(consumer, 5, _0=RELEASE, _3=REJECT) == [(0, 1), (1, 1), (3, 1), (6, 1), (4, 1)]
        work.produce_keys(topic, b"a", b"b")
        assert handle(consumer, 1) == [(8, 1)]
        assert not consumer.poll(0.3)
        pass_time(work.database, DELAY_S + 1)
        assert handle(consumer, 4) == [(0, 2), (2, 1), (5, 1), (7, 1)]
    wait_until(work.done)


def test_a_rejected_record_lets_its_key_go_on(work: Work, make_topic: MakeTopic) -> None:
    """And so does one whose deliveries are used up. Without a dead-letter topic both do at once."""
    topic = make_topic()
    work.configure(share_delivery_count_limit=2)
    work.produce_keys(topic, b"a", b"a", b"b", b"b", b"a")
    with work.consumer(topic, explicit=True) as consumer:
        assert handle(consumer, 2, _0=REJECT, _2=RELEASE) == [(0, 1), (2, 1)]
        assert handle(consumer, 2) == [(1, 1), (4, 1)]
        pass_time(work.database, DELAY_S + 1)
        assert handle(consumer, 2, _2=RELEASE) == [(2, 2), (3, 1)]
    wait_until(work.done)


def test_the_next_member_continues_the_key(work: Work, make_topic: MakeTopic) -> None:
    """After a close with a record in hand, and after a death: the record comes first, then the others of its key."""
    topic = make_topic()
    work.produce_keys(topic, b"a", b"a", None, b"a")
    with work.consumer(topic) as closed:
        assert seen(poll_some(closed, 2)) == [(0, 1), (2, 1)]
    killed = work.consumer(topic)
    assert seen(poll_some(killed, 2)) == [(0, 2), (2, 2)]
    killed._abandon()
    pass_time(work.database, 100)  # the lock of the dead member lapses, and its session ends
    with work.consumer(topic, explicit=True) as consumer:
        handled = handle(consumer, 4)
        assert sorted(handled) == [(0, 3), (1, 2), (2, 3), (3, 2)]
        assert [offset for offset, _ in handled if offset != 2] == [0, 1, 3]
    wait_until(work.done)


def test_a_second_member_joins_while_a_key_is_held(work: Work, make_topic: MakeTopic) -> None:
    """Neither of them gets a later record of the key; the one that stays gets them in their order."""
    topic = make_topic(1)
    work.produce_keys(topic, b"a", b"a", b"b")
    with work.consumer(topic, explicit=True) as first:
        assert handle(first, 2, _0=RELEASE) == [(0, 1), (2, 1)]
        with work.consumer(topic, explicit=True) as second:
            wait_until(lambda: bool(second.poll(0)) or second.metrics()["assigned-partitions"] == 1)
            work.produce_keys(topic, b"a")
            assert [*first.poll(0.2), *second.poll(0.2)] == []
            first.close()
            pass_time(work.database, DELAY_S + 1)
            assert handle(second, 3) == [(0, 2), (1, 1), (3, 1)]
    wait_until(work.done)


def test_a_renewed_record_keeps_its_key(work: Work, make_topic: MakeTopic) -> None:
    """It comes again with its count before the next one of its key."""
    topic = make_topic()
    work.produce_keys(topic, b"a", b"a", b"b")
    with work.consumer(topic, explicit=True) as consumer:
        assert handle(consumer, 3, _0=RENEW) == [(2, 1), (0, 1), (1, 1)]
    wait_until(work.done)


def test_order_is_switched_on_and_off(work: Work, make_topic: MakeTopic) -> None:
    """It counts from the next lease on; what was held is delivered when it is off."""
    topic = make_topic()
    work.configure(sharequeue_order="none")
    work.produce_keys(topic, b"a", b"a")
    with work.consumer(topic, explicit=True) as consumer:
        both = poll_some(consumer, 2)
        work.configure(sharequeue_order="key")
        work.produce_keys(topic, b"a", b"b")
        for message in both:
            if message.offset() == 0:
                consumer.acknowledge(message, RELEASE, delay=DELAY_S)
            else:
                consumer.acknowledge(message)
        consumer.commit_sync()
        # The lease was not ordered, so the key of the released record is not known: everything behind it waits.
        assert not consumer.poll(0.3)
        pass_time(work.database, DELAY_S + 1)
        assert handle(consumer, 2, _0=RELEASE) == [(0, 2), (3, 1)]
        work.configure(sharequeue_order="none")
        assert handle(consumer, 1) == [(2, 1)]
        pass_time(work.database, DELAY_S + 1)
        assert handle(consumer, 1) == [(0, 3)]
    wait_until(work.done)


def test_a_key_that_never_succeeds(work: Work, make_topic: MakeTopic) -> None:
    """Only its records are left, far behind the others, and none but the first has lost a delivery."""
    topic = make_topic()
    bad = range(0, 500, 50)
    keys = [b"bad" if offset in bad else (None, b"%d" % offset)[offset % 2] for offset in range(500)]
    work.produce_keys(topic, *keys)
    with work.consumer(topic, explicit=True) as consumer:
        handled = dict(handle(consumer, 491, _0=RELEASE))
        assert set(handled) == {*range(500)} - {*bad[1:]}
        assert [row.lag for row in work.status() if row.partition == 0] == [10]
        for attempt in (2, 3):
            pass_time(work.database, DELAY_S + 1)
            assert handle(consumer, 1, _0=RELEASE) == [(0, attempt)]
            assert not consumer.poll(0.1)
        pass_time(work.database, DELAY_S + 1)
        assert handle(consumer, 10) == [(0, 4), *((offset, 1) for offset in bad[1:])]
    wait_until(work.done)


def test_a_key_of_two_topics_is_two_keys(work: Work, make_topic: MakeTopic) -> None:
    """Each partition has an order of its own: one of them does not hold the other, and both end."""
    topics = [make_topic(), make_topic()]
    for topic in topics:
        work.produce_keys(topic, *[b"a"] * 9)
    with work.consumer(*topics) as consumer:
        found = poll_some(consumer, 18)
        consumer.commit_sync()
    for topic in topics:
        assert [each.offset() for each in found if each.topic() == topic] == list(range(9))
    wait_until(work.done)
