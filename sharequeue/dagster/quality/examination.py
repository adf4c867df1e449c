"""Examine a group's dead-letter topic of any size.

Letters are read in batches: each is compared with Postgres and with its source record, the suites validate the
batch, the reconciliation records the offsets. Then the batch is dropped from memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from sharequeue.dagster.quality import dead_letters
from sharequeue.dagster.quality.archived import ArchivedLetters
from sharequeue.dagster.quality.comparison import Comparison
from sharequeue.dagster.quality.context import QualityContext, Validator
from sharequeue.dagster.quality.findings import Found, KeptFindings, LetterFinding
from sharequeue.dagster.quality.judging import Judge
from sharequeue.dagster.quality.reading import Reading
from sharequeue.dagster.quality.reconciliation import Reconciliation, about
from sharequeue.database import Database
from sharequeue.deadletters.hidden import HiddenRecords, hidden_records
from sharequeue.deadletters.redrive.batches import UNHANDLED, HandledLetters, RedriveBatches
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.state import State

CHUNK_LETTERS = 20_000
"""The maximum number of letters in a batch for Great Expectations."""
COMPARE_SECONDS = 60.0
"""After this time, no more letters are read in one reading: their originals may be far apart in a large topic."""
RECONCILED = "reconciled_with_state"


@dataclass(slots=True)
class Examined:
    """The result of a reading."""

    found: dict[str, Found] = field(default_factory=dict)
    """What each check has found in this reading."""
    letters: int = 0
    """The letters read, of any group."""
    left: int = 0
    """The number of offsets that are left for the next reading."""
    headers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of letters by header that is wrong in them, and its problem."""
    archived: int = 0
    ours: int = 0
    earlier: int = 0
    not_compared: int = 0
    handled: Mapping[int, HandledLetters] = field(default_factory=dict)
    """The letters that were sent back or discarded, by partition."""
    hidden: Sequence[HiddenRecords] = ()
    """Records that an open transaction hides: they may be letters."""
    nothing_new: str | None = None
    """Since when there is no new letter of the group, as a sentence; None if there are new ones, or may be."""

    def status(self, finding: LetterFinding) -> str | None:
        """Return whether the letter of a finding was sent back or discarded; None if it was neither."""
        if finding.partition is None or finding.offset is None:
            return None
        return self.handled.get(finding.partition, UNHANDLED).status(finding.offset)


def examine(
    database: Database,
    group_id: str,
    topic: str,
    topics: Topics,
    settings: Settings,
    kept: KeptFindings,
    *,
    most: int,
    context: QualityContext,
    run_name: str,
) -> Examined | None:
    """Read the topic from where the last reading has ended, up to `most` letters; None if there is no topic.

    `kept` gets the findings, and the position at which the next reading continues.
    """
    archived = ArchivedLetters(database, group_id)
    # Before the ends of the topic are read: batches that are closed by now are in it.
    spans = archived.spans()
    info = topics.describe([topic]).get(topic) if topic else None
    if info is None:
        return None
    topics.settle([topic])
    logs = topics.offsets(topic)
    created_at = context.created_at.isoformat() if context.created_at else ""
    if (kept.topic_id, kept.created_at) != (info.topic_id, created_at):
        kept.topic_id, kept.created_at = info.topic_id, created_at
        kept.next, kept.places, kept.found, kept.letters_at = {}, {}, {}, ""
    reading = Reading(settings, topic, info, logs, kept.next)
    examined = Examined()
    found = examined.found
    judge, comparison = Judge(archived, group_id, spans), Comparison(settings, topics)
    reconciliation = Reconciliation(kept.places)
    with ExitStack() as stack:
        validator: Validator | None = None
        for letters in reading.chunks(CHUNK_LETTERS, most):
            ours = [each for each in judge.judge(letters) if each.standing != "foreign"]
            repeated = {each.place for each in reconciliation.add(ours)}
            examined.ours += len(ours)
            examined.earlier += sum(each.standing == "earlier" for each in ours)
            if not ours:
                continue
            compared = comparison.compare(ours)
            by_place = {
                each.place: (each, each.unaltered and like.as_expected and each.place not in repeated)
                for each, like in zip(ours, compared, strict=True)
            }

            def finding(row: Mapping[str, Any], by_place: Any = by_place) -> LetterFinding:
                judged, intact = by_place[int(row["dlq_partition"]), int(row["dlq_offset"])]
                cells = [f"{key}: {value}" for key, value in row.items() if not key.startswith("dlq_")]
                return about(judged, ", ".join(cells), intact=intact)

            # Great Expectations takes seconds to import: skip it if nothing is to be validated.
            validator = validator or stack.enter_context(context.open())
            frame = dead_letters.frame(ours, compared, info.partitions, repeated)
            for check, new in validator.validate(frame, run_name, finding).items():
                found.setdefault(check, Found()).extend(new)
            examined.headers.update(each for judged in ours for each in dead_letters.header_problems(judged))
            if comparison.seconds >= COMPARE_SECONDS:
                break
    reconciliation.end(archived, spans, reading)
    found[RECONCILED] = reconciliation.found
    for check in {*kept.found, *found}:
        earlier = kept.found.get(check, Found()).still(logs)
        kept.found[check] = earlier.merged(found.get(check, Found()), reading.next)
    kept.next, kept.places = reading.next, reconciliation.next
    examined.letters, examined.left = reading.letters, reading.left
    examined.handled = RedriveBatches(database, topic, info.topic_id).handled()
    examined.hidden = hidden_records(settings, topic, logs)
    examined.archived, examined.not_compared = reconciliation.archived, comparison.not_compared
    if examined.ours:
        kept.letters_at = f"{State(database).now().astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    elif not examined.left:
        since = kept.letters_at
        examined.nothing_new = f"no new letters since {since}" if since else "no letters of the group"
    return examined
