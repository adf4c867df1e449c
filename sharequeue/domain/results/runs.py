"""The reports of rounds, runs and leases, as values.

Counts come from the state's replies to the acknowledgements, so they match the state; seconds are by stage, in the
order of the stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Self

from sharequeue.domain.names import plural
from sharequeue.domain.results.table import Cell, Shown, Table

STAGES = ("observe", "acquire", "plan", "write", "summarise", "read back", "stage", "acknowledge")
"""Spark reads, handles and writes in one pass, so `write` has the time of all three. `stage` exists only for a sink
that prepares its rows before the acknowledgement, such as `PostgresTable`.
"""
_ALWAYS = ("leased", "accepted", "released", "rejected")
"""Counts that are also shown if they are zero."""
REPLIED = ("accepted", "released", "rejected", "gaps", "exhausted")
"""Counts of the state's replies to acknowledgements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(Shown):
    """Leased records by what became of them. A record counts once for each lease."""

    leased: int = 0
    accepted: int = 0
    released: int = 0
    """Releases that put the record back in the queue."""
    rejected: int = 0
    gaps: int = 0
    """Offsets that the log never had."""
    exhausted: int = 0
    """Records released at their last delivery: their deliveries are used up."""
    held: int = 0
    """Records that wait for an earlier one of their key: given back without a delivery."""
    without_row: int = 0
    """Records that are in the log and have no row in the outcomes."""
    lost: int = 0
    """Records that retention removed between lease and read."""
    unacknowledged: int = 0
    """Records given back because their own Spark job failed while others of its round did not: as suspects, or
    without a delivery if a partition has lost its leader."""

    @property
    def done(self) -> int:
        """Records that an acknowledgement gave an outcome, and gaps. Records that were given back are not done."""
        return sum(getattr(self, name) for name in REPLIED)

    def shown(self, title: str) -> Table:
        """Return a table of the counts."""
        names = shown_counts([self])
        return Table(title, names, [[getattr(self, name) for name in names]])


def total(counts: Sequence[Counts]) -> dict[str, int]:
    """Return the sums of counts, by their names."""
    return {each.name: sum(getattr(some, each.name) for some in counts) for each in fields(Counts)}


def shown_counts(counts: Sequence[Counts]) -> list[str]:
    """Return the names of the counts to show: rare ones only if one of them is not zero."""
    sums = total(counts)
    return [name for name in sums if name in _ALWAYS or sums[name]]


@dataclass(frozen=True, slots=True)
class WrittenAtEnd:
    """What a job wrote for its group, in records."""

    written: int = 0
    """Letters that are now confirmed in the dead-letter topic, also those that an earlier attempt had written."""
    dropped: int = 0
    """Records closed without a letter, as the group's config requires."""
    left: int = 0
    """Records that still wait."""
    warning: str | None = None
    """How many still wait, why, and what to do."""

    def __add__(self, later: WrittenAtEnd) -> WrittenAtEnd:
        """Return what both have written, and what waits after the second."""
        return WrittenAtEnd(
            self.written + later.written, self.dropped + later.dropped, later.left, later.warning
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport(Counts):
    """One round: the leased records and their outcomes, in records."""

    number: int
    lease_ids: tuple[int, ...]
    lag: int
    stage_seconds: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """The duration of the round."""
        return sum(self.stage_seconds.values())

    def table(self) -> Table:
        """Return its figures."""
        return _rounds(f"round {self.number}", (self,))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(Counts):
    """All rounds of a run, and their sums. `lag` and `drained` are as of the end of the run; records in flight are
    lag. `lost` are the records of the group that retention removed before they were processed, since the last
    report of a run, including those that were never leased or were lost between two runs.
    """

    group: str
    rounds: tuple[RoundReport, ...] = ()
    lag: int = 0
    drained: bool = False
    """Whether nothing was left to lease when the run ended; other members may hold records, and records that this run
    has released are left to a later one. False if nothing was assigned, and if further records came meanwhile.
    """
    leaderless: tuple[str, ...] = ()
    """The partitions of the topics that had no leader. Nothing was leased from them, and their lag is not known."""
    seconds: float = 0.0
    start_seconds: float = 0.0
    """The part of `seconds` before the first round: the output is opened, the handler is called without records."""
    remark: str | None = None
    """Remarks for the user: why there was nothing more to lease although records remain, dead letters that are held,
    columns that differ from those of earlier rows. None if there is no remark.
    """
    dead_letters: WrittenAtEnd | None = None
    """The dead letters of the group that the run has written; None if none waited or a service writes them."""
    errors: tuple[str, ...] = ()
    """The first record that was released or rejected with an error: its offset, its outcome, and the error."""

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
        """Records done per second of the rounds: the start does not count."""
        seconds = self.seconds - self.start_seconds
        return self.done / seconds if seconds > 0 else 0.0

    def table(self) -> Table:
        """Return one row for each round, and the remarks of the run."""
        letters = self.dead_letters
        state = "drained" if self.drained and not self.lag else f"lag {self.lag:,}"
        if self.leaderless:
            state = f"lag {self.lag:,} or more"
        return _rounds(
            f"run of group {self.group}: {plural(self.leased, 'record')} leased in "
            f"{self.seconds - self.start_seconds:,.1f} s ({self.rate:,.0f}/s) after a start of "
            f"{self.start_seconds:,.1f} s, {self.accepted:,} accepted, {state}",
            self.rounds,
            *(f"first failure: {error}" for error in self.errors),
            words_of_losses(self.group, self.lost) if self.lost else None,
            self.remark,
            f"dead letters: {letters.written:,} written" if letters and letters.written else None,
            letters.warning if letters else None,
        )


def words_of_losses(group: str, lost: int) -> str:
    """Return the message on lost records."""
    return (
        f"group {group} has lost {plural(lost, 'record')}: retention removed them before they were processed. Give "
        "their topics a longer retention (retention.ms, retention.bytes), or run more often, so that a run leases "
        "each record before it is removed"
    )


def _rounds(title: str, rounds: Sequence[RoundReport], *remarks: str | None) -> Table:
    columns = [*shown_counts(rounds), "lag", "seconds"]
    rows: list[list[Cell]] = [[each.number, *(getattr(each, name) for name in columns)] for each in rounds]
    return Table(title, ("round", *columns), rows, remarks)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowReport(Counts):
    """The sums of all runs until following ended."""

    group: str
    runs: int = 0
    """Runs that leased something, wrote dead letters, or found that records were lost."""
    rounds: int = 0
    seconds: float = 0.0

    def after(self, run: RunReport) -> Self:
        """Return the sums with one more run."""
        return type(self)(
            group=self.group, runs=self.runs + 1, rounds=self.rounds + len(run.rounds), **total([self, run])
        )

    def table(self) -> Table:
        """Return the sums."""
        return self.shown(
            f"followed group {self.group} for {self.seconds:,.0f} s: {plural(self.runs, 'run')}, "
            f"{plural(self.rounds, 'round')}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgedRecords(Counts):
    """The result of the acknowledgement of a lease."""

    lag: int = 0

    def table(self) -> Table:
        """Return the counts."""
        return self.shown(f"acknowledged {plural(self.leased, 'record')}; lag {self.lag:,}")


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the accepted rows of a sink are, in the terms of a data catalog; None if a term does not apply."""

    kind: str | None = None
    """The storage, such as `postgres` or `parquet`."""
    table: str | None = None
    uri: str | None = None
    """An address without a user and a password."""
    for_the_queue: bool = False
    """Whether the rows also have the columns for the queue (`outcome`, `error`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullRun:
    """What a run has done, and where its accepted rows are."""

    report: RunReport
    sink: str
    path: str | None
    """The folder of the files; None if the rows are not in files."""
    stored: Stored
    columns: Mapping[str, str]
    """The columns that runs have written so far, and their types in Spark's words."""
    comments: Mapping[str, str] = field(default_factory=dict)
    """The comments that the handler's result has on some of them."""
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns of the record that some of them are made of, as far as Spark's plan shows it."""
    swept_leases: int
    swept_records: int
    removed_folders: int
