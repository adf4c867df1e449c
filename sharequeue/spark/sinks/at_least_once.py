"""The sink that calls a user's writer before the acknowledgement, and therefore at least once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame

from sharequeue.domain.values import Acknowledged, Lease, LeaseOutput
from sharequeue.spark.outcomes.acknowledging import acknowledge
from sharequeue.spark.output.files import literal
from sharequeue.spark.output.manifest import ELSEWHERE
from sharequeue.spark.sinks.interface import (
    Accepted,
    OpenSink,
    Sink,
    SinkContext,
    WrittenRound,
    discard,
)

WriteLease = Callable[[DataFrame, Lease], None]


@dataclass(frozen=True, slots=True)
class AtLeastOnce(Sink):
    """A function of your own, for any other system. It gets every accepted record at least once.

    The sink passes the accepted rows of one lease to the function, and then acknowledges the lease.
    **At least once:** when the run is killed between the two, or refused because its lock was lost meanwhile, the
    same records are redelivered under another lease. `topic`, `partition` and `offset` stay the same: a writer that
    uses them as a key, as an upsert does, has the effect of each record once. It is not called for a lease without
    accepted rows. An error that it raises ends the run; the leases that were not acknowledged are given back.
    """

    write: WriteLease

    @contextmanager
    def open(self, context: SinkContext) -> Iterator[OpenSink]:
        """Prepare a run."""
        yield _OpenWriter(context, self.write)


@dataclass(frozen=True, slots=True)
class _OpenWriter(OpenSink):
    context: SinkContext
    write: WriteLease

    def acknowledge(self, round: WrittenRound) -> list[Acknowledged]:
        with round.stage("acknowledge"):
            return round.one_by_one(self._acknowledge)

    def _acknowledge(self, accepted: Accepted) -> Acknowledged:
        context = self.context
        if accepted.folder is not None:
            self.write(context.spark.read.parquet(literal(accepted.folder)), accepted.lease)
        name = getattr(self.write, "__name__", type(self.write).__name__)
        output = LeaseOutput(context.names.sink, f"{ELSEWHERE}at least once by {name}", accepted.rows)
        acknowledged = acknowledge(
            context.state, accepted.lease, accepted.acknowledgement, [output, *accepted.outputs]
        )
        discard(context, accepted)
        return acknowledged
