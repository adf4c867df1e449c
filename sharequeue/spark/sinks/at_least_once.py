"""How do accepted rows get to a writer of the user's own? Before the acknowledgement, and so at least once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from sharequeue.spark.outcomes.acknowledging import acknowledge
from sharequeue.spark.outcomes.missing import Acknowledgement
from sharequeue.spark.output.files import literal
from sharequeue.spark.output.folders import SinkNames
from sharequeue.spark.output.lease_files import Written
from sharequeue.spark.output.manifest import ELSEWHERE
from sharequeue.spark.sinks.interface import Accepted, OpenSink, SinkContext, discard
from sharequeue.state import State
from sharequeue.values import Acknowledged, Lease, LeaseOutput

WriteLease = Callable[[DataFrame, Lease], None]


@dataclass(frozen=True, slots=True)
class AtLeastOnce:
    """A function of the user's gets the accepted rows of one lease, and then the lease is acknowledged.

    **At least once:** when the run is killed between the two, or refused because its lock was lost meanwhile, the
    same records come again under another lease. `topic`, `partition` and `offset` stay the same: a writer that uses
    them as a key, as an upsert does, has each record once in effect. It is not called for a lease without accepted
    rows. An error that it raises ends the run; the leases that were not acknowledged are given back.
    """

    write: WriteLease

    def open(self, context: SinkContext) -> OpenSink:
        """Make ready for a run."""
        return _OpenWriter(context, self.write)

    def sweep(self, state: State, names: SinkNames, *, dry_run: bool) -> list[str]:
        """Return nothing: what the function has written is not known here."""
        return []


@dataclass(frozen=True, slots=True)
class _OpenWriter:
    context: SinkContext
    write: WriteLease
    stages = False
    transfers = False

    def fits(self, handled: DataFrame) -> DataFrame:
        return handled

    def stage(self, written: Written) -> None: ...

    def transfer(self) -> None: ...

    def output(self, accepted: Accepted) -> None: ...

    def close(self) -> None: ...

    def acknowledge(
        self, accepted: Accepted, acknowledgement: Acknowledgement, outputs: Sequence[LeaseOutput]
    ) -> Acknowledged:
        context = self.context
        if accepted.folder is not None:
            self.write(context.spark.read.parquet(literal(accepted.folder)), accepted.lease)
        name = getattr(self.write, "__name__", type(self.write).__name__)
        output = LeaseOutput(context.names.sink, f"{ELSEWHERE}at least once by {name}", accepted.rows)
        acknowledged = acknowledge(context.state, accepted.lease, acknowledgement, [output, *outputs])
        discard(context, accepted)
        return acknowledged
