"""The sink that calls a user's writer before the acknowledgement, and therefore at least once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame

from sharequeue.domain.values import Lease
from sharequeue.outputs.manifest import ELSEWHERE
from sharequeue.spark.output.files import literal
from sharequeue.spark.sinks.interface import AcceptedRows, OpenSink, Sink, SinkContext

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

    def put(self, rows: AcceptedRows) -> str:
        if rows.folder is not None:
            self.write(self.context.spark.read.parquet(literal(rows.folder)), rows.lease)
        name = getattr(self.write, "__name__", type(self.write).__name__)
        return f"{ELSEWHERE}at least once by {name}"
