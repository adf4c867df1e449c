"""Write the dead letters of a job's group at the end of the job, unless a service writes them.

The job writes them at the end of a run or of a `lease` block, for a limited time, each letter exactly once
(`sharequeue.deadletters.writer`). A run that can lease nothing else, because they fill a window, has them written
before (`make_room`). An error here does not fail the job: it is reported as a warning, and the records
wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection

from sharequeue.deadletters.outbox import BatchStep
from sharequeue.deadletters.topic import TOPIC_NAME, why_held
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.errors import first_line
from sharequeue.domain.names import plural
from sharequeue.domain.results.runs import WrittenAtEnd
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import GroupConfigs
from sharequeue.spark.waits import named_wait
from sharequeue.state import State

__all__ = ["about_letters", "make_room", "write_letters_at_end"]

_log = logging.getLogger(__name__)

WRITE_SECONDS = 60.0
"""The time after which a job's writer starts no further batch."""
BATCH_RECORDS = 5_000
SERVICE_SECONDS = 15.0
"""The longest wait for the service, which looks for dead letters every 2 s, to write those that fill a window."""
LOOK_SECONDS = 0.5


def make_room(
    settings: Settings, state: State, configs: GroupConfigs, share_partitions: Collection[SharePartition]
) -> tuple[bool, WrittenAtEnd]:
    """Have the dead letters written that fill the window of a share-partition, so that more can be leased.

    Return whether a window that was full has room now, and what was written here: nothing beside a service that
    writes them, for which this waits, for a limited time.
    """

    def full(unless_held: bool = False) -> int:
        return sum(
            each.share_partition in share_partitions
            and each.blocked_by == "window"
            and each.archiving > 0
            and not (unless_held and each.held_reason)
            for each in state.figures.describe(configs.group_id)
        )

    if not (before := full()):
        return False, WrittenAtEnd()
    if (written := write_letters_at_end(settings, state, configs)) is not None:
        return full() < before, written
    ends_at = time.monotonic() + SERVICE_SECONDS
    with named_wait(f"the service to write the dead letters of group {configs.group_id}"):
        while full(unless_held=True) == before and time.monotonic() < ends_at:
            time.sleep(LOOK_SECONDS)
    return full() < before, WrittenAtEnd()


def write_letters_at_end(settings: Settings, state: State, configs: GroupConfigs) -> WrittenAtEnd | None:
    """Write the waiting dead letters of a group; return None if none wait or a service writes them. Never raises."""
    waits = f"could not check for waiting dead letters of group {configs.group_id}"
    try:
        if state.dead_letters.service_writes_letters() or not state.dead_letters.waiting(configs.group_id):
            return None
        waits = f"dead letters of group {configs.group_id} wait, and no service writes them"
        with named_wait(f"the dead letters of group {configs.group_id} to be written"):
            written = _write(settings, state, configs)
    except Exception as error:
        written = WrittenAtEnd(warning=_left(configs.group_id, waits, first_line(error)))
    if written.warning is not None:
        _log.warning("%s", written.warning)
    return written


def _write(settings: Settings, state: State, configs: GroupConfigs) -> WrittenAtEnd:
    ends_at = time.monotonic() + WRITE_SECONDS
    stop = threading.Event()

    def on_step(step: BatchStep, source: SharePartition) -> None:
        if time.monotonic() > ends_at:
            stop.set()

    # The process that takes over writes them as well; this process was asked to stop.
    report = DeadLetterWriter(
        settings,
        state,
        configs.group_id,
        configs,
        batch_records=BATCH_RECORDS,
        on_step=on_step,
        stop=stop,  # the writer also sets it when it ends
        takeovers=0,
        try_again_seconds=0,
    ).write(_log.info)
    left = sum(state.dead_letters.waiting(configs.group_id).values())
    reasons = sorted({held.reason for held in report.held})
    if time.monotonic() > ends_at:
        reasons.append(f"writing them took longer than {WRITE_SECONDS:g} s")
    if not reasons and left:
        reasons.append("another writer is writing them, or they were given up just now")
    waits = f"{left:,} dead letters of group {configs.group_id} "
    lasting = any(held.lasting for held in report.held)
    waits += "are held until an operator acts" if lasting else "wait, and no service writes them"
    return WrittenAtEnd(
        written=report.written + report.resumed,
        dropped=report.dropped,
        left=left,
        warning=_left(configs.group_id, waits, "; ".join(reasons)) if left else None,
    )


def _left(group: str, waits: str, reason: str) -> str:
    return (
        f"{waits}: {reason.removesuffix('.')}. Afterwards `sharequeue dlq write --group {group} --execute` writes "
        "them, and so does the next run"
    )


def about_letters(
    settings: Settings, state: State, configs: GroupConfigs, topics: Collection[str], given_up: int = 0
) -> str | None:
    """Return a remark on unwritten dead letters of these topics; None if there is nothing to report.

    The remark is also made for `given_up` records that get no letters because the group has no dead-letter topic.
    """
    group = configs.group_id
    waiting = sum(state.dead_letters.waiting(group, topics).values())
    if waiting:
        reason = why_held(settings, state.database, configs)
        if reason is None:
            return f"on the way to the dead-letter topic: {plural(waiting, 'record')}"
        if configs.dead_letter_drop_enable:
            return f"{waiting:,} dead letters are dropped, by the group's config: {reason}"
        return (
            f"{waiting:,} dead letters are held until an operator acts: {reason} Then the service writes them, or "
            f"`sharequeue dlq write --group {group} --execute`"
        )
    if given_up and not configs.dead_letter_topic:
        return (
            f"{given_up:,} records were given up, and group {group} has no dead-letter topic: they are only in the "
            f"exceptions of the output. To get dead letters: sharequeue configs alter --group {group} --set "
            f"{TOPIC_NAME}=…"
        )
    return None
