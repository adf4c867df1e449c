"""The report of a run.

The figures of rounds and runs, as values. Counts come from the state's replies to the acknowledgements, so they match
the state; seconds are by stage, in the order of the stages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from sharequeue.spark.dead_letters import Drained
from sharequeue.spark.leasing.group import words_of_losses
from sharequeue.spark.outcomes.outcomes import Acknowledgement
from sharequeue.spark.table import Shown, Table
from sharequeue.words.values import Acknowledged

STAGES = ("observe", "acquire", "plan", "write", "summarise", "read back", "stage", "acknowledge")
"""Spark reads, handles and writes in one pass, so `write` has the time of all three. `stage` exists only for a sink
that prepares its rows before the acknowledgement, such as `PostgresTable`.
"""


_COLUMNS = ("leased", "accepted", "released", "rejected")
_RARE = ("gaps", "exhausted", "dropped", "lost", "unacknowledged")
"""Figures that are shown only if they are not zero."""


@dataclass(frozen=True, slots=True)
class RoundReport(Shown):
    """One round: the leased records and their outcomes, in records.

    `lost` were removed by retention between lease and read; `unacknowledged` were given back because their own Spark
    job failed while others of the round did not.
    """

    number: int
    lease_ids: tuple[int, ...]
    leased: int
    accepted: int
    released: int
    rejected: int
    gaps: int
    exhausted: int
    dropped: int
    lost: int
    lag: int
    stage_seconds: Mapping[str, float]
    unacknowledged: int = 0

    @property
    def seconds(self) -> float:
        """The duration of the round."""
        return sum(self.stage_seconds.values())

    def table(self) -> Table:
        """Return its figures."""
        return _rounds(f"round {self.number}", (self,))


@dataclass(frozen=True, slots=True)
class RunReport(Shown):
    """All rounds of a run. `lag` and `drained` are as of the last acknowledgement; records in flight are lag."""

    group: str
    rounds: tuple[RoundReport, ...]
    lag: int
    drained: bool
    """Whether nothing was left to lease when the run ended; other members may hold records. False if nothing was
    assigned.
    """
    seconds: float
    remark: str | None = None
    """Remarks for the user: why there was nothing more to lease although records remain, dead letters that are held,
    columns that differ from those of earlier rows. None if there is no remark.
    """
    dead_letters: Drained | None = None
    """The dead letters of the group that the run has written; None if none waited or a service writes them."""
    left_out: tuple[str, ...] = ()
    """Share-partitions that were assigned to the member but not leased from, because others were chosen (`only`)."""
    not_assigned: tuple[str, ...] = ()
    """Share-partitions that were chosen but not assigned to the member when the run ended."""
    lost: int = 0
    """Records of the group that retention removed before they were processed, since the last report of a run,
    including those that were never leased or were lost between two runs.
    """

    @property
    def leased(self) -> int:
        """Records leased; a record counts once for each lease."""
        return sum(r.leased for r in self.rounds)

    @property
    def accepted(self) -> int:
        """Records accepted."""
        return sum(r.accepted for r in self.rounds)

    @property
    def released(self) -> int:
        """Releases that put the record back in the queue."""
        return sum(r.released for r in self.rounds)

    @property
    def rejected(self) -> int:
        """Records rejected."""
        return sum(r.rejected for r in self.rounds)

    @property
    def gaps(self) -> int:
        """Offsets acknowledged as gaps."""
        return sum(r.gaps for r in self.rounds)

    @property
    def exhausted(self) -> int:
        """Records released at their last delivery: their deliveries are used up."""
        return sum(r.exhausted for r in self.rounds)

    @property
    def dropped(self) -> int:
        """Records for which the handler returned no row."""
        return sum(r.dropped for r in self.rounds)

    @property
    def unacknowledged(self) -> int:
        """Records given back, as suspects, because their own Spark job failed while others of its round did not."""
        return sum(r.unacknowledged for r in self.rounds)

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds by stage, over all rounds, for the stages that occurred."""
        taken = {
            stage: [r.stage_seconds[stage] for r in self.rounds if stage in r.stage_seconds]
            for stage in STAGES
        }
        return {stage: sum(seconds) for stage, seconds in taken.items() if seconds or stage != "stage"}

    @property
    def rate(self) -> float:
        """Records leased and acknowledged per second."""
        return self.leased / self.seconds if self.seconds else 0.0

    def table(self) -> Table:
        """Return one row for each round, and the remarks of the run."""
        letters = self.dead_letters
        state = "drained" if self.drained and not self.lag else f"lag {self.lag:,}"
        return _rounds(
            f"run of group {self.group}: {self.leased:,} records leased in {self.seconds:,.1f} s "
            f"({self.rate:,.0f}/s), {self.accepted:,} accepted, {state}",
            self.rounds,
            words_of_losses(self.group, self.lost) if self.lost else None,
            self.remark,
            f"left to other runs: {', '.join(self.left_out)}" if self.left_out else None,
            f"not assigned to this member: {', '.join(self.not_assigned)}" if self.not_assigned else None,
            f"dead letters: {letters.written:,} written" if letters and letters.written else None,
            str(letters.warning) if letters and letters.warning else None,
        )


def _rounds(title: str, rounds: Sequence[RoundReport], *remarks: str | None) -> Table:
    columns = [
        *_COLUMNS,
        *(name for name in _RARE if any(getattr(each, name) for each in rounds)),
        "lag",
        "seconds",
    ]
    rows = [(each.number, *(getattr(each, name) for name in columns)) for each in rounds]
    return Table(title, ("round", *columns), rows, remarks)


@dataclass(frozen=True, slots=True)
class AcknowledgedRecords(Shown):
    """The result of an acknowledgement, in records.

    `exhausted` are releases after the last delivery, `gaps` offsets the log never had, `dropped` records that are in
    the log and have no row in the outcomes, `lost` records that retention removed between lease and read.
    """

    leased: int
    accepted: int
    released: int
    rejected: int
    gaps: int
    exhausted: int
    dropped: int
    lost: int
    lag: int

    @classmethod
    def of(cls, leased: int, done: Sequence[Acknowledged], wanted: Collection[Acknowledgement]) -> Self:
        """Return the sums of the state's replies to these acknowledgements."""
        return cls(
            leased=leased,
            accepted=sum(each.accepted for each in done),
            released=sum(each.released for each in done),
            rejected=sum(each.rejected for each in done),
            gaps=sum(each.gaps for each in done),
            exhausted=sum(each.exhausted for each in done),
            dropped=sum(each.dropped for each in wanted),
            lost=sum(each.lost.count for each in wanted),
            lag=sum(each.lag for each in done),
        )

    def table(self) -> Table:
        """Return the figures; rare ones only if they are not zero."""
        names = ("accepted", "released", "rejected", "gaps", "exhausted", "dropped", "lost")
        found = [name for at, name in enumerate(names) if at < 3 or getattr(self, name)]
        title = f"acknowledged {self.leased:,} records; lag {self.lag:,}"
        return Table(title, found, [[getattr(self, name) for name in found]])
