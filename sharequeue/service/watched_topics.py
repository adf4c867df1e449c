"""Which topics do the groups need, and what was last known of them?

The coordinator's memory of the broker, in the tables `topics` and `share_partitions`: the names worth asking
for, what each group has of them already, and how the result is recorded. A topic that is gone stays on record
with 0 partitions. Partitions that a topic has grown by start at 0 in every group that knows it, whatever the
reset policy (kafka-semantics R-OR-3): which they are is written down in the same transaction in which the growth
is recorded, and each group starts them in a step of its own before anything else of it starts. What has no start
offset later was there when the group came, and starts by the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

from sharequeue.database import Database
from sharequeue.kafka.topics import TopicInfo


@dataclass(frozen=True, slots=True)
class WatchedGroup:
    """What a group's members subscribe to, and which partitions of which topics it has state for."""

    group_id: str
    subscribed: tuple[str, ...]
    initialized: Mapping[str, frozenset[int]]
    topic_ids: Mapping[str, str]


def watched_names(database: Database) -> list[str]:
    """The topics that some member subscribes to or some group has state for."""
    rows = database.rows(
        text(
            "select unnest(subscribed_topic_names) as topic from sharequeue.members"
            " union select topic from sharequeue.share_partitions order by 1"
        )
    )
    return [str(row["topic"]) for row in rows]


def unknown_names(database: Database, names: Iterable[str]) -> list[str]:
    """Those of `names` that the broker has not been asked about yet, or that were gone when it was."""
    rows = database.rows(
        text(
            "select name from unnest(cast(:names as text[])) as n (name)"
            " where not exists (select from sharequeue.topics t where t.topic = n.name and t.partitions > 0)"
        ),
        names=sorted(set(names)),
    )
    return [str(row["name"]) for row in rows]


def watched_groups(database: Database) -> list[WatchedGroup]:
    """Every group with members or state, with what it subscribes to and what of it is initialised."""
    with database.transaction() as connection:
        subscriptions = connection.execute(
            text(
                "select group_id, unnest(subscribed_topic_names) as topic from sharequeue.members"
                " group by 1, 2 order by 1, 2"
            )
        ).all()
        states = connection.execute(
            text(
                "select group_id, topic, min(topic_id) as topic_id, array_agg(partition) as partitions"
                " from sharequeue.share_partitions group by group_id, topic order by group_id, topic"
            )
        ).all()
    names = sorted({row.group_id for row in subscriptions} | {row.group_id for row in states})
    return [
        WatchedGroup(
            group_id,
            tuple(row.topic for row in subscriptions if row.group_id == group_id),
            {row.topic: frozenset(row.partitions) for row in states if row.group_id == group_id},
            {row.topic: row.topic_id for row in states if row.group_id == group_id},
        )
        for group_id in names
    ]


def record_topics(database: Database, known: Mapping[str, TopicInfo], asked: Iterable[str]) -> None:
    """Record what the broker returned: `known` are those of the topics `asked` for that it has.

    Where a topic has grown, `start_grown` is to be called for the groups that know it.
    """
    with database.transaction() as connection:
        before = connection.execute(
            text("select topic, topic_id, partitions from sharequeue.topics order by topic for update")
        ).all()
        recorded = {row.topic: TopicInfo(row.topic_id, row.partitions) for row in before}
        for topic, info in sorted(known.items()):
            _save(connection, topic, info)
            last = recorded.get(topic)
            if last and last.topic_id == info.topic_id and 0 < last.partitions < info.partitions:
                _note_growth(connection, topic, info, last.partitions)
        gone = set(asked) & set(recorded) - set(known)
        connection.execute(
            text(
                "update sharequeue.topics set partitions = 0, seen_at = sharequeue.clock()"
                " where topic = any (cast(:gone as text[])) and partitions > 0"
            ),
            {"gone": sorted(gone)},
        )


def grown_groups(database: Database) -> list[str]:
    """The groups that have yet to start partitions by which a topic has grown."""
    rows = database.rows(text("select distinct group_id from sharequeue.grown_topics order by 1"))
    return [str(row["group_id"]) for row in rows]


def start_grown(database: Database, group_id: str) -> int:
    """Start a group's new partitions at 0; return how many there were. Locks the group's row."""
    with database.transaction() as connection:
        there = connection.execute(
            text("select from sharequeue.share_groups where group_id = :group_id for no key update"),
            {"group_id": group_id},
        ).one_or_none()
        grown = connection.execute(
            text(
                "delete from sharequeue.grown_topics g where g.group_id = :group_id"
                " returning g.topic, g.topic_id, g.first_new, g.partitions"
            ),
            {"group_id": group_id},
        ).all()
        if there is None:
            # Deleted meanwhile. A group made again since then has its row behind these: it is not locked any more.
            return 0
        # The state epoch is the group epoch, which the change of metadata has raised.
        connection.execute(
            text("select sharequeue.raise_group_epoch(:group_id, false)"), {"group_id": group_id}
        )
        started = 0
        for row in sorted(grown):
            # A group that was deleted since, or lost its offsets of the topic, begins by its policy.
            started += connection.execute(
                text(
                    "select count(*) filter (where sharequeue.initialize("
                    " g.group_id, :topic, p, :topic_id, 0, g.group_epoch))"
                    " from sharequeue.share_groups g, generate_series(:first_new, :last_new) as p"
                    " where g.group_id = :group_id and exists (select from sharequeue.share_partitions sp"
                    " where sp.group_id = g.group_id and sp.topic = :topic and sp.topic_id = :topic_id)"
                ),
                {
                    "group_id": group_id,
                    "topic": row.topic,
                    "topic_id": row.topic_id,
                    "first_new": row.first_new,
                    "last_new": row.partitions - 1,
                },
            ).scalar_one()
    return started


def _save(connection: Connection, topic: str, info: TopicInfo) -> None:
    connection.execute(
        text(
            "insert into sharequeue.topics (topic, topic_id, partitions, seen_at)"
            " values (:topic, :topic_id, :partitions, sharequeue.clock())"
            " on conflict on constraint topics_pkey do update set topic_id = excluded.topic_id,"
            " partitions = excluded.partitions, seen_at = excluded.seen_at"
        ),
        {"topic": topic, "topic_id": info.topic_id, "partitions": info.partitions},
    )


def _note_growth(connection: Connection, topic: str, info: TopicInfo, first_new: int) -> None:
    connection.execute(
        text(
            "insert into sharequeue.grown_topics (group_id, topic, topic_id, first_new, partitions)"
            " select distinct sp.group_id, sp.topic, sp.topic_id, cast(:first_new as integer),"
            " cast(:partitions as integer)"
            " from sharequeue.share_partitions sp where sp.topic = :topic and sp.topic_id = :topic_id"
            " on conflict do nothing"
        ),
        {"topic": topic, "topic_id": info.topic_id, "first_new": first_new, "partitions": info.partitions},
    )
