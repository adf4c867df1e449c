"""Whose dead-letter topic is it, and which records can have letters in it?

What Postgres knows: the configs of the groups, as they are and as the audit log has them, and the share-partitions.
A group of the broker's own is in none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.deadletters.topic import TOPIC_NAME
from sharequeue.errors import InvalidRequest
from sharequeue.names import listed, nearest

_ARCHIVING = 3


@dataclass(frozen=True, slots=True)
class LettersOfRecord:
    """What Postgres has of the letters of one record, those of all its groups."""

    written_at: datetime | None
    """When the newest was written; None when none was."""
    waits: bool
    """Whether one waits to be written."""


NOT_KNOWN = LettersOfRecord(None, False)


class Owners:
    """Questions about the dead-letter topics of the share groups, and about their source topics."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def dead_letter_topics(self) -> dict[str, set[str]]:
        """Return every topic that is the dead-letter topic of a group, or was, with its groups.

        One that letters were put back from is one too; which groups it had may be unknown.
        """
        rows = self._database.rows(
            sa.text(
                "select value as topic, group_id from sharequeue.group_configs where name = :name"
                " union select t.topic, a.group_id from sharequeue.audit_trail a"
                " cross join lateral (values (a.before ->> :name), (a.after ->> :name)) as t (topic)"
                " where a.act = 'alter_group_config'"
                " union select dead_letter_topic, null from sharequeue.redriven where not isempty(offsets)"
            ),
            name=TOPIC_NAME,
        )
        found: dict[str, set[str]] = {}
        for row in rows:
            if row["topic"]:
                found.setdefault(row["topic"], set()).update({row["group_id"]} - {None})
        return found

    def readers(self, topic: str) -> list[str]:
        """Return the share groups that have share-partitions of a topic, or members that subscribe to it."""
        rows = self._database.rows(
            sa.text(
                "select group_id from sharequeue.share_partitions where topic = :topic"
                " union select group_id from sharequeue.members where :topic = any (subscribed_topic_names)"
                " order by group_id"
            ),
            topic=topic,
        )
        return [row["group_id"] for row in rows]

    def require_dead_letter_topic(self, topic: str) -> None:
        """Raise InvalidRequest, with the names most like it, unless a topic is a group's dead-letter topic, or was.

        A topic that a group reads is refused always: what lies there is work.
        """
        readers, known = self.readers(topic), self.dead_letter_topics()
        help_with_name = nearest(topic, set(known) - {topic}, "dead-letter topics")
        if readers:
            raise InvalidRequest(
                f"{topic} is a source topic of share group {listed(readers)}: nothing of it is deleted. "
                f"{help_with_name}"
            )
        if topic not in known:
            raise InvalidRequest(
                f"{topic} is not the dead-letter topic of any share group, and was not before: nothing of it is "
                f"deleted. {help_with_name}"
            )

    def source_ends(self, groups: Iterable[str]) -> dict[tuple[str, int], int]:
        """Return where the source partitions of these groups end, as far as Postgres knows, by topic and partition.

        Also of those whose offsets, or whose group, were deleted.
        """
        rows = self._database.rows(
            sa.text(
                "with known as ("
                " select topic, partition, greatest(log_end, spso) as log_end from sharequeue.share_partitions"
                " where group_id = any (cast(:groups as text[]))"
                " union all select d.topic, d.partition, greatest(d.start_offset, d.end_offset)"
                " from sharequeue.audit_trail a"
                " cross join lateral jsonb_to_recordset(a.before)"
                " as d (topic text, partition integer, start_offset bigint, end_offset bigint)"
                " where a.act in ('delete_group', 'delete_offsets', 'remove_deleted_topic')"
                " and a.group_id = any (cast(:groups as text[]))"
                " ) select topic, partition, max(log_end) as log_end from known group by topic, partition"
            ),
            groups=sorted(groups),
        )
        return {(row["topic"], row["partition"]): row["log_end"] for row in rows}

    def letters_of(self, topic: str, partition: int, offset: int) -> LettersOfRecord:
        """Return what Postgres has of the letters of one record."""
        (row,) = self._database.rows(
            sa.text(
                "select (select max(written_at) from sharequeue.written_dead_letters where topic = :topic"
                " and partition = :partition and not dropped and offsets @> cast(:offset as bigint)) as written_at,"
                " exists (select from sharequeue.in_flight_offsets f"
                " join sharequeue.share_partitions sp using (share_partition_id) where sp.topic = :topic"
                " and sp.partition = :partition and f.state = :archiving"
                " and f.offsets @> cast(:offset as bigint)) as waits"
            ),
            topic=topic,
            partition=partition,
            offset=offset,
            archiving=_ARCHIVING,
        )
        return LettersOfRecord(row["written_at"], row["waits"])
