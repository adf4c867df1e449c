"""Recognise that a process died while it handled records, and put it into words.

A process that dies gives no reason: Spark reports that a Python worker exited, or that an executor was lost. Its
records are suspects, and come again in parts (`isolated_jobs.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sharequeue.domain.errors import first_line
from sharequeue.domain.names import listed, plural
from sharequeue.domain.values import Lease
from sharequeue.spark.handler import PipelineError

WORKER_EXITED = "Python worker exited unexpectedly"
_KILLED = re.compile(rf"(?:{WORKER_EXITED}|ExecutorLostFailure)[^\n]*")
_ADVICE = ". Consider setting"
"""Spark's own advice follows: ours has it."""
_LINES = 6
_CHARACTERS = 300
WHAT_TO_CHECK = (
    "Check whether memory ran out (`dmesg` of the machine, events of the container), and native libraries, "
    "`os._exit` and signals in the handler; `spark.python.worker.faulthandler.enabled=true` adds the worker's stack"
)


class ProcessKilled(PipelineError):
    """A process died while it handled records, and the run could not go on with parts of them. The message has the
    records, what becomes of them, what to check, and what Spark reports.
    """

    retriable = True


def killed_by(error: BaseException) -> str | None:
    """Return in a line how a process died, if that is why a Spark job failed; None for any other error."""
    found = _KILLED.search(str(error))
    return found[0].partition(_ADVICE)[0].strip()[:_CHARACTERS] if found else None


def cause_of(error: BaseException) -> str:
    """Return why a Spark job failed, in one line: how its process died, the message of its lost task, or the last
    line of a traceback.
    """
    if killed := killed_by(error):
        return killed
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    lost = next((line for line in lines if "Lost task" in line), None)
    return lost.partition("Lost task")[2].partition("): ")[2] if lost else lines[-1]


def reason_for_letters(error: BaseException) -> str:
    """Return why records were not acknowledged, as `Class: message`, for their dead letters."""
    if killed := killed_by(error):
        return f"{ProcessKilled.__name__}: killed its process: {killed}"
    of_spark = isinstance(error, PySparkException | Py4JError)
    return cause_of(error) if of_spark else f"{type(error).__name__}: {first_line(error)}"


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


def what_spark_says(error: BaseException) -> str:
    """Return the lines of Spark's error that are not stack frames."""
    lines = (line.strip() for line in str(error).splitlines())
    said = dict.fromkeys(
        line[:_CHARACTERS]
        for line in lines
        if line and not re.match(r"at |\.\.\. \d+ more|Suppressed: |Driver stacktrace", line)
    )
    return "\n".join(["Spark reports:", *(f"  {line}" for line in list(said)[:_LINES])])
