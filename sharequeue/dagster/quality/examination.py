"""How is a group's dead-letter topic examined, whatever its size?

Some letters at a time: each is judged against Postgres and compared with its source record, the suites validate them
as one batch, the reconciliation remembers their offsets. Then they are let go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from sharequeue.dagster.quality import dead_letters
from sharequeue.dagster.quality.context import QualityContext, Validator
from sharequeue.dagster.quality.expectations import Verdict
from sharequeue.dagster.quality.findings import SHOWN, Finding
from sharequeue.database import Database
from sharequeue.deadletters.archived import ArchivedLetters, ArchivedSpan
from sharequeue.deadletters.comparison import Comparison
from sharequeue.deadletters.judging import Judge, Judged
from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.reading import Reading
from sharequeue.deadletters.reconciliation import Place, Reconciled, Reconciliation
from sharequeue.kafka.topics import LogOffsets, TopicInfo, Topics
from sharequeue.settings import Settings
from sharequeue.values import SharePartition

CHUNK_LETTERS = 20_000
"""Letters of a batch that Great Expectations gets at most."""


@dataclass(slots=True)
class Found:
    """What one check found in this reading."""

    elements: int = 0
    unexpected: int = 0
    findings: list[Finding] = field(default_factory=list)
    problem: str | None = None
    passed: bool = True


@dataclass(slots=True)
class Examined:
    """What a reading found."""

    reading: Reading
    by_check: dict[str, Found] = field(default_factory=dict)
    reconciled: Reconciled = field(default_factory=Reconciled)
    ours: int = 0
    foreign: int = 0
    earlier: int = 0
    not_compared: int = 0


@dataclass(frozen=True, slots=True)
class Examination:
    """A group's dead-letter topic as it stands now, to be read once for each place at which checks go on.

    These readings all know the same end of it. So checks that have reached it go on together the next time.
    """

    group_id: str
    topic: str
    info: TopicInfo
    logs: Mapping[int, LogOffsets]
    archived: ArchivedLetters
    spans: Mapping[SharePartition, ArchivedSpan]

    @classmethod
    def of(cls, database: Database, group_id: str, topics: Topics, topic: str) -> Self | None:
        """Look at the topic; None when there is none."""
        archived = ArchivedLetters(database, group_id)
        # Before the ends of the topic are asked for: what is closed by now is in it.
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
    """Read the topic from `first` on, `most` letters at most, and no further than there is time to compare. Without a
    context the letters are reconciled only, and none is compared."""
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
                # What was not compared was not read: the next run begins with it.
                taken = judged.index(ours[len(compared)])
                reading.give_back(letters[taken:])
                judged, ours = judged[:taken], ours[: len(compared)]
            reconciliation.add(judged)
            examined.foreign += len(judged) - len(ours)
            examined.earlier += sum(each.standing == "earlier" for each in ours)
            examined.ours += len(ours)
            if ours and context:
                frame = dead_letters.frame(ours, compared, info.partitions)
                # Great Expectations takes seconds to import: who has nothing to validate does not pay for it.
                validator = validator or stack.enter_context(context.open())
                _add(examined.by_check, validator.validate(frame, run_name), ours)
            if ended:
                break
    examined.not_compared = comparison.not_compared
    examined.reconciled = reconciliation.end(archived, spans, reading)
    return examined


def _add(by_check: dict[str, Found], verdicts: Mapping[str, Verdict], judged: Sequence[Judged]) -> None:
    at = {(each.letter.partition, each.letter.offset): each.letter for each in judged}
    for name, verdict in verdicts.items():
        found = by_check.setdefault(name, Found())
        found.elements += verdict.elements
        found.unexpected += verdict.unexpected_count
        found.passed = found.passed and verdict.passed
        found.problem = found.problem or verdict.problem
        for row in verdict.unexpected[: SHOWN - len(found.findings)]:
            letter = at[int(row["dlq_partition"]), int(row["dlq_offset"])]
            said = [f"{key}: {value}" for key, value in row.items() if not key.startswith("dlq_")]
            found.findings.append(finding(letter, ", ".join(said)))


def finding(letter: DeadLetter, found: str) -> Finding:
    """What was found about a letter."""
    return Finding(
        found[:500],
        letter.partition,
        letter.offset,
        letter.source_topic,
        letter.source_partition,
        letter.source_offset,
    )
