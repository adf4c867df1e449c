"""What did a run do, and how far is it?

The figures of rounds and runs, as values. Counts come from the state's replies to the acknowledgements, so they say
what the queue holds to be true; seconds are by stage, in the order in which a round goes through them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from sharequeue.spark.draining import Drained
from sharequeue.spark.leasing.losses import words_of_losses
from sharequeue.spark.outcomes.missing import Acknowledgement
from sharequeue.spark.showing import Shown, Table
from sharequeue.values import Acknowledged

STAGES = ("observe", "acquire", "plan", "write", "summarise", "read back", "stage", "acknowledge")
"""Spark reads, handles and writes in one pass, so `write` has the time of all three. `stage` is only there for a sink
that prepares its rows before the acknowledgement, as `PostgresTable` does."""


_COLUMNS = ("leased", "accepted", "released", "rejected")
_RARE = ("gaps", "exhausted", "dropped", "lost", "unacknowledged")
"""Shown where there are any."""


@dataclass(frozen=True, slots=True)
class RoundReport(Shown):
    """One round: what was leased, and what became of it, in records.

    `lost` were taken by retention between lease and read; `unacknowledged` were given back because their own Spark
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
        """How long the round took."""
        return sum(self.stage_seconds.values())

    def table(self) -> Table:
        """Return its figures."""
        return _rounds(f"round {self.number}", (self,))


@dataclass(frozen=True, slots=True)
class RunReport(Shown):
    """All rounds of a run. `lag` and `drained` are as of the last acknowledgement; `lag` counts what is in
    flight.
    """

    group: str
    rounds: tuple[RoundReport, ...]
    lag: int
    drained: bool
    """Nothing was left to lease when the run ended; others may hold records. False where nothing was assigned."""
    seconds: float
    remark: str | None = None
    """What somebody should know: why there was nothing more to lease although not all is done, dead letters that are
    held, columns that are not those of earlier rows. None where there is nothing to say."""
    dead_letters: Drained | None = None
    """The dead letters of the group that the run has written; None where none waited or a service writes them."""
    left_out: tuple[str, ...] = ()
    """Share-partitions that were assigned to the member and not leased from, because others were chosen (`only`)."""
    not_assigned: tuple[str, ...] = ()
    """Share-partitions that were chosen, and were not assigned to the member when the run ended."""
    lost: int = 0
    """Records of the group that retention removed before they were processed, since a run last reported any: also
    those that were never leased, and what was lost between two runs."""

    @property
    def leased(self) -> int:
        """Records leased, each time it was."""
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
        """Records released once too often: their deliveries are used up."""
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
        """Seconds by stage, over all rounds; of the stages that there were."""
        taken = {
            stage: [r.stage_seconds[stage] for r in self.rounds if stage in r.stage_seconds]
            for stage in STAGES
        }
        return {stage: sum(seconds) for stage, seconds in taken.items() if seconds or stage != "stage"}

    @property
    def rate(self) -> float:
        """Records leased and acknowledged a second."""
        return self.leased / self.seconds if self.seconds else 0.0

    def table(self) -> Table:
        """Return a row a round, and what is to be known of the run."""
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
    """What an acknowledgement did, in records.

    `exhausted` are releases after the last delivery, `gaps` offsets the log never had, `dropped` records that the
    log has and the outcomes did not name, `lost` what retention took between lease and read.
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
        """Return the sums of what the state replied to these acknowledgements."""
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
        """Return its figures; of the rare ones those that there are."""
        names = ("accepted", "released", "rejected", "gaps", "exhausted", "dropped", "lost")
        found = [name for at, name in enumerate(names) if at < 3 or getattr(self, name)]
        title = f"acknowledged {self.leased:,} records; lag {self.lag:,}"
        return Table(title, found, [[getattr(self, name) for name in found]])


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is, whenever a stage begins and when a round ends (stage `done`). Two rounds may be at work.

    `left` are the records that the run may still lease, as far as it knows: what others hold, what waits for a later
    time, and what lies beyond the run's bounds is not among them. None before the run has looked.
    """

    round: int
    stage: str
    leased: int
    records_done: int
    seconds: float
    lag: int | None
    left: int | None = None

    @property
    def rate(self) -> float:
        """Records done a second since the run began."""
        return self.records_done / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long the records that are left take at the rate so far; None before there is one."""
        return None if self.left is None or not self.records_done else self.left / self.rate

    def __str__(self) -> str:
        parts = [f"round {self.round}: "]
        if self.stage != "done":
            parts[0] += f"{self.stage} {self.leased:,} records" if self.leased else self.stage
        if self.stage == "done" or self.records_done:
            done = f"{self.records_done:,} records done"
            parts = [f"{parts[0]}{done}"] if self.stage == "done" else [*parts, done]
            parts.append(f"{self.rate:,.0f}/s")
        if self.lag is not None:
            parts.append(f"lag {self.lag:,}")
        if self.seconds_left:
            parts.append(f"{self.seconds_left:,.0f} s left")
        return ", ".join(parts)


ProgressCallback = Callable[[Progress], None]
