"""Who writes the dead letters of a job's group, where no service does?

The job itself, at the end of a run or of a block of `lease`: for a limited time, each letter exactly once (by
`sharequeue.deadletters.writer`). An error here does not fail the job: it is reported as a warning, and the records
wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, Self

from sharequeue.deadletters.batches import Step
from sharequeue.deadletters.topic import TOPIC_NAME, inputs_of, why_held
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.errors import first_line
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.values import SharePartition

__all__ = ["DeadLettersLeft", "Drained", "about_letters", "drain_at_end"]

_log = logging.getLogger(__name__)

DRAIN_SECONDS = 60.0
"""A job's drain ends with the batches at which it is after this time."""
BATCH_RECORDS = 5_000


class DeadLettersLeft(UserWarning):
    """Dead letters of the group still wait after a job's own drain; the message says how many and why."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What a job's own drain did for its group, in records."""

    written: int = 0
    """Letters that are in the dead-letter topic now and were not before; or were, and are only known now."""
    dropped: int = 0
    """Closed without a letter, because the group's config says so."""
    left: int = 0
    """Still on the way."""
    warning: DeadLettersLeft | None = None
    """Why some were left."""


class _Reported(Protocol):
    dead_letters: Drained | None


class DrainAtEnd:
    """A block at whose end dead letters are written; `report_to` then has their figures.

    They are not written after an interrupt, nor when the block ended before `report_to` was set.
    """

    def __init__(self, settings: Settings, state: State, configs: GroupConfigs) -> None:
        self._arguments = (settings, state, configs)
        self.report_to: _Reported | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.report_to is not None and (kind is None or issubclass(kind, Exception)):
            self.report_to.dead_letters = drain_at_end(*self._arguments)


def drain_at_end(settings: Settings, state: State, configs: GroupConfigs) -> Drained | None:
    """Write what waits of a group; None where nothing does, or a service is there to write it. Raises nothing."""
    waits = f"whether dead letters of group {configs.group_id} wait is not known"
    try:
        if state.dead_letters.service_drains() or not _waiting(state, configs.group_id):
            return None
        waits = f"dead letters of group {configs.group_id} wait, and no service writes them"
        drained = _drain(settings, state, configs)
    except Exception as error:
        reason = first_line(error)
        drained = Drained(warning=_left(configs.group_id, waits, reason))
    if drained.warning is not None:
        _log.warning("%s", drained.warning)
    return drained


def _drain(settings: Settings, state: State, configs: GroupConfigs) -> Drained:
    ends_at = time.monotonic() + DRAIN_SECONDS
    stop, late = threading.Event(), threading.Event()

    def on_step(step: Step, source: SharePartition) -> None:
        if time.monotonic() > ends_at:
            late.set()
            stop.set()

    # Whoever takes over writes it as well; we have been asked for something else.
    report = DeadLetterWriter(
        settings,
        state,
        configs.group_id,
        configs,
        batch_records=BATCH_RECORDS,
        on_step=on_step,
        stop=stop,  # which the writer sets itself when it ends
        takeovers=0,
        try_again_seconds=0,
    ).drain(_log.info)
    left = _waiting(state, configs.group_id)
    reasons = sorted({held.reason for held in report.held})
    if late.is_set():
        reasons.append(f"writing them took longer than {DRAIN_SECONDS:g} s")
    if not reasons and left:
        reasons.append("another writer is at them, or they were given up just now")
    waits = f"{left:,} dead letters of group {configs.group_id} "
    lasting = any(held.lasting for held in report.held)
    waits += "are held until somebody acts" if lasting else "wait, and no service writes them"
    return Drained(
        written=report.written + report.resumed,
        dropped=report.dropped,
        left=left,
        warning=_left(configs.group_id, waits, "; ".join(reasons)) if left else None,
    )


def _waiting(state: State, group: str) -> int:
    return sum(status.archiving for status in state.figures.describe(group))


def _left(group: str, waits: str, reason: str) -> DeadLettersLeft:
    return DeadLettersLeft(
        f"{waits}: {reason.removesuffix('.')}. Then `sharequeue dlq drain --group {group} --execute` writes them, "
        "and so does the next run"
    )


def about_letters(
    settings: Settings, state: State, configs: GroupConfigs, topics: Collection[str], given_up: int = 0
) -> str | None:
    """Return what to say of the dead letters of these topics that are not written, or of `given_up` records that get
    none because the group has no dead-letter topic; None where there is nothing to say.
    """
    group = configs.group_id
    waiting = sum(each.archiving for each in state.figures.describe(group) if each.topic in topics)
    if waiting:
        reason = why_held(
            settings, configs, ServiceConfigs.stored(state.database), inputs_of(state.database, group)
        )
        if reason is None:
            return f"{waiting:,} records are on the way to the dead-letter topic"
        if configs.dead_letter_drop_enable:
            return f"{waiting:,} dead letters are dropped, as the group's config says: {reason}"
        return (
            f"{waiting:,} dead letters are held until somebody acts: {reason} Then the service writes them, or "
            f"`sharequeue dlq drain --group {group} --execute`"
        )
    if given_up and not configs.dead_letter_topic:
        return (
            f"{given_up:,} records were given up, and group {group} has no dead-letter topic: they are among the "
            "exceptions of the output, and nowhere else. To keep such records: sharequeue configs alter "
            f"--group {group} --set {TOPIC_NAME}=…"
        )
    return None
