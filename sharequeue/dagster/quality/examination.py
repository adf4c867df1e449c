"""Examine a group's dead-letter topic of any size.

Letters are read in batches: each is compared with Postgres and with its source record, the suites validate the
batch, the reconciliation records the offsets. Then the batch is dropped from memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from sharequeue.dagster.quality import dead_letters
from sharequeue.dagster.quality.archived import ArchivedLetters, ArchivedSpan
from sharequeue.dagster.quality.comparison import Compared, Comparison
from sharequeue.dagster.quality.context import QualityContext, Validator
from sharequeue.dagster.quality.expectations import Verdict
from sharequeue.dagster.quality.findings import SHOWN, Finding, Found
from sharequeue.dagster.quality.judging import Judge, Judged
from sharequeue.dagster.quality.reading import Reading
from sharequeue.dagster.quality.reconciliation import Place, Reconciled, Reconciliation
from sharequeue.database import Database
from sharequeue.deadletters.letters import DeadLetter
from sharequeue.kafka.topics import LogOffsets, TopicInfo, Topics
from sharequeue.words.settings import Settings
from sharequeue.words.values import SharePartition

CHUNK_LETTERS = 20_000
"""The maximum number of letters in a batch for Great Expectations."""


@dataclass(slots=True)
class Examined:
    """The result of a reading."""

    reading: Reading
    by_check: dict[str, Found] = field(default_factory=dict)
    reconciled: Reconciled = field(default_factory=Reconciled)
    headers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of letters by header that is wrong in them, and its problem."""
    ours: int = 0
    foreign: int = 0
    earlier: int = 0
    not_compared: int = 0


@dataclass(frozen=True, slots=True)
class Examination:
    """A group's dead-letter topic at one time, to be read once for each position at which checks continue.

    These readings all have the same end. So checks that have reached it continue together the next time.
    """

    group_id: str
    topic: str
    info: TopicInfo
    logs: Mapping[int, LogOffsets]
    archived: ArchivedLetters
    spans: Mapping[SharePartition, ArchivedSpan]

    @classmethod
    def of(cls, database: Database, group_id: str, topics: Topics, topic: str) -> Self | None:
        """Examine the topic; None if the group has none."""
        archived = ArchivedLetters(database, group_id)
        # Before the ends of the topic are read: batches closed by now are in it.
        spans = archived.spans(archived.now())
        info = topics.describe([topic]).get(topic) if topic else None
        if info is None:
            return None
        topics.settle([topic])
        return cls(group_id, topic, info, topics.offsets(topic), archived, spans)


def examine(
    examination: Examination,
    settings: Settings,
    topics: Topics,
    *,
    first: Mapping[int, int],
    places: Mapping[SharePartition, Place],
    most: int,
    context: QualityContext | None,
    run_name: str,
) -> Examined:
    """Read the topic from `first` on, up to `most` letters, and only as far as there is time to compare. Without a
    context, only reconcile the letters and compare none."""
    archived, spans, info = examination.archived, examination.spans, examination.info
    reading = Reading(settings, examination.topic, info, examination.logs, first)
    examined = Examined(reading)
    judge, comparison = Judge(archived, examination.group_id, spans), Comparison(settings, topics)
    reconciliation = Reconciliation(places)
    with ExitStack() as stack:
        validator: Validator | None = None
        for letters in reading.chunks(CHUNK_LETTERS, most):
            judged = judge.judge(letters)
            ours = [each for each in judged if each.ours]
            compared = comparison.compare(ours) if context else []
            ended = context is not None and len(compared) < len(ours)
            if ended:
                # Letters that were not compared count as not read: the next run begins with them.
                taken = judged.index(ours[len(compared)])
                reading.give_back(letters[taken:])
                judged, ours = judged[:taken], ours[: len(compared)]
            repeated = reconciliation.add(judged)
            examined.foreign += len(judged) - len(ours)
            examined.earlier += sum(each.standing == "earlier" for each in ours)
            examined.ours += len(ours)
            if ours and context:
                frame = dead_letters.frame(ours, compared, info.partitions, repeated)
                # Great Expectations takes seconds to import: skip it if nothing is to be validated.
                validator = validator or stack.enter_context(context.open())
                examined.headers.update(
                    each for letter in ours for each in dead_letters.header_problems(letter)
                )
                findings = _Findings(ours, compared, repeated)
                _add(examined.by_check, validator.validate(frame, run_name), findings)
            if ended:
                break
    examined.not_compared = comparison.not_compared
    examined.reconciled = reconciliation.end(archived, spans, reading)
    return examined


class _Findings:
    """Makes the findings about the letters of a batch."""

    def __init__(
        self, judged: Sequence[Judged], compared: Sequence[Compared], repeated: Sequence[Judged]
    ) -> None:
        again = {each.place for each in repeated}
        self._letters = {each.place: each.letter for each in judged}
        self._intact = {
            each.place
            for each, found in zip(judged, compared, strict=True)
            if each.unaltered and found.as_expected and each.place not in again
        }

    def about(self, row: Mapping[str, Any]) -> Finding:
        """Return the finding in a row of Great Expectations' result."""
        place = int(row["dlq_partition"]), int(row["dlq_offset"])
        cells = [f"{key}: {value}" for key, value in row.items() if not key.startswith("dlq_")]
        return finding(self._letters[place], ", ".join(cells), intact=place in self._intact)


def _add(by_check: dict[str, Found], verdicts: Mapping[str, Verdict], findings: _Findings) -> None:
    for name, verdict in verdicts.items():
        found = by_check.setdefault(name, Found())
        found.elements += verdict.elements
        found.counts[""] += verdict.unexpected_count
        found.passed = found.passed and verdict.passed
        found.problem = found.problem or verdict.problem
        found.findings += map(findings.about, verdict.unexpected[: SHOWN - len(found.findings)])


def finding(letter: DeadLetter, found: str, *, intact: bool = False) -> Finding:
    """Return the finding about a letter."""
    return Finding(
        found[:500],
        letter.partition,
        letter.offset,
        letter.source_topic,
        letter.source_partition,
        letter.source_offset,
        intact=intact,
    )
