"""Where does the output of a job go, and what is promised there?

Every round writes its rows to files first, by lease (`write.py`), and takes its outcomes from them. A sink says
what becomes of the accepted ones:

- `ParquetByLease` leaves them where they are: the manifest makes each count once, whatever was killed when.
- `PostgresTable` (`sink_postgres.py`) moves them into a table in the acknowledgement's own transaction: exactly
  once.
- `AtLeastOnce` hands them to a function of the user's before the acknowledgement: again after a crash in between.

Released and rejected records stay in `<sink>-exceptions` for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sharequeue.settings import Settings
from sharequeue.spark.outcomes.acknowledging import acknowledge
from sharequeue.spark.outcomes.outcomes import Answer
from sharequeue.spark.output.files import Files, literal
from sharequeue.spark.output.leases import ELSEWHERE, Written, lease_folder
from sharequeue.state import State
from sharequeue.values import Acknowledged, Lease, LeaseOutput

if TYPE_CHECKING:
    from sharequeue.spark.job import ShareGroupJob


class SinkRefused(Exception):
    """A sink cannot take this job's output; the message says what is wrong and what to do. Nothing was leased, or
    what was leased has been given back.
    """


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run writes: its settings, its state, its Spark, its job."""

    settings: Settings
    state: State
    spark: SparkSession
    job: ShareGroupJob


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a lease has for its sink: the folder of its accepted rows, None without any, and their number."""

    lease: Lease
    folder: str | None
    rows: int


class OpenSink(Protocol):
    """A sink at work in one run. The calls come in this order, all but the first once a round."""

    @property
    def stages(self) -> bool:
        """Whether there is something to do between the writing and the acknowledgements."""
        ...

    def fits(self, columns: StructType) -> None:
        """Raise SinkRefused when rows with these columns cannot be taken; nothing was written yet."""
        ...

    def stage(self, written: Written) -> None:
        """Prepare what the files of a round hold; nothing of it may count yet."""
        ...

    def output(self, accepted: Accepted) -> LeaseOutput | None:
        """What counts with the acknowledgement of a lease, where that is all there is to do: then one call answers
        many leases. None where the sink must `acknowledge` each itself.
        """
        ...

    def acknowledge(
        self, accepted: Accepted, answered: Answer, outputs: Sequence[LeaseOutput]
    ) -> Acknowledged:
        """Answer a lease, and have its accepted rows count with that."""
        ...


class Sink(Protocol):
    """Where accepted rows go: a value that a job carries."""

    def open(self, place: Place) -> OpenSink:
        """Make ready for a run. Raises SinkRefused before anything is leased."""
        ...

    def sweep(self, state: State, job: ShareGroupJob, *, dry_run: bool) -> list[str]:
        """Remove what ended leases have left outside the files; answers what."""
        ...


@dataclass(frozen=True, slots=True)
class ParquetByLease:
    """The files are the output, and each counts once: readers go by the manifest."""

    def open(self, place: Place) -> OpenSink:
        """Make ready for a run."""
        return _OpenFiles(place)

    def sweep(self, state: State, job: ShareGroupJob, *, dry_run: bool) -> list[str]:
        """Nothing: the files are swept for every sink."""
        return []


@dataclass(frozen=True, slots=True)
class _OpenFiles:
    place: Place
    stages = False

    def fits(self, columns: StructType) -> None: ...

    def stage(self, written: Written) -> None: ...

    def output(self, accepted: Accepted) -> LeaseOutput:
        job, state = self.place.job, self.place.state
        folder = lease_folder(self.place.settings, state, job.sink, accepted.lease.lease_id)
        return LeaseOutput(job.sink, folder, accepted.rows)

    def acknowledge(
        self, accepted: Accepted, answered: Answer, outputs: Sequence[LeaseOutput]
    ) -> Acknowledged:
        return acknowledge(self.place.state, accepted.lease, answered, [self.output(accepted), *outputs])


WriteLease = Callable[[DataFrame, Lease], None]


@dataclass(frozen=True, slots=True)
class AtLeastOnce:
    """A function of the user's gets the accepted rows of one lease, and then the lease is acknowledged.

    **At least once:** killed between the two, or refused because its lock was lost meanwhile, the same records come
    again under another lease. `topic`, `partition` and `offset` stay the same: a writer that keys by them, as an
    upsert does, has each record once in effect. It is not called for a lease without accepted rows. What it raises
    ends the run; the leases that were not acknowledged are given back.
    """

    write: WriteLease

    def open(self, place: Place) -> OpenSink:
        """Make ready for a run."""
        return _OpenWriter(place, self.write)

    def sweep(self, state: State, job: ShareGroupJob, *, dry_run: bool) -> list[str]:
        """Nothing: what the function has written is its own matter."""
        return []


@dataclass(frozen=True, slots=True)
class _OpenWriter:
    place: Place
    write: WriteLease
    stages = False

    def fits(self, columns: StructType) -> None: ...

    def stage(self, written: Written) -> None: ...

    def output(self, accepted: Accepted) -> None: ...

    def acknowledge(
        self, accepted: Accepted, answered: Answer, outputs: Sequence[LeaseOutput]
    ) -> Acknowledged:
        place = self.place
        if accepted.folder is not None:
            self.write(place.spark.read.parquet(literal(accepted.folder)), accepted.lease)
        name = getattr(self.write, "__name__", type(self.write).__name__)
        output = LeaseOutput(place.job.sink, f"{ELSEWHERE}at least once by {name}", accepted.rows)
        answer = acknowledge(place.state, accepted.lease, answered, [output, *outputs])
        discard(place, accepted)
        return answer


def discard(place: Place, accepted: Accepted) -> None:
    """Remove a lease's files once its rows count elsewhere; whoever is killed before leaves them to the sweep."""
    if accepted.folder is not None:
        Files(place.spark, accepted.folder).remove(accepted.folder)
