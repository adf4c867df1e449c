"""What is leased is handed out or given back, whatever comes between."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.exc import OperationalError

from sharequeue.consumer.acknowledgements import Acknowledgements
from sharequeue.consumer.held_leases import HeldLease, LeaseOutcomes
from sharequeue.consumer.log_ends import LOOK_AGAIN_S
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.state.calls import AcquiredLeases, LeaseAcknowledgement
from tests.unit.consumer.stub import consumer_of, holding_of, messages_of, put
from tests.waiting import PATIENCE_S, wait_until

AT = SharePartition("g", "t", 0)


class RecordingState:
    """A state with given results, which records its calls."""

    def __init__(self, fetcher: Any) -> None:
        self.asked: list[tuple[list[SharePartition], UUID]] = []
        self.released: list[Any] = []
        self.acknowledged: list[Any] = []
        self.fails = False
        self.leases: tuple[Any, ...] = ()
        fetcher._state = self
        fetcher._ends = SimpleNamespace(readable=lambda *_: [AT], check_cluster=lambda: None)

    def _check(self) -> None:
        if self.fails:
            raise OperationalError("select", None, Exception("connection lost"))

    def release_member(self, *_: Any) -> None:
        """Nothing is left."""

    def acquire(self, part: Any, *_: Any, request_id: UUID, **__: Any) -> AcquiredLeases:
        self.asked.append((list(part), request_id))
        self._check()
        return AcquiredLeases(self.leases, {})

    def release(self, leases: Any, *, refund: bool) -> None:
        self._check()
        self.released += [(lease.token, refund) for lease in leases]

    def acknowledge(self, acknowledgements: Any) -> None:
        self._check()
        self.acknowledged += acknowledgements


def test_a_lease_whose_reply_was_lost_is_asked_for_again() -> None:
    """As the same request: the state answers with what it leased then."""
    with consumer_of() as consumer:
        fetcher = consumer._fetcher
        many = RecordingState(fetcher)
        many.fails = True
        with pytest.raises(OperationalError):
            fetcher._lease({AT: "id"})
        many.fails, many.leases = False, (holding_of(0, 2).lease,)
        assert fetcher._lease({AT: "id"})
        assert not many.released
        fetcher._lease({AT: "id"})
        first, second, third = many.asked
        assert first == second
        assert third[1] != second[1]


def test_the_rest_of_a_lease_is_given_back_after_an_unsubscribe() -> None:
    """What nobody has seen of it gets its delivery back when the consumer ends."""
    with consumer_of(max_poll_records=1) as consumer:
        fetcher = consumer._fetcher
        many = RecordingState(fetcher)
        holding: HeldLease = put(consumer, 0, 3)
        assert len(consumer.poll(0)) == 1
        fetcher.give_back_except(frozenset())
        assert not many.released
        fetcher.release_all(consumer._in_hand)
        assert many.released == [(holding.lease.token, True)]
        assert [str(each) for [each] in (done.outcomes.values() for done in many.acknowledged)] == ["{[0,1)}"]


def test_a_rest_that_could_not_be_given_back_is_tried_again() -> None:
    """With its gaps: nothing of it is acknowledged afterwards."""
    with consumer_of() as consumer:
        fetcher = consumer._fetcher
        many = RecordingState(fetcher)
        fetcher._ends.cannot_be_read = lambda _: None
        holding = holding_of(0, 3)
        holding.gaps, holding.unread = OffsetSet.of((0, 1)), OffsetSet.of((1, 3))
        fetcher._handover.queue.to_read.append(holding)
        many.fails = True
        with pytest.raises(OperationalError):
            fetcher._not_readable(holding, None)
        many.fails = False
        fetcher._give_back_rests()
        fetcher._give_back_rests()
        assert many.released == [(holding.lease.token, True)]
        assert holding.take(implicit=False) is None


def test_a_rest_waits_for_what_is_in_use_of_its_lease() -> None:
    """For acknowledgements on their way; where a lock was renewed for the lock of the rest."""
    with consumer_of() as consumer:
        fetcher = consumer._fetcher
        many = RecordingState(fetcher)
        on_its_way, split = holding_of(0, 3), holding_of(3, 6)
        fetcher._rests += [on_its_way, split]
        fetcher._handover.send(
            Acknowledgements([(on_its_way, LeaseOutcomes({AcknowledgeType.ACCEPT: OffsetSet.of((0, 1))}))])
        )
        split.split = True
        fetcher._give_back_rests()
        assert (many.released, fetcher._rests) == ([], [on_its_way])
        fetcher._handover.outbox.clear()
        fetcher._give_back_rests()
        assert (many.released, fetcher._rests) == ([(on_its_way.lease.token, True)], [])


def test_acknowledgements_are_sent_however_short_the_close() -> None:
    """close(0) does not wait for them; they are sent before the rest is given back."""
    with consumer_of() as consumer:
        fetcher, order = consumer._fetcher, []
        consumer._database = SimpleNamespace(close=lambda: order.append("closed"))
        consumer._member.close = lambda _: None
        fetcher.release_all = lambda _: order.append("given back")
        sending, carry_out = threading.Event(), threading.Event()

        def send(*_: object) -> None:
            sending.set()
            carry_out.wait(PATIENCE_S)
            order.append("sent")
            fetcher._handover.outbox.clear()

        fetcher._sender.send = send
        put(consumer, 0, 1)
        consumer.poll(0)
        fetcher.start()
        consumer._send()
        consumer.close(0)
        assert sending.wait(PATIENCE_S)
        assert order == []
        carry_out.set()
        wait_until(lambda: len(order) == 3)
        assert order == ["sent", "given back", "closed"]


def test_a_lease_with_many_delays_is_one_acknowledgement() -> None:
    """Neighbours share the longer delay: no record is delivered before its time."""
    sent: list[LeaseAcknowledgement] = []

    def acknowledge(acknowledgements: Any, **_: UUID) -> list[None]:
        sent.extend(acknowledgements)
        return [None] * len(acknowledgements)

    now = datetime.now(UTC)
    state: Any = SimpleNamespace(acknowledge=acknowledge, now=lambda: now)
    delayed = {float(offset): [offset] for offset in range(250)}
    taken = LeaseOutcomes({AcknowledgeType.RELEASE: OffsetSet.of((0, 250))}, delayed=delayed)
    assert Acknowledgements([(holding_of(0, 250), taken)]).carry_out(state, None) == ([None], [])
    [acknowledgement] = sent
    delays = acknowledgement.delays
    assert len(delays) == 84
    assert OffsetSet.union(delays.values()) == OffsetSet.of((0, 250))
    assert all((time - now).total_seconds() == offsets.end - 1 for time, offsets in delays.items())


def test_nothing_is_leased_ahead_of_a_full_shelf() -> None:
    """fetch.max.bytes bounds what waits for the polls, however few records it is."""
    with consumer_of(fetch_max_bytes=3, max_poll_records=10) as consumer:
        fetcher = consumer._fetcher
        consumer._member.membership.topic_ids = {AT: "id"}
        fetcher._handover.lease_ahead(20)
        put(consumer, 0, 2)
        assert fetcher._wants_records()
        put(consumer, 2, 3)
        assert not fetcher._wants_records()


def test_what_is_read_ahead_and_not_leased_is_bounded_in_bytes() -> None:
    """Of large records few are kept: the partition is paused until they are leased."""
    with consumer_of(fetch_max_bytes=100) as consumer:
        reader = consumer._fetcher.reader
        reader.watch(("t", 0), 0)
        reader.mean_bytes["t"] = 20.0
        log = reader._logs["t", 0]
        log.ahead.extend(messages_of(0, 4))
        reader.wait(0)
        assert not log.paused
        log.ahead.extend(messages_of(4, 5))
        reader.wait(0)
        assert log.paused
        part = reader.read(("t", 0), OffsetSet.of((1, 4)), 100, 1.0, lambda: False)
        assert [message.offset() for message in part.messages] == [1, 2, 3]
        assert [message.offset() for message in log.ahead] == [4]


def test_a_broker_that_does_not_answer_is_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records have come, and the log's end cannot be learnt: the next question waits."""
    with consumer_of() as consumer:
        fetcher = consumer._fetcher
        waits: list[float] = []
        fetcher._ends = SimpleNamespace(
            unknown=lambda _: {}, grown=lambda *_: {AT: "id"}, observe=lambda *_: False
        )
        monkeypatch.setattr(fetcher, "_pause", waits.append)
        fetcher._handover._polling = True
        fetcher._wait({AT: "id"})
        assert waits == [LOOK_AGAIN_S]
