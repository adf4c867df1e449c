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
from itertools import groupby

from sqlalchemy import Connection, text

from sharequeue.database import Database
from sharequeue.database.arrays import array_of_numbers, array_of_texts
from sharequeue.kafka.topics import LogOffsets, TopicInfo

MISSING_AT_ONCE = 2_000
"""Names that the broker was not seen to have, asked for in a turn: about so many, for all groups together."""


@dataclass(frozen=True, slots=True)
class WatchedGroup:
    """What a group's members subscribe to, and which partitions of which topics it has state for.

    Of names that the broker was not seen to have, only those whose turn it is are in `subscribed`; `missing` is how
    many there are.
    """

    group_id: str
    subscribed: tuple[str, ...]
    initialized: Mapping[str, frozenset[int]]
    topic_ids: Mapping[str, str]
    missing: int = 0
    asked: int = 0
    """How many of the missing ones are in `subscribed`."""


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


def watched_groups(database: Database, turn: int = 0, at_once: int = MISSING_AT_ONCE) -> list[WatchedGroup]:
    """Every group with members or state, with what it subscribes to and what of it is initialised.

    Members may name any number of topics that are not there. Each group has its part of `at_once`: one that has no
    more missing names than that has all of them at each turn, whatever the others have; one that has more has another
    part of them at each turn, and all in so many turns as it has parts.
    """
    rows = database.rows(_WATCHED, turn=turn, at_once=at_once)
    groups: list[WatchedGroup] = []
    for group_id, of_group in groupby(rows, lambda row: str(row["group_id"])):
        subscribed: list[str] = []
        initialized: dict[str, frozenset[int]] = {}
        topic_ids: dict[str, str] = {}
        missing = asked = 0
        for row in of_group:
            topic = row["topic"]
            if row["missing"] is not None:
                missing = row["missing"]
                asked += topic is not None
            if row["topic_id"] is not None:
                initialized[topic] = frozenset(row["partitions"])
                topic_ids[topic] = str(row["topic_id"])
            elif topic is not None:
                subscribed.append(topic)
        groups.append(WatchedGroup(group_id, tuple(subscribed), initialized, topic_ids, missing, asked))
    return groups


# Members of a group mostly subscribe to the same: their arrays are compared before they are taken apart. A name's
# part is by its hash: nothing is sorted, and nothing remembered from turn to turn.
_WATCHED = text(
    "with subscribed as materialized ("
    " select distinct s.group_id, n.topic, t.topic is not null as known"
    " from (select distinct group_id, subscribed_topic_names from sharequeue.members) as s"
    " cross join lateral unnest(s.subscribed_topic_names) as n (topic)"
    " left join sharequeue.topics t on t.topic = n.topic and t.partitions > 0"
    "), missing as materialized ("
    " select c.group_id, c.missing,"
    " cast(ceil(c.missing * count(*) over () / cast(:at_once as float8)) as bigint) as parts"
    " from (select group_id, count(*) as missing from subscribed where not known group by group_id) as c"
    ")"
    " select group_id, topic, cast(null as text) as topic_id, cast(null as integer[]) as partitions,"
    " cast(null as bigint) as missing from subscribed where known"
    " union all select s.group_id, s.topic, null, null, m.missing from subscribed s join missing m using (group_id)"
    " where not s.known and (hashtextextended(s.topic, 0) & 9223372036854775807) % m.parts = :turn % m.parts"
    " union all select group_id, null, null, null, missing from missing"
    " union all select group_id, topic, min(topic_id), array_agg(partition), null"
    " from sharequeue.share_partitions group by group_id, topic order by 1, 2"
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was last known of topics, and what is still to be done about it."""

    topics: Mapping[str, TopicInfo]
    grown: tuple[str, ...]
    """The groups that have yet to start partitions by which a topic has grown."""
    some_gone: bool
    """Whether a topic that some group has state of was gone when the broker was last asked."""

    def differs(self, known: Mapping[str, TopicInfo], asked: Iterable[str]) -> bool:
        """Whether what the broker returned now is something new."""
        gone = (self.topics.get(name) for name in asked if name not in known)
        return any(self.topics.get(name) != info for name, info in known.items()) or any(
            info is not None and info.partitions > 0 for info in gone
        )


def recorded(database: Database) -> Recorded:
    """What was last known of all topics."""
    [row] = database.rows(
        text(
            "select (select coalesce(jsonb_object_agg(topic, jsonb_build_array(topic_id, partitions)), '{}')"
            " from sharequeue.topics) as topics,"
            " array(select distinct group_id from sharequeue.grown_topics order by 1) as grown,"
            " exists (select from sharequeue.gone_topics) as some_gone"
        )
    )
    topics = {name: TopicInfo(*info) for name, info in row["topics"].items()}
    return Recorded(topics, tuple(row["grown"]), row["some_gone"])


def record_topics(database: Database, known: Mapping[str, TopicInfo], asked: Iterable[str]) -> set[str]:
    """Record what the broker returned: `known` are those of the topics `asked` for that it has.

    Where a topic has grown, `start_grown` is to be called for the groups that know it. Nothing is written for a topic
    of which nothing is new. Return the topics whose row another transaction holds: nothing is recorded of them.
    """
    asked = set(asked)
    with database.transaction() as connection:
        before = connection.execute(
            text("select topic, topic_id, partitions from sharequeue.topics order by topic")
        ).all()
        last = {row.topic: TopicInfo(row.topic_id, row.partitions) for row in before}
        news = {name for name, info in known.items() if last.get(name) != info}
        news |= {name for name in asked - set(known) if name in last and last[name].partitions > 0}
        if not news:
            return set()
        locked = connection.execute(
            text(
                "select topic, topic_id, partitions from sharequeue.topics"
                " where topic = any (cast(:names as text[])) order by topic for update skip locked"
            ),
            {"names": sorted(news)},
        ).all()
        now = {row.topic: TopicInfo(row.topic_id, row.partitions) for row in locked}
        held = news & set(last) - set(now)
        for topic in sorted(news & set(known) - held):
            info, before_it = known[topic], now.get(topic)
            _save(connection, topic, info)
            if (
                before_it
                and before_it.topic_id == info.topic_id
                and 0 < before_it.partitions < info.partitions
            ):
                _note_growth(connection, topic, info, before_it.partitions)
        connection.execute(
            text(
                "update sharequeue.topics set partitions = 0, seen_at = sharequeue.clock()"
                " where topic = any (cast(:gone as text[])) and partitions > 0"
            ),
            {"gone": sorted(news - set(known) - held)},
        )
    return held


def confirm_logs(
    database: Database, known: Mapping[str, TopicInfo], logs: Mapping[tuple[str, int], LogOffsets]
) -> set[str]:
    """Compare the offsets of all logs with what is recorded, for all groups; return the groups to observe.

    Those are the groups of which something is new. For the other ones it is noted that nothing is.
    """
    at = [key for key in logs if key[0] in known]
    [row] = database.rows(
        text(
            "select sharequeue.confirm_observations(cast(:topics as text[]), cast(:partitions as integer[]),"
            " cast(:topic_ids as text[]), cast(:log_starts as bigint[]), cast(:log_ends as bigint[]),"
            " cast(:stable as bigint[])) as due"
        ),
        topics=array_of_texts(topic for topic, _ in at),
        partitions=array_of_numbers(partition for _, partition in at),
        topic_ids=array_of_texts(known[topic].topic_id for topic, _ in at),
        log_starts=array_of_numbers(logs[key].log_start for key in at),
        log_ends=array_of_numbers(logs[key].log_end for key in at),
        stable=array_of_numbers(logs[key].last_stable_offset for key in at),
    )
    return set(row["due"])


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
