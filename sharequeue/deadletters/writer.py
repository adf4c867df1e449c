"""How do the records that were given up reach the dead-letter topic, each exactly once?

Second phase of KIP-1191: ARCHIVING records go to the topic and become ARCHIVED once the broker has confirmed them, in
numbered batches of one share-partition. A batch stays open until it is closed, so the next drain resumes what a dead
drain left. If the topic cannot be written, Kafka drops the records. Here they are held, and the report has the reason
and what to do; the group config `sharequeue.dead.letter.drop.enable` does as Kafka. How a batch is written:
`deadletters.batches`; which topic may take it: `deadletters.topic`; what a letter contains: `deadletters.letters`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from sharequeue.deadletters.batches import BatchBounds, BatchDone, BatchWriter, OnStep
from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.deadletters.topic import (
    NO_TOPIC,
    TIMEOUT_SECONDS,
    CannotWrite,
    DeadLetterRules,
    DeadLetterTopic,
    TopicKeeper,
    inputs_of,
)
from sharequeue.deadletters.transactions import Fenced, LetterProducer, Markers
from sharequeue.errors import BrokerNotAvailable, ShareError
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs
from sharequeue.kafka.topics import SETTLE_SECONDS, Topics
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.values import SharePartition

__all__ = [
    "DeadLetter",
    "DeadLetterReport",
    "DeadLetterWriter",
    "Held",
    "PartitionReport",
    "read_dead_letters",
]

BATCH_RECORDS = 20_000
TRANSACTION_BYTES = 64 * 1024 * 1024
PARALLEL = 4
"""Share-partitions written at a time: while one waits for its commit, another produces."""
TAKEOVERS = 5
"""How often a drain begins a share-partition again after another writer took it over."""
PATIENCE_SECONDS = 2.0
"""How long the writer that took over may show no progress before it is taken for dead."""
_LOOK_AGAIN_SECONDS = 0.1
TRY_AGAIN_SECONDS = 30.0
"""How long a drain tries again what passes by itself, a broker that does not answer, while it writes nothing."""
_TRY_AGAIN_AFTER_SECONDS = 0.5

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Held:
    """Records that stay ARCHIVING because their topic cannot be written: why, and what to do."""

    share_partition: SharePartition
    records: int
    reason: str
    lasting: bool = False
    """Waiting does not help: somebody has to act."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What a drain did for one share-partition, in records."""

    share_partition: SharePartition
    written: int = 0
    resumed: int = 0
    """Written by an earlier drain that died before it closed the batch; only closed by this one."""
    dropped: int = 0
    batches: int = 0
    takeovers: int = 0
    """How often another writer took the share-partition over while this one worked on it."""


@dataclass(frozen=True, slots=True)
class DeadLetterReport:
    """What a drain did, in records, and what it had to leave."""

    topic: str
    partitions: tuple[PartitionReport, ...] = ()
    held: tuple[Held, ...] = ()
    seconds: float = 0.0

    @property
    def written(self) -> int:
        """Dead letters that this drain wrote."""
        return sum(partition.written for partition in self.partitions)

    @property
    def resumed(self) -> int:
        """Dead letters that an earlier drain wrote and this one closed."""
        return sum(partition.resumed for partition in self.partitions)

    @property
    def dropped(self) -> int:
        """Records closed without a dead letter, because the group's config asks for that."""
        return sum(partition.dropped for partition in self.partitions)


@dataclass(slots=True)
class _Drain:
    """What the share-partitions of one drain have in common."""

    markers: Markers
    progress: Progress
    topic: tuple[DeadLetterTopic | None, CannotWrite | None]
    """The topic, or why it cannot be written now."""
    stopped: threading.Event
    try_again_seconds: float
    ends_at: float | None = None
    """When the drain stops trying what cannot be written now; None while all goes well."""

    def done(self, line: str) -> None:
        """Report a batch that is done."""
        self.ends_at = None
        self.progress(line)

    def tries_again(self, source: SharePartition, problem: CannotWrite) -> bool:
        """Wait a moment before another attempt; False where there is to be none."""
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


class DeadLetterWriter:
    """Writes a share group's dead letters. Several may run at once: the broker lets one at a time.

    `batch_records` bounds a batch, and `transaction_bytes` one transaction of copies; `parallel` share-partitions are
    written at a time. `on_step` is called at each step. `only` names the share-partitions to drain; without it all
    are drained. Once `stop` is set, each ends with its present batch. A share-partition that another writer took over
    is begun again, at most `takeovers` times. What cannot be written for a passing reason is tried again for
    `try_again_seconds`.
    """

    def __init__(
        self,
        settings: Settings,
        state: State,
        group_id: str,
        configs: GroupConfigs,
        *,
        service: ServiceConfigs | None = None,
        batch_records: int = BATCH_RECORDS,
        transaction_bytes: int = TRANSACTION_BYTES,
        parallel: int = PARALLEL,
        on_step: OnStep | None = None,
        only: Container[SharePartition] | None = None,
        stop: threading.Event | None = None,
        takeovers: int = TAKEOVERS,
        try_again_seconds: float = TRY_AGAIN_SECONDS,
    ) -> None:
        self._settings = settings
        self._state = state
        self._group_id = group_id
        self._rules = DeadLetterRules.of(
            configs, service or ServiceConfigs.stored(state.database), inputs_of(state.database, group_id)
        )
        self._bounds = BatchBounds(batch_records, transaction_bytes)
        self._parallel = parallel
        self._on_step: OnStep = on_step or (lambda step, source: None)
        self._only = only
        self._stop = stop
        self._takeovers = takeovers
        self._try_again_seconds = try_again_seconds

    def drain(self, progress: Progress | None = None) -> DeadLetterReport:
        """Write everything that waits; `progress` gets a line for every batch.

        Records that cannot be written are no error: they are the report's `held`, and `State.dead_letters.held`
        returns them. An error of the database is raised, and the next drain resumes the open batches. Raises
        InconsistentClusterId when the broker is of another cluster than the state.
        """
        started_at = time.monotonic()
        waiting = list(self._waiting())
        if not waiting:
            # Another drain may have closed them just now.
            self._settle()
            return DeadLetterReport(self._rules.topic, seconds=time.monotonic() - started_at)
        self._check_cluster()
        with (
            Markers(self._settings, self._group_id) as markers,
            ThreadPoolExecutor(min(self._parallel, len(waiting)), "dead-letters") as pool,
        ):
            drain = _Drain(
                markers,
                progress or (lambda line: None),
                self._topic(),
                self._stop or threading.Event(),
                self._try_again_seconds,
            )
            try:
                outcomes = dict(zip(waiting, pool.map(lambda at: self._one(at, drain), waiting), strict=True))
            finally:
                # After an error, or Ctrl-C, the others end with the batch at which they are.
                drain.stopped.set()
        if any(report is not None and report.written for report, _ in outcomes.values()):
            self._settle()
        held = self._held(
            {source: problem for source, (_, problem) in outcomes.items() if problem is not None}
        )
        for one in held:
            self._state.dead_letters.hold(one.share_partition, one.reason)
        return DeadLetterReport(
            self._rules.topic,
            tuple(report for report, _ in outcomes.values() if report is not None),
            held,
            time.monotonic() - started_at,
        )

    def _check_cluster(self) -> None:
        """Raise InconsistentClusterId before anything is written to, or dropped for, another Kafka cluster."""
        # A broker that does not answer is reported where its topic is asked for.
        with suppress(BrokerNotAvailable), Topics(self._settings, TIMEOUT_SECONDS) as topics:
            self._state.administration.check_cluster(topics.cluster_id())

    def _settle(self) -> None:
        """Wait until readers see what was written."""
        if self._rules.topic:
            with suppress(ShareError), Topics(self._settings, SETTLE_SECONDS) as topics:
                topics.settle([self._rules.topic])

    def _topic(self) -> tuple[DeadLetterTopic | None, CannotWrite | None]:
        try:
            return TopicKeeper(self._settings).ready(self._rules), None
        except CannotWrite as problem:
            return None, problem

    def _one(
        self, source: SharePartition, drain: _Drain
    ) -> tuple[PartitionReport | None, CannotWrite | None]:
        """What is done for one share-partition, and why it is held if it is."""
        if drain.stopped.is_set():
            return None, None
        report, problem = self._attempt(source, drain, None)
        while problem is not None and drain.tries_again(source, problem):
            if drain.topic[0] is None:
                drain.topic = self._topic()
            report, problem = self._attempt(source, drain, report)
        if problem is not None and problem.lasting and self._rules.drop:
            return self._drop(source, drain, report or PartitionReport(source)), None
        return report, problem

    def _attempt(
        self, source: SharePartition, drain: _Drain, report: PartitionReport | None
    ) -> tuple[PartitionReport | None, CannotWrite | None]:
        topic, problem = drain.topic
        if topic is not None:
            report, problem = self._write(source, topic, drain, report or PartitionReport(source))
            if problem is not None:
                # Does this concern the partition only, or is the broker or the topic gone for the rest, too?
                drain.topic = self._topic()
        return report, problem

    def _waiting(self) -> dict[SharePartition, int]:
        """How many records are ARCHIVING, for the share-partitions that have any."""
        return {
            status.share_partition: status.archiving
            for status in self._state.figures.describe(self._group_id)
            if status.archiving and (self._only is None or status.share_partition in self._only)
        }

    def _held(self, problems: dict[SharePartition, CannotWrite]) -> tuple[Held, ...]:
        left = self._waiting() if problems else {}
        return tuple(
            Held(source, left[source], problem.reason, problem.lasting)
            for source, problem in problems.items()
            if source in left
        )

    def _write(
        self, source: SharePartition, topic: DeadLetterTopic, drain: _Drain, report: PartitionReport
    ) -> tuple[PartitionReport, CannotWrite | None]:
        """Write one share-partition's batches until none waits; wait for another writer while it is alive."""
        most_takeovers = report.takeovers + self._takeovers
        writer = BatchWriter(
            self._settings,
            self._state,
            source,
            topic,
            drain.markers,
            copying=self._rules.copy_record,
            messages=self._rules.messages,
            bounds=self._bounds,
            on_step=self._on_step,
        )
        while report.takeovers <= most_takeovers:
            try:
                for done in writer.write():
                    report = _with(report, done.written, done.resumed)
                    drain.done(_line(source, topic, done))
                    if drain.stopped.is_set():
                        break
                return report, None
            except Fenced:
                report = replace(report, takeovers=report.takeovers + 1)
                if self._takeovers == 0 or not self._wait_for_other(source):
                    return report, None
            except CannotWrite as problem:
                return report, problem
        reason = (
            f"another writer took {source} over {report.takeovers} times, or its transactions outlive their time: "
            "drain the group with one writer, or in smaller batches."
        )
        return report, CannotWrite(reason, lasting=False)

    def _wait_for_other(self, source: SharePartition) -> bool:
        """Wait while the other writer makes progress; whether anything is left once it has stopped.

        Taking over at once would fence it in turn, and the two could go on for ever.
        """
        left, moved_at = self._waiting().get(source, 0), time.monotonic()
        patience = PATIENCE_SECONDS * random.uniform(1, 2)  # noqa: S311 (spread, not secrecy)
        while left and time.monotonic() - moved_at < patience:
            time.sleep(_LOOK_AGAIN_SECONDS)
            now = self._waiting().get(source, 0)
            if now != left:
                left, moved_at = now, time.monotonic()
        return bool(left)

    def _drop(self, source: SharePartition, drain: _Drain, report: PartitionReport) -> PartitionReport:
        """Close one share-partition's batches without letters, as Kafka does when it cannot write them.

        A batch that an earlier drain wrote counts as resumed, unless the broker does not return the marker.
        """
        marker = None
        # Fences a writer that is at work under a config from before, and aborts what a dead one left.
        fence = LetterProducer(self._settings, source, NO_TOPIC, drain.markers)
        with suppress(CannotWrite, Fenced), fence:
            marker = drain.markers.of(source)
        while (batch := self._state.dead_letters.open(source, self._bounds.records)) is not None:
            written = marker is not None and marker.wrote_all_of(batch)
            closed = self._state.dead_letters.close(source, batch.sequence, dropped=not written)
            report = _with(report, resumed=closed if written else 0, dropped=0 if written else closed)
            if not written:
                drain.done(
                    f"{source}: {closed} records dropped without a dead letter (batch {batch.sequence})"
                )
        return report


def _with(report: PartitionReport, written: int = 0, resumed: int = 0, dropped: int = 0) -> PartitionReport:
    """The report with one more batch in it."""
    return replace(
        report,
        written=report.written + written,
        resumed=report.resumed + resumed,
        dropped=report.dropped + dropped,
        batches=report.batches + 1,
    )


def _line(source: SharePartition, topic: DeadLetterTopic, done: BatchDone) -> str:
    text = f"{source}: {done.written} dead letters written to {topic.name} (batch {done.sequence})"
    return f"{text}, {done.resumed} found written" if done.resumed else text
