"""Draw the state of a share-partition in one line.

As the specifications do: `a` available, `A` acquired, `k` acknowledged, `d` archiving, `x` archived, the
delivery count behind; offsets from SPSO to SPEO, neighbours alike in one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sharequeue.domain.values import AcknowledgeType, SharePartition
from tests.conformance.engines import ENGINES, Engine, FetchOf, LogEnds
from tests.oracle import (
    AcknowledgementBatch,
    AcquireMode,
    Description,
    LogBatch,
    RecordState,
    Redelivery,
)

T0 = SharePartition("g", "t", 0)
LETTERS = {
    RecordState.AVAILABLE: "a",
    RecordState.ACQUIRED: "A",
    RecordState.ACKNOWLEDGED: "k",
    RecordState.ARCHIVING: "d",
    RecordState.ARCHIVED: "x",
}
on_every_engine = pytest.mark.parametrize("engine", list(ENGINES))
ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, GAP, RENEW = AcknowledgeType.REJECT, AcknowledgeType.GAP, AcknowledgeType.RENEW


def drawn(view: Description) -> str:
    """`110 a1; 111-119 A1`."""
    runs: list[tuple[int, int, str]] = []
    for offset, seen in view.offsets.items():
        kind = f"{LETTERS[seen.state]}{seen.delivery_count}"
        if runs and runs[-1][1] + 1 == offset and runs[-1][2] == kind:
            runs[-1] = (runs[-1][0], offset, kind)
        else:
            runs.append((offset, offset, kind))
    return "; ".join(f"{f} {kind}" if f == last else f"{f}-{last} {kind}" for f, last, kind in runs)


class Table:
    """One share-partition on one engine, in few words. ``log`` None: no log-batch boundaries are known."""

    def __init__(
        self,
        engine: str,
        log: Sequence[tuple[int, int]] | None,
        log_end: int,
        start: int = 0,
        configs: Mapping[str, object] | None = None,
    ) -> None:
        self.engine: Engine = ENGINES[engine]()
        self.engine.configure("g", configs or {})
        self.log = None if log is None else [LogBatch(first, last) for first, last in log]
        self.engine.join("g", "m1")
        self.engine.initialize_at(T0, start, 1)
        self.grow(log_end)

    def grow(self, log_end: int, last_stable: int | None = None) -> None:
        """The log ends here now."""
        self.engine.observe(T0, LogEnds(0, log_end, log_end if last_stable is None else last_stable))

    def fetch(
        self, member: str, most: int, mode: AcquireMode = "record_limit", redelivery: Redelivery = "kafka"
    ) -> list[str]:
        """What a fetch acquires, as `110-112 x1`: range and delivery count."""
        got = self.engine.acquire(T0, member, FetchOf(most, mode, None, self.log, redelivery=redelivery))
        return [f"{r.first}-{r.last} x{r.delivery_count}" for r in got.ranges]

    def fetch_size(self, member: str, most: int = 10**6, redelivery: Redelivery = "kafka") -> int:
        """How many records a fetch acquires."""
        ranges = self.fetch(member, most, "batch_optimized", redelivery)
        return sum(int(last) - int(first) + 1 for first, last in (r.split()[0].split("-") for r in ranges))

    def acknowledge(self, member: str, kind: AcknowledgeType, *runs: tuple[int, int]) -> None:
        """One type for some runs, both ends inclusive."""
        batches = [AcknowledgementBatch.of(first, last, kind) for first, last in runs]
        self.engine.acknowledge(T0, member, batches, None, True)

    def view(self) -> Description:
        """The state, lapsed locks settled."""
        self.engine.sweep()
        assert self.engine.verify() == []
        return self.engine.describe(T0)

    def row(self) -> tuple[int, int, str]:
        """SPSO, SPEO, and what is between."""
        view = self.view()
        return view.spso, view.speo, drawn(view)
