"""Put into words that a process died while it handled records.

A process that dies gives no reason: Spark reports that a Python worker exited, or that an executor was lost
(`job_errors.py`). Its records are suspects, and come again in parts (`isolated_jobs.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sharequeue.domain.errors import PipelineError, first_line
from sharequeue.domain.names import listed, plural
from sharequeue.domain.values import Lease
from sharequeue.spark.job_errors import SPARK_ERRORS, cause_of, killed_by

WHAT_TO_CHECK = (
    "Check whether memory ran out (`dmesg` of the machine, events of the container), and native libraries, "
    "`os._exit` and signals in the handler; `spark.python.worker.faulthandler.enabled=true` adds the worker's stack"
)


class ProcessKilled(PipelineError):
    """A process died while it handled records, and the run could not go on with parts of them. The message has the
    records, what becomes of them, what to check, and what Spark reports.
    """

    retriable = True


def reason_for_letters(error: BaseException) -> str:
    """Return why records were not acknowledged, as `Class: message`, for their dead letters."""
    if killed := killed_by(error):
        return f"{ProcessKilled.__name__}: killed its process: {killed}"
    return (
        cause_of(error) if isinstance(error, SPARK_ERRORS) else f"{type(error).__name__}: {first_line(error)}"
    )


def parts_of(lease: Lease, delivery_limit: int) -> int:
    """Return in how many parts the suspects of a lease come again (``30_state/lapses.sql``)."""
    parts = 0
    for delivery in lease.deliveries:
        records, left = delivery.offsets.count, delivery_limit - delivery.delivery_count
        divided = records if left <= 0 else math.ceil(records ** (1 / left) - 1e-9)
        parts += math.ceil(records / math.ceil(records / divided))
    return parts


def words_of_records(leases: Sequence[Lease]) -> str:
    """Name the records of leases: their number, share-partitions and leases."""
    records = plural(sum(lease.offsets.count for lease in leases), "record")
    places = listed(sorted({str(lease.share_partition) for lease in leases}), most=10)
    return f"{records} of {places} (leases {listed([str(lease.lease_id) for lease in leases], most=10)})"


def words_of_suspects(leases: Sequence[Lease], delivery_limit: int) -> str:
    """Return what becomes of records with which a process died."""
    if all(lease.last_attempt for lease in leases):
        return "This was its last delivery, alone: it is given up, and its dead letter has the reason"
    left = max(delivery_limit - d.delivery_count for lease in leases for d in lease.deliveries)
    more = plural(max(left, 1), "more failure")
    if all(lease.offsets.count == 1 for lease in leases):
        return f"A record that is alone kills its process: after up to {more}, by design, it is given up"
    parts = plural(sum(parts_of(lease, delivery_limit) for lease in leases), "part")
    return (
        f"These records are suspects: one of them may have killed the process. They are delivered again in {parts}, "
        "each a separate Spark job. The part with the cause fails again and is divided again, by design: up to "
        f"{more}, until the cause is alone and is given up. All other records are processed"
    )


def words_of_given_up(leases: Sequence[Lease]) -> str | None:
    """Return a remark on records that were given up because they killed their process, one in each lease; or None."""
    if not leases:
        return None
    places = [f"{lease.share_partition} offset {lease.offsets.first}" for lease in leases]
    return f"given up, because it killed its process alone at its last delivery: {listed(places)}"
