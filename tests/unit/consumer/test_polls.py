"""What a poll returns, and what may not come between."""

from __future__ import annotations

import pytest

from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, SharePartition
from tests.unit.consumer.stub import consumer_of, put, settle

ACCEPT = AcknowledgeType.ACCEPT


def test_a_callback_that_raises_costs_no_record() -> None:
    """Nothing was polled then, so nothing is accepted; the other results are told by the next call."""
    told: list[str] = []

    def callback(offsets: object, _: object) -> None:
        told.append(str(sorted(offsets)))  # type: ignore[call-overload]
        if len(told) == 1:
            raise ValueError("boom")

    with consumer_of() as consumer:
        consumer.set_acknowledgement_commit_callback(callback)
        put(consumer, 0, 2)
        put(consumer, 0, 2, "u")
        assert len(consumer.poll(0)) == 4
        consumer.commit_async()
        put(consumer, 2, 4)
        settle(consumer)
        with pytest.raises(ValueError, match="boom"):
            consumer.poll(0)
        assert [message.offset() for message in consumer.poll(0)] == [2, 3]
        assert len(told) == len(set(told)) == 2
        assert not consumer._handover.outbox


def test_no_callback_runs_after_records_were_taken() -> None:
    """What a callback raises would otherwise keep records from the program, which the next poll accepts."""

    def callback(*_: object) -> None:
        raise ValueError("boom")

    with consumer_of() as consumer:
        consumer.set_acknowledgement_commit_callback(callback)
        put(consumer, 0, 1)
        consumer.poll(0)
        put(consumer, 1, 2)
        take = consumer._handover.take

        def take_while_results_come(*arguments: object) -> object:
            settle(consumer)
            return take(*arguments)

        consumer._handover.take = take_while_results_come
        assert [message.offset() for message in consumer.poll(0)] == [1]
        with pytest.raises(ValueError, match="boom"):
            consumer.commit_async()
        [sending] = consumer._handover.outbox
        assert sending.taken[0][1].outcomes == {ACCEPT: OffsetSet.of((1, 2))}


def test_a_poll_that_does_not_wait_has_records_fetched() -> None:
    """Also where it may not wait for more: what it asked for is leased once, for the next."""
    with consumer_of() as consumer:
        fetcher = consumer._fetcher
        consumer._member.membership.topic_ids = {SharePartition("g", "t", 0): "id"}
        assert not consumer.poll(0)
        assert fetcher._wants_records()
        rounds: list[bool] = []
        fetcher._fetch = lambda: rounds.append(fetcher.stop(0))
        fetcher._run()
        assert rounds == [None]
        fetcher._stop = False
        assert not fetcher._wants_records()
        # A poll that has its records asks for no more: they would be locked for a program that may not come.
        put(consumer, 0, 1)
        assert consumer.poll(0)
        assert not fetcher._wants_records()


def test_an_empty_poll_asks_for_nothing_after_the_next_one_has_records() -> None:
    """Records that lapse in the wait of the empty poll would otherwise be leased for a program that is at work."""
    with consumer_of(fetch_max_wait_ms=60_000, fetch_min_bytes=1) as consumer:
        assert not consumer.poll(0)
        assert consumer._handover.demand
        put(consumer, 0, 1)
        assert consumer.poll(0)
        assert not consumer._handover.demand


def test_the_offsets_of_a_partition_ascend() -> None:
    """Also where records that were leased later, or locked anew, lie before others that wait."""
    with consumer_of() as consumer:
        put(consumer, 4, 6)
        put(consumer, 0, 2, "u")
        put(consumer, 0, 2)
        found = [(message.topic(), message.offset()) for message in consumer.poll(0)]
        assert [offset for topic, offset in found if topic == "t"] == [0, 1, 4, 5]
        assert [offset for topic, offset in found if topic == "u"] == [0, 1]
