"""Order by key inside a lease: what a poll returns, and what is given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka.serialization import StringDeserializer

from sharequeue import AcknowledgeType, DeserializingShareConsumer
from sharequeue.consumer.acknowledgements import Acknowledgements, Result, give_back
from sharequeue.consumer.held_leases import LeaseOutcomes
from sharequeue.domain.errors import CoordinatorNotAvailable, InvalidRecordState
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.record_bytes import key_hash
from sharequeue.domain.values import SharePartition
from sharequeue.state.calls import AcquiredLeases, LeaseAcknowledgement
from tests.unit.consumer.stub import consumer_of, holding_of, lease_of, put_in_order, read_on

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, RENEW = AcknowledgeType.REJECT, AcknowledgeType.RENEW
A, B = key_hash(b"a"), key_hash(b"b")


def offsets_of(messages: list[Message]) -> list[int | None]:
    """Return the offsets of messages."""
    return [message.offset() for message in messages]


def acknowledge(consumer: Any, **kinds: AcknowledgeType) -> None:
    """Acknowledge records by offset, as `_3=RELEASE`."""
    for offset, kind in kinds.items():
        consumer.acknowledge_offset("t", 0, int(offset[1:]), kind)


def sent(consumer: Any) -> LeaseOutcomes:
    """Return the outcomes of the one lease that was sent last."""
    [(_, outcomes)] = consumer._handover.outbox[-1].taken
    assert isinstance(outcomes, LeaseOutcomes)
    return outcomes


def answer(consumer: Any, *results: Result, renewals: Result = None) -> list[LeaseAcknowledgement]:
    """Have the outbox sent, with these results of its leases; return what was sent to the state."""
    calls: list[LeaseAcknowledgement] = []

    def record(acknowledgements: list[LeaseAcknowledgement], **_: object) -> list[Result]:
        calls.extend(acknowledgements)
        return [*results, *[None] * len(acknowledgements)][: len(acknowledgements)]

    def renew(*_: object, **__: object) -> None:
        if renewals is not None:
            raise renewals

    sender = consumer._fetcher._sender
    sender._state = SimpleNamespace(acknowledge=record, fetches=SimpleNamespace(acknowledge_batches=renew))
    sender._member = SimpleNamespace(
        load_configs=lambda: SimpleNamespace(record_lock_duration_ms=30_000, dead_letter_topic=None),
        lost_topics={},
    )
    while consumer._handover.outbox:
        sender.send([consumer._handover.outbox[0]])
    return calls


def test_a_poll_returns_one_record_of_a_key_at_a_time() -> None:
    """The next one comes when it is accepted, by offset among the others; records without a key do not wait."""
    with consumer_of() as consumer:
        put_in_order(consumer, [b"a", None, b"a", b"b", None, b"a", b"", b""])
        assert offsets_of(consumer.poll(0)) == [0, 1, 3, 4, 6]
        assert offsets_of(consumer.poll(0)) == [2, 7]
        assert offsets_of(consumer.poll(0)) == [5]
        assert not consumer.poll(0)
        assert [sent.taken[0][1].keys for sent in consumer._handover.outbox] == [{}, {}, {}]


def test_freed_records_come_in_the_order_of_offsets() -> None:
    """Also where fewer are wanted than may be handed out, and where others are read later."""
    with consumer_of(max_poll_records=2) as consumer:
        keys = [b"a", b"a", b"b", b"c", b"a"]
        holding = put_in_order(consumer, keys, read=3)
        assert offsets_of(consumer.poll(0)) == [0, 2]
        read_on(consumer, holding, keys, 3, 5)
        assert offsets_of(consumer.poll(0)) == [1, 3]
        assert offsets_of(consumer.poll(0)) == [4]


@pytest.mark.parametrize("kind", [RELEASE, REJECT])
def test_after_a_failed_record_the_later_ones_of_its_key_are_held(kind: AcknowledgeType) -> None:
    """They are given back in the same acknowledgement, with their key; also those that are read later."""
    with consumer_of(share_acknowledgement_mode="explicit") as consumer:
        keys = [b"a", b"b", b"a", b"a", b"b", None, b"a"]
        holding = put_in_order(consumer, keys, read=4)
        assert offsets_of(consumer.poll(0)) == [0, 1]
        acknowledge(consumer, _0=kind, _1=ACCEPT)
        consumer.commit_async()
        outcomes = sent(consumer)
        assert outcomes.outcomes == {kind: OffsetSet.of((0, 1)), ACCEPT: OffsetSet.of((1, 2))}
        assert outcomes.holds == OffsetSet.of((2, 4))
        assert outcomes.keys == {A: [0, 2, 3]}
        read_on(consumer, holding, keys, 4, 7)
        assert offsets_of(consumer.poll(0)) == [4, 5]
        acknowledge(consumer, _4=ACCEPT, _5=kind)
        consumer.commit_async()
        assert (sent(consumer).holds, sent(consumer).keys) == (OffsetSet.of((6, 7)), {A: [6], None: [5]})
        assert holding.buffered == 0


def test_what_is_blocked_is_never_polled() -> None:
    """A key is blocked from an offset on: its records before that are handed out. The rest is given back unseen."""
    with consumer_of() as consumer:
        holding = put_in_order(consumer, [b"a", b"b", b"a", b"b"], {A: 1, B: 0})
        assert offsets_of(consumer.poll(0)) == [0]
        consumer.commit_async()
        assert sent(consumer).outcomes == {ACCEPT: OffsetSet.of((0, 1))}
        assert sent(consumer).holds == OffsetSet.of((1, 4))
        assert sent(consumer).keys == {B: [1, 3], A: [2]}
        all_blocked = put_in_order(consumer, [b"a", b"a"], {A: -1})
        assert all_blocked.waiting == holding.waiting == 0
        outcomes = all_blocked.take(implicit=False)
        assert outcomes is not None
        assert (outcomes.outcomes, outcomes.holds) == ({}, OffsetSet.of((0, 2)))
        sending = Acknowledgements([(all_blocked, outcomes)])
        assert sending.releases
        assert sending.by_partition() == {}, "the program has not seen these records"


def test_a_record_that_cannot_be_deserialized_holds_its_key() -> None:
    """In implicit mode too; the key is the one of the record's bytes, whatever the deserializer makes of it."""

    def refuse_x(value: bytes | None, _: object) -> bytes | None:
        if value == b"x":
            raise ValueError("x")
        return value

    with consumer_of(
        DeserializingShareConsumer, key_deserializer=StringDeserializer(), value_deserializer=refuse_x
    ) as consumer:
        holding = put_in_order(consumer, [b"a", b"a", b"b"], read=0)
        messages = [Message("t", 0, at, key, value) for at, key, value in _records(b"ax", b"av", b"bv")]
        consumer._handover.queue.add(holding, messages, OffsetSet.of((0, 3)))
        assert [message.key() for message in consumer.poll(0)] == [b"a", "b"]
        consumer.commit_async()
        assert sent(consumer).outcomes == {RELEASE: OffsetSet.of((0, 1)), ACCEPT: OffsetSet.of((2, 3))}
        assert (sent(consumer).holds, sent(consumer).keys) == (OffsetSet.of((1, 2)), {A: [0, 1]})


def _records(*contents: bytes) -> list[tuple[int, bytes, bytes]]:
    return [(offset, content[:1], content[1:]) for offset, content in enumerate(contents)]


def test_a_record_whose_key_cannot_be_read_may_have_any_key() -> None:
    """Its key is not reported, and every later record with a key is held. A damaged record has no key for anybody."""
    with consumer_of() as consumer:
        holding = put_in_order(consumer, [b"a", None, None, b"b", None], read=0)
        too_large, damaged = (
            Message("t", 0, offset, error=KafkaError(code))
            for offset, code in ((2, KafkaError._BAD_COMPRESSION), (1, KafkaError._BAD_MSG))
        )
        messages = [
            Message("t", 0, 0, b"a"),
            damaged,
            too_large,
            Message("t", 0, 3, b"b"),
            Message("t", 0, 4),
        ]
        consumer._handover.queue.add(holding, messages, OffsetSet.of((0, 5)))
        assert offsets_of(consumer.poll(0)) == [0, 1, 2, 4]
        consumer.commit_async()
        assert sent(consumer).outcomes[RELEASE] == OffsetSet.of((2, 3))
        assert (sent(consumer).holds, sent(consumer).keys) == (OffsetSet.of((3, 4)), {None: [1], B: [3]})


def test_a_renewed_record_keeps_its_key() -> None:
    """The next one of the key comes when the renewed one is accepted."""
    with consumer_of(share_acknowledgement_mode="explicit") as consumer:
        put_in_order(consumer, [b"a", b"a", b"b", b"a"])
        assert offsets_of(consumer.poll(0)) == [0, 2]
        acknowledge(consumer, _0=RENEW, _2=ACCEPT)
        consumer.commit_async()
        assert not consumer.poll(0)
        answer(consumer)
        assert offsets_of(consumer.poll(0)) == [0]
        acknowledge(consumer, _0=ACCEPT)
        assert offsets_of(consumer.poll(0)) == [1]
        acknowledge(consumer, _1=RELEASE)
        consumer.commit_async()
        assert (sent(consumer).holds, sent(consumer).keys) == (OffsetSet.of((3, 4)), {A: [1, 3]})


def test_a_record_that_could_not_be_renewed_holds_its_key() -> None:
    """Nothing of its lease is accepted with it: all of it comes again once the lock has lapsed, in order."""
    with consumer_of(share_acknowledgement_mode="explicit") as consumer:
        put_in_order(consumer, [b"a", b"a", b"b", b"b"])
        consumer.poll(0)
        acknowledge(consumer, _0=RENEW, _2=ACCEPT)
        consumer.commit_async()
        assert answer(consumer, renewals=InvalidRecordState("renewal is switched off")) == []
        assert not consumer.poll(0)


def test_after_a_refused_acknowledgement_nothing_of_its_lease_is_accepted() -> None:
    """Its records may be open: later ones of their keys, in hand or on their way, are refused without a call."""
    for refusal in (InvalidRecordState("lapsed"), CoordinatorNotAvailable("gone")):
        with consumer_of(max_poll_records=1) as consumer:
            put_in_order(consumer, [b"a", b"a", b"a", b"b"])
            consumer.poll(0)
            assert offsets_of(consumer.poll(0)) == [1]
            assert offsets_of(consumer.poll(0)) == [2]
            first, second = consumer._handover.outbox
            assert len(answer(consumer, refusal)) == 1
            assert first.results == [refusal]
            assert isinstance(second.results[0], InvalidRecordState)
            assert not consumer.poll(0)
            assert answer(consumer) == []


def test_acknowledgements_of_one_lease_that_are_sent_together() -> None:
    """An accept and the release after it are one acknowledgement, with all keys."""
    with consumer_of(share_acknowledgement_mode="explicit") as consumer:
        put_in_order(consumer, [b"a", b"a", b"a", b"b"])
        for kind in (ACCEPT, RELEASE):
            for message in consumer.poll(0):
                consumer.acknowledge(message, kind)
            consumer.commit_async()
        [(_, together)] = Acknowledgements.of_all(consumer._handover.outbox).taken
        assert together.outcomes == {
            ACCEPT: OffsetSet.of((0, 1), (3, 4)),
            RELEASE: OffsetSet.of((1, 2)),
        }
        assert (together.holds, together.keys) == (OffsetSet.of((2, 3)), {A: [1, 2]})


def test_what_waits_is_given_back_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that takes long over each record of a key works through as many as its lock allows. The others, also
    those that are read later, are given back with their delivery before it lapses; what a poll may return stays."""
    with consumer_of(max_poll_records=2) as consumer:
        keys = [b"a", b"a", b"b", b"b", b"a", b"c", b"a"]
        holding = put_in_order(consumer, keys, read=6)
        assert offsets_of(consumer.poll(0)) == [0, 2]
        assert offsets_of(consumer.poll(0)) == [1, 3]
        monkeypatch.setattr(type(holding.lock), "half_over", True)
        assert offsets_of(consumer.poll(0)) == [5]
        outcomes = sent(consumer)
        assert (outcomes.outcomes, outcomes.holds) == (
            {ACCEPT: OffsetSet.of((1, 2), (3, 4))},
            OffsetSet.of((4, 5)),
        )
        assert outcomes.keys == {A: [4]}
        read_on(consumer, holding, keys, 6, 7)
        assert not consumer.poll(0)
        assert (sent(consumer).holds, sent(consumer).keys) == (OffsetSet.of((6, 7)), {A: [6]})
        assert holding.done


def test_what_no_poll_has_seen_is_given_back_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that were leased ahead of polls that do not come keep the partition from other members for half of
    the lock, not for all of it. They lose no delivery; a lease of which a poll has had a record stays."""
    with consumer_of(max_poll_records=1) as consumer:
        fetcher = consumer._fetcher
        released: list[Any] = []
        fetcher._state = SimpleNamespace(release=lambda leases, refund: released.extend((*leases, refund)))
        seen = put_in_order(consumer, [b"a", b"b"])
        assert offsets_of(consumer.poll(0)) == [0]
        waiting = put_in_order(consumer, [b"a"])
        consumer._handover._wanted_until = 0.0
        assert 0 < fetcher._until_idle() <= 15
        fetcher._give_back_idle()
        assert released == []
        monkeypatch.setattr(type(waiting.lock), "half_over", True)
        fetcher._give_back_idle()
        assert released == [waiting.lease, True]
        assert consumer._handover.queue.leases() == [seen]
        assert not fetcher._wants_records()
        assert fetcher._until_idle() is None


def test_a_lapsed_lease_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewed record of it is released alone: with records that are not held it would be refused."""
    with consumer_of(share_acknowledgement_mode="explicit") as consumer:
        holding = put_in_order(consumer, [b"a", b"a"])
        consumer.poll(0)
        acknowledge(consumer, _0=RENEW)
        consumer.commit_async()
        answer(consumer)
        consumer.poll(0)
        monkeypatch.setattr(type(holding.lock), "lapsed", property(lambda lock: lock is holding.lock))
        acknowledge(consumer, _0=RELEASE)
        consumer.commit_async()
        assert (sent(consumer).holds, sent(consumer).keys) == (OffsetSet(), {A: [0]})


def test_what_is_polled_is_given_back_with_its_keys() -> None:
    """At the end, and after an unsubscribe; what waits behind it gets its delivery back."""
    acknowledged: list[LeaseAcknowledgement] = []
    released: list[UUID] = []
    state: Any = SimpleNamespace(
        acknowledge=acknowledged.extend,
        release=lambda leases, **_: released.extend(each.token for each in leases),
    )
    with consumer_of() as consumer:
        holding = put_in_order(consumer, [b"a", b"a", None])
        consumer.poll(0)
        give_back(state, consumer._handover.queue.leases(), consumer._in_hand)
        [one] = acknowledged
        assert one.outcomes == {RELEASE: OffsetSet.of((0, 1), (2, 3))}
        assert one.keys == {A: OffsetSet.of((0, 1)), None: OffsetSet.of((2, 3))}
        assert released == [holding.lease.token]


def test_only_a_lease_in_order_needs_its_blocked_keys() -> None:
    """A group without order has no further call. Of a share-partition in order no second lease is asked for."""
    plain, ordered = SharePartition("g", "t", 0), SharePartition("g", "t", 1)
    asked: list[list[SharePartition]] = []
    blocked: list[list[UUID]] = []
    leases = [lease_of(OffsetSet.of((0, 2)))]

    def acquire(part: list[SharePartition], *_: object, **__: object) -> AcquiredLeases:
        asked.append(list(part))
        return AcquiredLeases(tuple(leases), {})

    def blocked_keys(_: str, tokens: list[UUID]) -> dict[UUID, Any]:
        blocked.append(tokens)
        return {tokens[0]: SimpleNamespace(hashes=[A], first_offsets=[0], untils=[None])}

    with consumer_of() as consumer:
        fetcher = consumer._fetcher
        fetcher._state = SimpleNamespace(acquire=acquire, blocked_keys=blocked_keys)
        fetcher._ends = SimpleNamespace(readable=lambda *_: [plain, ordered], check_cluster=lambda: None)
        assert fetcher._lease({})
        assert blocked == []
        leases[0] = holding_of(0, 2, "t").lease
        object.__setattr__(leases[0], "ordered", True)
        object.__setattr__(leases[0], "share_partition", ordered)
        assert fetcher._lease({})
        assert blocked == [[leases[0].token]]
        assert set(asked[-1]) == {plain, ordered}
        holding = consumer._handover.queue.to_read[-1]
        messages = [Message("t", 1, offset, b"a") for offset in (0, 1)]
        consumer._handover.queue.add(holding, messages, OffsetSet.of((0, 2)))
        assert offsets_of(holding.hand_out(5, explicit=False)) == [0]
        holding = put_in_order(consumer, [b"a", b"a"])
        fetcher._lease({})
        assert asked[-1] == [ordered]
