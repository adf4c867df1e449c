"""How the outbox divides a batch into transactions, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sharequeue.deadletters import outbox
from sharequeue.deadletters.outbox import Marker, Outbox, Record
from sharequeue.domain.offsets import OffsetSet


class Producer:
    """A producer that keeps its transactions in memory: the offsets of the records, and the marker."""

    committed: ClassVar[list[tuple[list[int], int]]] = []

    def __init__(self, *_: Any) -> None:
        self.in_transaction, self.is_late = False, False
        self._sent: list[int] = []
        self._marker = TopicPartition("t", 0, -1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def begin(self) -> None:
        self.in_transaction, self._sent = True, []

    def produce(self, *record: Any) -> None:
        self._sent.append(record[5])

    def mark(self, marker: TopicPartition) -> None:
        self._marker = marker

    def commit(self) -> None:
        self.in_transaction = False
        found = Marker.parse(self._marker)
        self.committed.append((self._sent, -1 if found is None else found.through))


@dataclass
class Markers:
    """A group with this marker."""

    marker: Marker | None = None

    def committed(self, topic: str, partition: int) -> TopicPartition:
        return (
            TopicPartition(topic, partition, -1001)
            if self.marker is None
            else self.marker.committed_at(topic, partition)
        )


@dataclass(frozen=True)
class Batch:
    """A batch with this number."""

    sequence: int = 7
    identity: str = "7"
    offsets: OffsetSet = field(default_factory=lambda: OffsetSet.of((0, 1000)))
    is_new: bool = False


class Lost(Exception):
    """No marker shows what is written."""


@dataclass
class Source:
    """Records at these offsets, of 10 bytes each."""

    offsets: Sequence[int]
    transactional_id: str = "id"
    producer: Mapping[str, Any] = field(default_factory=dict)
    place: tuple[str, int] = ("t", 0)
    given: list[OffsetSet] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=lambda: [Batch()])

    def open(self) -> Batch | None:
        return self.batches.pop() if self.batches else None

    def marker(self, batch: Batch) -> Marker:
        return Marker(batch.sequence, batch.identity, "target", "id")

    def written(self, batch: Batch) -> OffsetSet:
        raise Lost

    def records(self, batch: Batch, wanted: OffsetSet) -> Iterator[Record]:
        self.given.append(wanted)
        yield from ((at, "target", 0, None, None, [], 10, 0) for at in self.offsets if at in wanted)

    def part(self, batch: Batch, written: Callable[[], OffsetSet]) -> Batch:
        return batch

    def refused(self, batch: Batch, reasons: Mapping[int, KafkaError]) -> None:
        raise AssertionError(reasons)

    def close(self, batch: Batch) -> int:
        return len({*self.offsets})

    def failure(self, error: KafkaException) -> Exception:
        return error


def sent(
    monkeypatch: pytest.MonkeyPatch, source: Source, marker: Marker | None, most: int
) -> list[tuple[list[int], int]]:
    """Write with transactions of `most` bytes; return the offsets of each, and its marker's `through`."""
    monkeypatch.setattr(outbox, "MarkedProducer", Producer)
    monkeypatch.setattr(outbox, "TRANSACTION_BYTES", most)
    monkeypatch.setattr(Producer, "committed", [])
    markers: Any = Markers(marker)
    written: Iterable[Any] = Outbox[Batch]({}, source, markers).write()
    assert len(list(written)) == 1
    return Producer.committed


def test_the_rows_of_a_record_are_in_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is full ends before the next offset, and not between records of the same one."""
    source = Source([0, 1, 1, 1, 2, 5, 5])
    assert sent(monkeypatch, source, Marker(6, "6"), 20) == [([0, 1, 1, 1], 1), ([2, 5, 5], 999)]


def test_what_a_marker_covers_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that goes on after a part writes from the next offset on."""
    source = Source([0, 1, 2, 3, 4])
    before = Marker(7, "7", "target", "id", through=2)
    assert sent(monkeypatch, source, before, 10) == [([3], 3), ([4], 999)]
    assert source.given == [OffsetSet.of((3, 1000))]


@pytest.mark.parametrize("found", [None, Marker(8, "8", "target", "id", 999)])
def test_a_source_is_asked_what_is_written_if_no_marker_shows_it(
    monkeypatch: pytest.MonkeyPatch, found: Marker | None
) -> None:
    """The marker is missing, or of a later batch: the source may raise, and then nothing is written."""
    with pytest.raises(Lost):
        sent(monkeypatch, Source([0]), found, 10)
    assert Producer.committed == []
