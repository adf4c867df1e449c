"""What if the files are the output? Then nothing is left to do: the manifest makes each lease count once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from sharequeue.spark.outcomes.acknowledging import acknowledge
from sharequeue.spark.outcomes.missing import Acknowledgement
from sharequeue.spark.output.folders import SinkNames, no_files
from sharequeue.spark.output.lease_files import Written
from sharequeue.spark.sinks.interface import Accepted, OpenSink, SinkContext
from sharequeue.state import State
from sharequeue.values import Acknowledged, LeaseOutput


@dataclass(frozen=True, slots=True)
class ParquetByLease:
    """The files are the output, and each counts once: readers use the manifest."""

    def open(self, context: SinkContext) -> OpenSink:
        """Make ready for a run."""
        return _OpenFiles(context)

    def sweep(self, state: State, names: SinkNames, *, dry_run: bool) -> list[str]:
        """Return nothing: the files are swept for every sink."""
        return []


@dataclass(frozen=True, slots=True)
class _OpenFiles:
    context: SinkContext
    stages = False
    transfers = False

    def fits(self, handled: DataFrame) -> DataFrame:
        return handled

    def stage(self, written: Written) -> None: ...

    def transfer(self) -> None: ...

    def close(self) -> None: ...

    def output(self, accepted: Accepted) -> LeaseOutput:
        sink, state = self.context.names.sink, self.context.state
        folder = accepted.folder or no_files(self.context.settings, state, sink, accepted.lease.lease_id)
        return LeaseOutput(sink, folder, accepted.rows)

    def acknowledge(
        self, accepted: Accepted, acknowledgement: Acknowledgement, outputs: Sequence[LeaseOutput]
    ) -> Acknowledged:
        return acknowledge(
            self.context.state, accepted.lease, acknowledgement, [self.output(accepted), *outputs]
        )
