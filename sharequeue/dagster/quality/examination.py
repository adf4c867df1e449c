"""How is a group's dead-letter topic examined, whatever its size?

Some letters at a time: each is judged against Postgres and compared with its source record, the suites validate them
as one batch, the reconciliation remembers their offsets. Then they are let go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from sharequeue.dagster.quality import dead_letters
from sharequeue.dagster.quality.context import QualityContext, Validator
from sharequeue.dagster.quality.expectations import Verdict
from sharequeue.dagster.quality.findings import SHOWN, Finding
from sharequeue.database import Database
from sharequeue.deadletters.archived import ArchivedLetters
from sharequeue.deadletters.comparison import Comparison
from sharequeue.deadletters.judging import Judge, Judged
from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.reading import Reading
from sharequeue.deadletters.reconciliation import Place, Reconciled, Reconciliation
from sharequeue.kafka.topics import Topics
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


def examine(
    settings: Settings,
    database: Database,
    group_id: str,
    topics: Topics,
    topic: str,
    *,
    first: Mapping[int, int],
    places: Mapping[SharePartition, Place],
    most: int,
    context: QualityContext,
    run_name: str,
) -> Examined | None:
    """Read the topic from `first` on, `most` letters at most; None when there is no such topic."""
    archived = ArchivedLetters(database, group_id)
    # Before the ends of the topic are asked for: what is closed by now is in it.
    spans = archived.spans(archived.now())
    info = topics.describe([topic]).get(topic)
    if info is None:
        return None
    topics.settle([topic])
    reading = Reading(settings, topic, info, topics.offsets(topic), first)
    examined = Examined(reading)
    judge, comparison = Judge(archived, group_id, spans), Comparison(settings, topics)
    reconciliation = Reconciliation(places)
    with ExitStack() as stack:
        validator: Validator | None = None
        for letters in reading.chunks(CHUNK_LETTERS, most):
            judged = judge.judge(letters)
            reconciliation.add(judged)
            ours = [each for each in judged if each.ours]
            examined.foreign += len(judged) - len(ours)
            examined.earlier += sum(each.standing == "earlier" for each in ours)
            examined.ours += len(ours)
            if not ours:
                continue
            frame = dead_letters.frame(ours, comparison.compare(ours), info.partitions)
            # Great Expectations takes seconds to import: who has nothing to validate does not pay for it.
            validator = validator or stack.enter_context(context.open())
            _add(examined.by_check, validator.validate(frame, run_name), ours)
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
