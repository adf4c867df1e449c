"""What is said of a lease's records, and what they look like."""

from __future__ import annotations

from confluent_kafka import Message

from sharequeue.consumer.holdings import with_delivery_counts
from sharequeue.offsets import OffsetSet
from tests.unit.consumer.stub import lease_of


def test_records_with_and_without_a_leader_epoch() -> None:
    """Both get their delivery count; an old message format has no leader epoch."""
    messages = [Message("t", 0, 0, leader_epoch=7), Message("t", 0, 1)]
    counted = with_delivery_counts(messages, lease_of(OffsetSet.of((0, 2))))
    assert [(each.leader_epoch(), each.delivery_count()) for each in counted] == [(7, 1), (None, 1)]
