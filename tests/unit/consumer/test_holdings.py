"""What is said of a lease's records, and what they look like."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Message

from sharequeue import Settings
from sharequeue.consumer.failures import Failures
from sharequeue.consumer.holdings import Taken, with_delivery_counts
from sharequeue.consumer.sending import Sending
from sharequeue.offsets import OffsetSet
from tests.unit.consumer.stub import holding_of, lease_of, messages_of


def test_records_with_and_without_a_leader_epoch() -> None:
    """Both get their delivery count; an old message format has no leader epoch."""
    messages = [Message("t", 0, 0, leader_epoch=7), Message("t", 0, 1)]
    counted = with_delivery_counts(messages, lease_of(OffsetSet.of((0, 2))))
    assert [(each.leader_epoch(), each.delivery_count()) for each in counted] == [(7, 1), (None, 1)]


def test_errors_of_a_lease_and_of_what_was_renewed_of_it(tmp_path: Path) -> None:
    """One folder, which one acknowledgement names: a lease's second output of that name would be refused."""
    failures = Failures(Settings.load(str(tmp_path)))
    holding = holding_of(0, 2)
    taken = Taken({}, renewed=messages_of(1, 2))
    state: Any = SimpleNamespace(fetches=SimpleNamespace(acknowledge_batches=lambda *_, **__: None))
    [renewed] = Sending([(holding, taken)]).carry_out(state, failures, 15_000)[1]
    # The lease was of 30 s; the group has shortened its locks since.
    assert renewed.deadline < holding.deadline
    first = failures.output(holding, {0: "a"})
    assert first is not None
    assert failures.output(renewed, {1: "b"}) is None
    assert len(list(Path(first.location).iterdir())) == 2
