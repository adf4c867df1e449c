"""The topics that groups need, and their last known state.

The coordinator's records of the broker, in the tables `topics` and `share_partitions`: the names to request, each
group's state of them, and how a result is recorded. A deleted topic stays recorded with 0 partitions. Partitions that
are added to a topic start at 0 in every group that knows the topic, for any reset policy (R-OR-3).
They are recorded in the same transaction as the growth, and each group starts them in a separate step before any
other partition of the topic. Partitions without a start offset after that existed when the group began, and start by
the policy.
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
"""The approximate number of missing topics that are requested in a turn, for all groups together."""


@dataclass(frozen=True, slots=True)
class WatchedGroup:
    """The topics to which a group's members subscribe, and the partitions for which it has state.

    Of the topics missing at the broker, `subscribed` has only those of the current turn; `missing` is the number of
    all.
    """

    group_id: str
    subscribed: tuple[str, ...]
    initialized: Mapping[str, frozenset[int]]
    topic_ids: Mapping[str, str]
    missing: int = 0
    asked: int = 0
    """The number of missing topics in `subscribed`."""


def unknown_topics(database: Database, group_id: str, principal: str, names: Iterable[str]) -> list[str]:
    """Return those of `names` that were not requested from the broker yet, or were missing there.

    Only names that a heartbeat of the principal may use in the group.
    """
    rows = database.rows(
        text("select sharequeue.unknown_topics(:group_id, :principal, cast(:names as text[])) as names"),
        group_id=group_id,
        principal=principal,
        names=sorted(set(names)),
    )
    return list(rows[0]["names"])


def watched_groups(database: Database, turn: int = 0, at_once: int = MISSING_AT_ONCE) -> list[WatchedGroup]:
    """Return every group with members or state, with its subscribed topics and those that are initialised.

    Members may subscribe to any number of missing topics. Each group has a share of `at_once`: a group with no more
    missing names than its share gets all of them at each turn, whatever the other groups have; a group with more gets
    one part of them at each turn, and all of them after as many turns as it has parts.
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


# Members of a group mostly subscribe to the same topics: their arrays are compared before they are unnested. A name's
# part is chosen by its hash: nothing is sorted, and no state is kept between turns.
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
    """The last known state of topics, and the work that is still to be done."""

    topics: Mapping[str, TopicInfo]
    grown: tuple[str, ...]
    """The groups that must still start the partitions added to a topic."""
    some_gone: bool
    """Whether a topic for which a group has state was missing when the broker was last asked."""

    def differs(self, known: Mapping[str, TopicInfo], asked: Iterable[str]) -> bool:
        """Return whether the broker's result differs from the recorded state."""
        gone = (self.topics.get(name) for name in asked if name not in known)
        return any(self.topics.get(name) != info for name, info in known.items()) or any(
            info is not None and info.partitions > 0 for info in gone
        )


def recorded(database: Database) -> Recorded:
    """Return the last known state of all topics."""
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
    """Record the broker's result: `known` are those of the topics `asked` for that it has.

    If a topic has grown, call `start_grown` for the groups that know it. Nothing is written for an unchanged topic.
    Return the topics whose row is locked by another transaction: they are not recorded.
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

    Those are the groups with changed logs. For the others the time of the check is recorded.
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
            # Deleted meanwhile. A group created again since then has a newer row, which is not locked here.
            return 0
        # The state epoch is the group epoch, which the metadata change has increased.
        connection.execute(
            text("select sharequeue.raise_group_epoch(:group_id, false)"), {"group_id": group_id}
        )
        started = 0
        for row in sorted(grown):
            # A group that was deleted since, or whose offsets of the topic were deleted, starts by its policy.
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
