"""How are letters deleted from a dead-letter topic?

Kafka deletes from the start of a partition up to an offset, and nothing in between: whoever wants one letter gone
deletes all before it too. A plan says what that would be; who did it is written to the audit log before it is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from sharequeue.database import Database
from sharequeue.deadletters.letters import DeadLetter, read_dead_letters
from sharequeue.errors import InvalidRequest, UnknownTopicOrPartition, error_for
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import LogOffsets, TopicInfo, Topics
from sharequeue.names import listed, nearest
from sharequeue.redrive.batches import RedriveBatches
from sharequeue.redrive.owners import NOT_KNOWN, LettersOfRecord, Owners
from sharequeue.settings import Settings
from sharequeue.state import State

TIMEOUT_SECONDS = 30.0


@dataclass(slots=True)
class PurgedPartition:
    """What is deleted of one partition: every letter below `before`."""

    partition: int
    log_start: int
    before: int
    letters: int = 0
    not_put_back: int = 0
    """Letters of these that no redrive has sent."""
    foreign: int = 0
    """Records of these that are no letters of any group."""
    groups: Counter[str] = field(default_factory=Counter)
    newest: datetime | None = None


@dataclass(slots=True)
class Copies:
    """Where a record is still found: its letters, where they were put back to, and whether its source has it."""

    letters: list[DeadLetter] = field(default_factory=list)
    put_back_to: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    """Topics that letters, by partition and offset, were sent to."""
    in_source: bool = False
    known: LettersOfRecord = NOT_KNOWN
    elsewhere: list[str] = field(default_factory=list)
    """Other dead-letter topics of groups that read the source: they may have letters of the record too."""


class Purge:
    """Deletes letters of one dead-letter topic.

    Raises `UnknownTopicOrPartition` when there is no topic of that name, `InvalidRequest` when it is not the
    dead-letter topic of a share group and was not before, or is the source of one.
    """

    def __init__(self, settings: Settings, database: Database, topic: str) -> None:
        self._settings = settings
        self._database = database
        self._topic = topic
        self._topics = Topics(settings)
        State(database).administration.check_cluster(self._topics.cluster_id())
        self._info: TopicInfo = self._topics.info(topic)
        self._owners = Owners(database)
        self._owners.require_dead_letter_topic(topic)
        self._logs: Mapping[int, LogOffsets] = self._topics.offsets(topic)

    def before_time(self, until: datetime) -> dict[int, int]:
        """Per partition the first offset that was written at or after a time: what lies before it is older."""
        found = self._topics.offsets_for_times(self._topic, int(until.timestamp() * 1000))
        ends = {partition: log.last_stable_offset for partition, log in self._logs.items()}
        return {
            partition: ends[partition] if offset is None else min(offset, ends[partition])
            for partition, offset in found.items()
            if partition in ends
        }

    def plan(self, before: Mapping[int, int], *, foreign: bool = False) -> list[PurgedPartition]:
        """Return what would be deleted; nothing is changed by asking.

        Raises InvalidRequest for a partition that there is not, an offset past what is committed, and, unless
        `foreign`, for records among them that are no letters.
        """
        for partition, offset in before.items():
            log = self._logs.get(partition)
            if log is None:
                raise InvalidRequest(
                    f"{self._topic} has no partition {partition}: it has {self._info.partitions}."
                )
            if offset > log.last_stable_offset:
                raise InvalidRequest(
                    f"{self._topic}-{partition} is committed up to offset {log.last_stable_offset}, not {offset}."
                )
        plans = {
            partition: PurgedPartition(partition, self._logs[partition].log_start, offset)
            for partition, offset in sorted(before.items())
            if offset > self._logs[partition].log_start
        }
        sent = RedriveBatches(self._database, self._topic, self._info.topic_id).sent()
        ends = {
            partition: LogOffsets(plan.log_start, plan.before, plan.before)
            for partition, plan in plans.items()
        }
        for letter in read_dead_letters(self._settings, self._topic, logs=ends):
            plan = plans[letter.partition]
            plan.letters += 1
            plan.not_put_back += letter.partition not in sent or letter.offset not in sent[letter.partition]
            plan.groups[letter.group or "of no group"] += 1
            plan.foreign += letter.group is None or letter.source_topic is None
            if letter.timestamp is not None:
                plan.newest = max(plan.newest or letter.timestamp, letter.timestamp)
        if not foreign:
            for plan in plans.values():
                if plan.foreign:
                    raise InvalidRequest(
                        f"{plan.foreign:,} of the {plan.letters:,} records of {self._topic}-{plan.partition} before "
                        f"offset {plan.before} are no dead letters (they lack the headers): nothing is deleted. Look "
                        "at them first; --foreign deletes them too."
                    )
        return list(plans.values())

    def run(self, plans: list[PurgedPartition]) -> None:
        """Delete what the plans say, each written to the audit log first. Raises what Kafka returns as a
        ShareError.
        """
        for plan in plans:
            self._database.call(
                sa.text(
                    "select sharequeue.record_purge(:topic, :topic_id, :partition, :log_start, :before, :letters)"
                ),
                topic=self._topic,
                topic_id=self._info.topic_id,
                partition=plan.partition,
                log_start=plan.log_start,
                before=plan.before,
                letters=plan.letters,
            )
        if not plans:
            return
        wanted = [TopicPartition(self._topic, plan.partition, plan.before) for plan in plans]
        admin = AdminClient(client_config(self._settings))
        for future in admin.delete_records(wanted, request_timeout=TIMEOUT_SECONDS).values():
            try:
                future.result(TIMEOUT_SECONDS + 5)
            except KafkaException as failure:
                error = failure.args[0]
                raise error_for(int(error.code()), error.str()) from failure

    def copies_of(self, source_topic: str, partition: int, offset: int) -> Copies:
        """Return where a record is found, as far as this topic, its redrives, its source and Postgres know.

        Raises UnknownTopicOrPartition or InvalidRequest for a record that can have no letter here: no letter and no
        group of this topic knows its topic, there is no such partition, or the partition ends before the offset.
        """
        found = Copies()
        dead_letter_topics = self._owners.dead_letter_topics()
        groups = dead_letter_topics.get(self._topic, set())
        ends: dict[tuple[str, int], int] = {}
        for letter in read_dead_letters(self._settings, self._topic):
            source = letter.source_topic, letter.source_partition, letter.source_offset
            if source == (source_topic, partition, offset):
                found.letters.append(letter)
            if source[0] is not None and source[1] is not None and source[2] is not None:
                ends[source[0], source[1]] = max(ends.get((source[0], source[1]), 0), source[2] + 1)
            if letter.group is not None:
                groups.add(letter.group)
        for at, end in self._owners.source_ends(groups).items():
            ends[at] = max(ends.get(at, 0), end)
        readers = set(self._owners.readers(source_topic))
        found.elsewhere = sorted(
            topic for topic, owners in dead_letter_topics.items() if topic != self._topic and owners & readers
        )
        logs = self._log_of(source_topic)
        if not found.letters:
            self._require_known(source_topic, partition, offset, ends, logs, found.elsewhere)
        found.known = self._owners.letters_of(source_topic, partition, offset)
        for letter in found.letters:
            rows = self._database.rows(
                sa.text(
                    "select distinct coalesce(r.target_topic, :source) as target from sharequeue.redrive_batches b"
                    " join sharequeue.redrives r using (redrive_id) where b.dead_letter_topic = :topic"
                    " and b.topic_id = :topic_id and b.partition = :partition and b.sent_at is not null"
                    " and b.offsets @> cast(:offset as bigint)"
                ),
                source=source_topic,
                topic=self._topic,
                topic_id=self._info.topic_id,
                partition=letter.partition,
                offset=letter.offset,
            )
            if rows:
                found.put_back_to[letter.partition, letter.offset] = [row["target"] for row in rows]
        log = logs.get(partition)
        found.in_source = log is not None and log.log_start <= offset < log.log_end
        return found

    def _log_of(self, topic: str) -> Mapping[int, LogOffsets]:
        return self._topics.offsets(topic) if topic in self._topics.describe([topic]) else {}

    def _require_known(
        self,
        topic: str,
        partition: int,
        offset: int,
        ends: Mapping[tuple[str, int], int],
        logs: Mapping[int, LogOffsets],
        elsewhere: list[str],
    ) -> None:
        topics = {known for known, _ in ends}
        if topic not in topics:
            raise UnknownTopicOrPartition(
                f"No letter in {self._topic} is of a topic {topic!r}, and no group whose letters it takes reads one. "
                + (
                    f"Its letters are in {listed(elsewhere)}."
                    if elsewhere
                    else nearest(topic, topics, "source topics")
                )
            )
        partitions = {known for name, known in ends if name == topic} | set(logs)
        if partition not in partitions:
            raise UnknownTopicOrPartition(
                f"{topic} has no partition {partition}: it has {listed([str(each) for each in sorted(partitions)])}."
            )
        end = max(ends.get((topic, partition), 0), logs[partition].log_end if partition in logs else 0)
        if offset >= end:
            raise InvalidRequest(
                f"{topic}-{partition} ends at offset {end}: there was no record at {offset} yet."
            )
