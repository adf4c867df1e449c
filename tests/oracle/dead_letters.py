"""Move a dead letter out of ARCHIVING.

In two phases, as KIP-1191's do: a numbered batch is opened, somebody writes it to the DLQ topic, and closing it
makes its records ARCHIVED, after which SPSO may pass them. Writing is left to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import DeadLetterBatch, DeadLetterRun
from tests.oracle import order
from tests.oracle.records import LetterOfKey, RecordState
from tests.oracle.share_partition import InMemorySharePartition


@dataclass(slots=True)
class DeadLetters:
    """The dead letters of one share-partition: at most one batch open, its number given only once."""

    at: InMemorySharePartition
    sequence: int = 0
    open: tuple[int, ...] = ()

    def open_batch(self, max_records: int) -> DeadLetterBatch | None:
        """The open batch again, or a new one of the lowest ARCHIVING offsets; None when none waits."""
        if not self.open:
            waiting = sorted(o for o, r in self.at.records.items() if r.state is RecordState.ARCHIVING)
            if not waiting or max_records <= 0:
                return None
            self.open = tuple(waiting[:max_records])
            self.sequence += 1
        runs: dict[tuple[int, str], list[int]] = {}
        for offset in self.open:
            record = self.at.records[offset]
            runs.setdefault((record.delivery_count, record.cause or ""), []).append(offset)
        letters = tuple(
            DeadLetterRun(count, cause, OffsetSet.from_offsets(offsets))
            for (count, cause), offsets in sorted(runs.items())
        )
        return DeadLetterBatch(self.at.name, self.sequence, self.at.topic_id, letters)

    def close_batch(
        self,
        sequence: int,
        gaps: OffsetSet = EMPTY,
        *,
        letters_hold: bool = False,
        keys: Mapping[UUID | None, OffsetSet] | None = None,
        now: float = 0.0,
    ) -> int:
        """ARCHIVING becomes ARCHIVED for the batch of that number; return its records, 0 if it is not open.

        ``gaps`` are offsets that turned out to hold no record and were never acknowledged: they end as gaps, not as
        dead letters. Where ``letters_hold``, a letter whose key is known goes on to hold it; ``keys`` are those that
        the writer has read.
        """
        batch = self.open_batch(0) if self.open and sequence == self.sequence else None
        if batch is None:
            return 0
        order.report(self.at, keys or {}, ())
        for offset in self.open:
            record = self.at.records[offset]
            key = record.reported.key_hash if record.reported else None
            if letters_hold and key is not None and offset not in gaps:
                self.at.letters[offset] = LetterOfKey(key, sequence)
            cause = "gap" if offset in gaps else record.cause or ""
            self.at.move(record, RecordState.ARCHIVED)
            self.at.outcomes[cause, record.delivery_count] += 1
        order.hold_and_free(self.at, now)
        records = len(self.open)
        self.open = ()
        self.at.advance_spso()
        return records
