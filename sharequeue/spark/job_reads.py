"""Read the records of a Spark job in another way after an error that shows that it is needed.

Records that are kept are read from files, all others by scans of Spark's connector. If kept files are damaged, the
records are read from the log. If the connector cannot represent a record, those of the log are read by offset. Both
may happen to one job, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from sharequeue.domain.values import Lease
from sharequeue.spark.job_errors import SPARK_ERRORS
from sharequeue.spark.kept_records import NOTHING_KEPT, KeptFiles, KeptReads
from sharequeue.spark.reading.source import cannot_be_scanned, refuse_without_client


@dataclass(slots=True)
class JobReads:
    """How the records of one job are read, until an error changes it.

    `handle` returns the handler's result for the records of the leases: from what is kept, and from the log by scans
    or by offset.
    """

    leases: Sequence[Lease]
    files: KeptFiles | None
    kept: KeptReads
    handle: Callable[[KeptReads, bool], DataFrame]
    by_offset: bool = False

    def handled(self) -> DataFrame:
        """Return the handler's result. The handler may read records while Spark plans it."""
        try:
            return self.handle(self.kept, self.by_offset)
        except SPARK_ERRORS as error:
            if (other := self.otherwise(error)) is None:
                raise
        return other

    def otherwise(self, error: Exception) -> DataFrame | None:
        """Return the handler's result to use instead after an error of the job; None if no other way would help.

        Raises InvalidTimestamp if the executors cannot read by offset.
        """
        if self.files is not None and self.files.found_damaged(error, self.leases, self.kept):
            self.kept = NOTHING_KEPT
        elif self.by_offset:
            refuse_without_client(error)
            return None
        elif cannot_be_scanned(error):
            self.by_offset = True
        else:
            return None
        return self.handled()
