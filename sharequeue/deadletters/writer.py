"""Write archived records to the dead-letter topic, each exactly once.

Second phase of KIP-1191: ARCHIVING records go to the topic and become ARCHIVED once the broker has confirmed them, in
numbered batches of one share-partition. A batch stays open until it is closed, so the next writer resumes what a dead
one left. If the topic cannot be written, Kafka drops the records. Here they are held, and the report has the reason
and what to do; with the group config `sharequeue.dead.letter.drop.enable` they are dropped as in Kafka. How a batch
is written: `deadletters.outbox` and `deadletters.batches`; which topic may take it: `deadletters.topic`; what a
letter contains: `deadletters.letters`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.deadletters.batches import LetterBatches, marker_group
from sharequeue.deadletters.outbox import BatchDone, BatchStep, Fenced, Outbox
from sharequeue.deadletters.topic import (
    NO_TOPIC,
    TIMEOUT_SECONDS,
    CannotWrite,
    DeadLetterRules,
    DeadLetterTopic,
    TopicKeeper,
    inputs_of,
    unforeseen,
)
from sharequeue.domain.errors import BrokerNotAvailable, ShareError
from sharequeue.domain.names import plural
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import DeadLetterBatch, SharePartition
from sharequeue.groups.configs import GroupConfigs
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.reading import RecordReader
from sharequeue.kafka.topics import SETTLE_SECONDS, Topics
from sharequeue.kafka.transactions import MarkerGroup
from sharequeue.state import State

BATCH_RECORDS = 20_000
PARALLEL = 4
"""Share-partitions written concurrently: while one waits for its commit, another produces."""
TAKEOVERS = 5
"""How often a call starts a share-partition again after another writer took it over."""
PATIENCE_SECONDS = 2.0
"""How long the writer that took over may make no progress before it is treated as dead."""
_LOOK_AGAIN_SECONDS = 0.1
TRY_AGAIN_SECONDS = 30.0
"""How long a call without progress repeats attempts after a passing error, such as a broker that does not
respond."""
_TRY_AGAIN_AFTER_SECONDS = 0.5

Progress = Callable[[str], None]
OnStep = Callable[[BatchStep, SharePartition], None]


@dataclass(frozen=True, slots=True)
class HeldLetters:
    """Records that stay ARCHIVING because their topic cannot be written: why, and what to do."""

    share_partition: SharePartition
    records: int
    reason: str
    lasting: bool = False
    """Whether waiting does not help, and an operator must act."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The result of a call for one share-partition, in records."""

    share_partition: SharePartition
    written: int = 0
    resumed: int = 0
    """Records written by an earlier writer that died before it closed the batch; only closed by this one."""
    dropped: int = 0
    batches: int = 0
    takeovers: int = 0
    """How often another writer took over the share-partition during this call."""


@dataclass(frozen=True, slots=True)
class DeadLetterReport:
    """The result of a call, in records, and the held records."""

    topic: str
    partitions: tuple[PartitionReport, ...] = ()
    held: tuple[HeldLetters, ...] = ()
    seconds: float = 0.0

    @property
    def written(self) -> int:
        """Dead letters that this call wrote."""
        return sum(partition.written for partition in self.partitions)

    @property
    def resumed(self) -> int:
        """Dead letters that an earlier writer wrote and this call closed."""
        return sum(partition.resumed for partition in self.partitions)

    @property
    def dropped(self) -> int:
        """Records closed without a dead letter, because the group's config asks for that."""
        return sum(partition.dropped for partition in self.partitions)


@dataclass(slots=True)
class _WriteCall:
    """The shared state of one call's share-partitions."""

    markers: MarkerGroup
    progress: Progress
    topic: tuple[DeadLetterTopic | None, CannotWrite | None]
    """The topic, or why it cannot be written now."""
    stopped: threading.Event
    try_again_seconds: float
    ends_at: float | None = None
    """When the call stops repeating failed attempts; None while there is no error."""

    def done(self, line: str) -> None:
        """Report a batch that is done."""
        self.ends_at = None
        self.progress(line)

    def tries_again(self, source: SharePartition, problem: CannotWrite) -> bool:
        """Wait before another attempt; return False if there is none."""
        if problem.lasting:
            return False
        now = time.monotonic()
        if self.ends_at is None:
            self.ends_at = now + self.try_again_seconds
            if self.try_again_seconds:
                self.progress(
                    f"{source}: tried again for up to {self.try_again_seconds:g} s: {problem.reason}"
                )
        return now < self.ends_at and not self.stopped.wait(_TRY_AGAIN_AFTER_SECONDS)


Outcome = tuple[PartitionReport | None, CannotWrite | None]
"""The report of one share-partition, and why its letters are held if they are."""


class DeadLetterWriter:
    """A writer of a share group's dead letters. Several may run at once: the broker allows one at a time.

    `batch_records` limits a batch. `on_step` is called at each step. `only` names the share-partitions to write;
    without it all are written. Once `stop` is set, each ends with its current batch. A share-partition that another
    writer took over is started again, at most `takeovers` times. After a passing error, attempts are repeated for
    `try_again_seconds`.
    """

    def __init__(
        self,
        settings: Settings,
        state: State,
        group_id: str,
        configs: GroupConfigs,
        *,
        batch_records: int = BATCH_RECORDS,
        on_step: OnStep | None = None,
        only: Container[SharePartition] | None = None,
        stop: threading.Event | None = None,
        takeovers: int = TAKEOVERS,
        try_again_seconds: float = TRY_AGAIN_SECONDS,
    ) -> None:
        self._settings = settings
        self._state = state
        self._group_id = group_id
        self.rules = DeadLetterRules.of(configs, inputs_of(state.database, group_id))
        self._batch_records = batch_records
        self._on_step: OnStep = on_step or (lambda step, source: None)
        self._only = only
        self._stop = stop
        self._takeovers = takeovers
        self._try_again_seconds = try_again_seconds

    def write(self, progress: Progress | None = None) -> DeadLetterReport:
        """Write all waiting letters; `progress` gets a line for each batch.

        Records that cannot be written are not an error: they are the report's `held`, and `State.dead_letters.held`
        returns them. An error of the database is raised, and the next call resumes the open batches. Raises
        InconsistentClusterId if the broker belongs to another cluster than the state.
        """
        started_at = time.monotonic()
        waiting = list(self._waiting())
        if not waiting:
            # Another writer may have just closed them.
            self._settle()
            return DeadLetterReport(self.rules.topic, seconds=time.monotonic() - started_at)
        self._check_cluster()
        try:
            outcomes = self._write_all(waiting, progress or (lambda line: None))
        except SQLAlchemyError:
            raise
        except Exception as error:
            outcomes = dict.fromkeys(waiting, (None, unforeseen(error)))
        if any(report is not None and report.written for report, _ in outcomes.values()):
            self._settle()
        held = self._held(
            {source: problem for source, (_, problem) in outcomes.items() if problem is not None}
        )
        for one in held:
            self._state.dead_letters.hold(one.share_partition, one.reason)
        return DeadLetterReport(
            self.rules.topic,
            tuple(report for report, _ in outcomes.values() if report is not None),
            held,
            time.monotonic() - started_at,
        )

    def _write_all(
        self, waiting: Sequence[SharePartition], progress: Progress
    ) -> dict[SharePartition, Outcome]:
        """Write the letters of all these share-partitions, some at a time."""
        with (
            MarkerGroup(client_config(self._settings), marker_group(self._group_id)) as markers,
            ThreadPoolExecutor(min(PARALLEL, len(waiting)), "dead-letters") as pool,
        ):
            stop = self._stop or threading.Event()
            call = _WriteCall(markers, progress, self._topic(), stop, self._try_again_seconds)
            try:
                return dict(zip(waiting, pool.map(lambda at: self._one(at, call), waiting), strict=True))
            finally:
                # After an error, or Ctrl-C, the others end with their current batch.
                call.stopped.set()

    def _check_cluster(self) -> None:
        """Raise InconsistentClusterId before anything is written to, or dropped for, another Kafka cluster."""
        # A broker that does not respond is reported when its topic is requested.
        with suppress(BrokerNotAvailable), Topics(self._settings, TIMEOUT_SECONDS) as topics:
            self._state.administration.check_cluster(topics.cluster_id())

    def _settle(self) -> None:
        """Wait until readers see the written letters."""
        if self.rules.topic:
            with suppress(ShareError), Topics(self._settings, SETTLE_SECONDS) as topics:
                topics.settle([self.rules.topic])

    def _topic(self) -> tuple[DeadLetterTopic | None, CannotWrite | None]:
        try:
            return TopicKeeper(self._settings).ready(self.rules), None
        except CannotWrite as problem:
            return None, problem
        except Exception as error:
            return None, unforeseen(error)

    def _one(self, source: SharePartition, call: _WriteCall) -> Outcome:
        """Write the letters of one share-partition."""
        if call.stopped.is_set():
            return None, None
        report, problem = self._attempt(source, call, None)
        while problem is not None and call.tries_again(source, problem):
            if call.topic[0] is None:
                call.topic = self._topic()
            report, problem = self._attempt(source, call, report)
        if problem is not None and problem.lasting and self.rules.drop:
            return self._drop(source, call, report or PartitionReport(source)), None
        return report, problem

    def _attempt(self, source: SharePartition, call: _WriteCall, report: PartitionReport | None) -> Outcome:
        topic, problem = call.topic
        if topic is not None:
            report, problem = self._write(source, topic, call, report or PartitionReport(source))
            if problem is not None:
                # Check whether only this partition fails, or the broker or the topic is missing for the others, too.
                call.topic = self._topic()
        return report, problem

    def _waiting(self) -> dict[SharePartition, int]:
        """Return how many records are ARCHIVING, for the share-partitions that have any."""
        return {
            source: records
            for source, records in self._state.dead_letters.waiting(self._group_id).items()
            if self._only is None or source in self._only
        }

    def _held(self, problems: dict[SharePartition, CannotWrite]) -> tuple[HeldLetters, ...]:
        left = self._waiting() if problems else {}
        return tuple(
            HeldLetters(source, left[source], problem.reason, problem.lasting)
            for source, problem in problems.items()
            if source in left
        )

    def _write(
        self, source: SharePartition, topic: DeadLetterTopic, call: _WriteCall, report: PartitionReport
    ) -> tuple[PartitionReport, CannotWrite | None]:
        """Write one share-partition's batches until none is left; wait for another writer while it is alive."""
        most_takeovers = report.takeovers + self._takeovers
        while report.takeovers <= most_takeovers:
            try:
                with RecordReader(self._settings) as originals:
                    batches = self._batches(source, topic, originals)
                    for done in self._outbox(batches, source, call).write():
                        report = _with(report, done.written, done.resumed)
                        call.done(_line(source, topic, done))
                        if call.stopped.is_set():
                            break
                return report, None
            except Fenced:
                report = replace(report, takeovers=report.takeovers + 1)
                if self._takeovers == 0 or not self._wait_for_other(source):
                    return report, None
            except CannotWrite as problem:
                return report, problem
            except SQLAlchemyError:
                raise
            except Exception as error:
                return report, unforeseen(error)
        reason = (
            f"another writer took over {source} {report.takeovers} times, or its transactions exceed their "
            "timeout: use one writer for the group, or in smaller batches."
        )
        return report, CannotWrite(reason, lasting=False)

    def _batches(
        self, source: SharePartition, topic: DeadLetterTopic, originals: RecordReader
    ) -> LetterBatches:
        return LetterBatches(
            self._settings,
            self._state,
            source,
            topic,
            originals,
            copying=self.rules.copy_record,
            messages=self.rules.messages,
            hold_keys=self.rules.hold_keys,
            max_records=self._batch_records,
        )

    def _outbox(
        self, batches: LetterBatches, source: SharePartition, call: _WriteCall
    ) -> Outbox[DeadLetterBatch]:
        return Outbox(
            client_config(self._settings),
            batches,
            call.markers,
            on_step=lambda step: self._on_step(step, source),
        )

    def _wait_for_other(self, source: SharePartition) -> bool:
        """Wait while the other writer makes progress; return whether letters are left once it has stopped.

        Taking over at once would fence it in turn, and the two could alternate for ever.
        """
        left, moved_at = self._waiting().get(source, 0), time.monotonic()
        patience = PATIENCE_SECONDS * random.uniform(1, 2)  # noqa: S311 (spread, not secrecy)
        while left and time.monotonic() - moved_at < patience:
            time.sleep(_LOOK_AGAIN_SECONDS)
            now = self._waiting().get(source, 0)
            if now != left:
                left, moved_at = now, time.monotonic()
        return bool(left)

    def _drop(self, source: SharePartition, call: _WriteCall, report: PartitionReport) -> PartitionReport:
        """Close one share-partition's batches without letters, as Kafka does when it cannot write them.

        A batch that an earlier writer wrote counts as resumed, unless the broker does not return the marker.
        """
        marker = None
        batches = self._batches(source, NO_TOPIC, RecordReader(self._settings))
        # Fences a writer that still works with an earlier config, and aborts the open transaction of a dead one.
        with suppress(CannotWrite, Fenced):
            marker = self._outbox(batches, source, call).take_over()
        while (batch := batches.open()) is not None:
            written = marker is not None and marker.wrote_all_of(batch)
            closed = batches.close(batch, dropped=not written)
            report = _with(report, resumed=closed if written else 0, dropped=0 if written else closed)
            if not written:
                call.done(
                    f"{source}: {plural(closed, 'record')} dropped without a dead letter (batch {batch.sequence})"
                )
        return report


def _with(report: PartitionReport, written: int = 0, resumed: int = 0, dropped: int = 0) -> PartitionReport:
    """Return the report with one more batch."""
    return replace(
        report,
        written=report.written + written,
        resumed=report.resumed + resumed,
        dropped=report.dropped + dropped,
        batches=report.batches + 1,
    )


def _line(source: SharePartition, topic: DeadLetterTopic, done: BatchDone) -> str:
    text = f"{source}: {done.written} dead letters written to {topic.name} (batch {done.sequence})"
    return f"{text}, {done.resumed} were already written" if done.resumed else text
