"""Remarks on share groups: what an operator must know to read their figures.

Only this module makes them: what stops a share-partition, a lag that is out of date, what has no state yet, and
results that the target of a sink does not take, each with the reason. Commands, HTTP answers, pages, reports and
Dagster's metadata show them. Read only, from Postgres.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.figures import OBSTACLES, SharePartitionStatus, column_list
from sharequeue.domain.moments import span
from sharequeue.domain.names import listed, plural
from sharequeue.domain.values import WaitingResults
from sharequeue.reports.first_run import NO_STATE
from sharequeue.state import State
from sharequeue.state.replicas import ALIVE_SECONDS, LATE_SECONDS, read_replicas

__all__ = [
    "Line",
    "Remark",
    "TopicWatch",
    "joined_remarks",
    "lines_of",
    "remarks_of",
    "remarks_of_groups",
    "remarks_on",
]

MOST_FOUND = 1_000
"""The share-partitions of several groups that `remarks_of_groups` reads."""
_TOPIC_NOT_READ = "the service is running, but does not get this topic: its log and `/ready` have the reason"

_NOT_STARTED = (
    "the service does it in seconds while a member subscribes to the topic; if not, its log and `/ready` have the "
    "reason, such as a partition without a leader"
)
_NO_SUCH_TOPIC = (
    "the broker has no such topic, or does not show it to the service: check the name in the subscription, or create "
    "the topic"
)
_SUSPECTS = (
    "{} are suspects: their last delivery ended without an acknowledgement, perhaps because one of them killed its "
    "process, so they are delivered again in parts"
)
_LETTER_KEYS = (
    "{} dead letters, and their later records are held until each letter is redriven or discarded (`sharequeue dlq "
    "redrive`, `sharequeue dlq discard`); `sharequeue groups describe --group {} --keys` lists them"
)
_NO_SUBSCRIPTION = (
    "no share-partition yet: no member subscribes to a topic. A run or a consumer creates them for its topics; if it "
    "has ended already, its error has the reason, such as a topic that does not exist"
)


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark on a share-partition, on a topic without one, or, without a topic, on a group."""

    group_id: str
    remark: str
    topic: str | None = None
    partition: int | None = None

    @property
    def about(self) -> str:
        """The name of the share-partition or the topic; empty for a group."""
        return "-".join(str(part) for part in (self.topic, self.partition) if part is not None)


@dataclass(frozen=True, slots=True)
class Line:
    """A remark on a group, with all share-partitions or topics that it is about."""

    group_id: str
    remark: str
    about: Sequence[str]

    @property
    def text(self) -> str:
        """The remark behind the first names."""
        return ": ".join(filter(None, (listed(self.about), self.remark)))


@dataclass(frozen=True, slots=True)
class TopicWatch:
    """Whether the service reads the broker's topics, as of `now`; if it does not, why, and what to do."""

    now: datetime
    trouble: str | None
    late_seconds: float
    """The age of an observation from which on a lag is out of date."""

    @classmethod
    def read(cls, database: Database) -> Self:
        """Read it from what the replicas of the service have stored."""
        replicas, now = read_replicas(database), State(database).now()
        age, trouble = replicas.ages["watch"], None
        if not replicas.alive:
            trouble = (
                "no service is running: start one with `sharequeue serve`, or `sharequeue up` for the stack of this "
                "machine"
            )
        elif age is None or age > LATE_SECONDS["watch"]:
            late = "has not read the broker's topics yet"
            if age is not None:
                late = f"has not read the broker's topics for {span(timedelta(seconds=age))}"
            trouble = f"the service {late}: its log and `/ready` have the reason"
        return cls(now, trouble, LATE_SECONDS["watch"] if replicas.alive else ALIVE_SECONDS)

    def outdated(self, status: SharePartitionStatus) -> str | None:
        """Return why a share-partition's lag is out of date; None if it is not, or if a fault explains the lag."""
        seen = status.observed_at
        if status.fault or status.status == NO_STATE:
            return None
        if seen is None:
            since = "the end of the log has not been read yet: the lag does not count what is in it"
        elif abs(self.now - seen).total_seconds() > self.late_seconds:
            since = (
                f"the end of the log was last read at {seen.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC "
                f"({span(self.now - seen)} ago): the lag does not count newer records"
            )
        else:
            return None
        return f"{since}. The reason: {self.trouble or _TOPIC_NOT_READ}"


def remarks_of(
    database: Database,
    group_id: str,
    statuses: Iterable[SharePartitionStatus],
    watch: TopicWatch | None = None,
    results: Iterable[WaitingResults] | None = None,
) -> list[Remark]:
    """Return all remarks on a group: on these share-partitions, on what has no state yet, and on results that wait.

    `watch` and `results` are read if they are not given.
    """
    found = _of_all(database, [group_id], statuses, watch or TopicWatch.read(database))
    if results is None:
        results = State(database).outputs.waiting_results([group_id])
    return [*found, *_on_results(results)]


def remarks_of_groups(database: Database, group_ids: Sequence[str]) -> list[Remark]:
    """Return the remarks on groups, except that a group has no share-partitions and no subscription.

    Of all their share-partitions the first MOST_FOUND with a remark are read.
    """
    watch = TopicWatch.read(database)
    rows = database.rows(
        _NOTEWORTHY,
        groups=list(group_ids),
        obstacles=list(OBSTACLES),
        late_seconds=watch.late_seconds,
        most=MOST_FOUND,
    )
    found = _of_all(database, group_ids, [SharePartitionStatus(**row) for row in rows], watch)
    results = State(database).outputs.waiting_results(group_ids)
    return [*(each for each in found if each.topic is not None), *_on_results(results)]


def remarks_on(status: SharePartitionStatus, watch: TopicWatch) -> list[Remark]:
    """Return the remarks on a share-partition."""
    paused = status.paused_reason and f"paused: {status.paused_reason}"
    suspects = status.suspects and _SUSPECTS.format(plural(status.suspects, "available record"))
    texts = (
        *(status.fault, paused, status.held_reason, status.obstacle, suspects),
        *(_behind_letters(status), watch.outdated(status)),
    )
    return [Remark(status.group_id, text, status.topic, status.partition) for text in texts if text]


def _on_results(results: Iterable[WaitingResults]) -> list[Remark]:
    """Return which accepted rows wait because the table or topic of their sink could not be written."""
    return [
        Remark(
            each.group_id, f"{plural(each.rows, 'accepted row')} of sink {each.sink} wait: {each.held_reason}"
        )
        for each in results
        if each.held_reason is not None
    ]


def _behind_letters(status: SharePartitionStatus) -> str | None:
    """Return which keys wait for an operator, and what to do."""
    if not status.letter_keys:
        return None
    wait = "waits for" if status.letter_keys == 1 else "wait for"
    return _LETTER_KEYS.format(f"{plural(status.letter_keys, 'key')} {wait}", status.group_id)


def joined_remarks(remarks: Iterable[Remark]) -> dict[tuple[str | None, int | None], str]:
    """Return the remarks on a group as one text for each share-partition or topic."""
    found: dict[tuple[str | None, int | None], list[str]] = {}
    for each in remarks:
        found.setdefault((each.topic, each.partition), []).append(each.remark)
    return {at: "; ".join(texts) for at, texts in found.items()}


def lines_of(remarks: Iterable[Remark]) -> list[Line]:
    """Return each remark on a group once, with all that it is about."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in remarks:
        found.setdefault((each.group_id, each.remark), []).extend(filter(None, (each.about,)))
    return [Line(group_id, remark, about) for (group_id, remark), about in found.items()]


def _of_all(
    database: Database,
    group_ids: Sequence[str],
    statuses: Iterable[SharePartitionStatus],
    watch: TopicWatch,
) -> list[Remark]:
    found = [remark for status in statuses for remark in remarks_on(status, watch)]
    for row in database.rows(_WITHOUT_STATE, groups=list(group_ids)):
        topic, partition = row["topic"], row["partition"]
        found.append(Remark(row["group_id"], _absence(topic, partition, watch), topic, partition))
    return sorted(found, key=lambda each: (each.group_id, each.topic or "", each.partition or 0))


def _absence(topic: str | None, partition: int | None, watch: TopicWatch) -> str:
    """Return why a partition, a subscribed topic or a whole group has no state."""
    if partition is not None:
        return f"not initialised yet, so the lag does not count it: {watch.trouble or _NOT_STARTED}"
    if topic is not None:
        why = watch.trouble or _NO_SUCH_TOPIC
        return f"no share-partition yet: {why}"
    return (
        _NO_SUBSCRIPTION
        if watch.trouble is None
        else f"{_NO_SUBSCRIPTION}. Members cannot join: {watch.trouble}"
    )


_NOTEWORTHY = sa.text(
    f"select {column_list(SharePartitionStatus)} from sharequeue.share_partition_status"  # noqa: S608 - our columns
    " where group_id = any (cast(:groups as text[]))"
    " and (coalesce(paused_reason, fault, held_reason) is not null or observed_at is null"
    " or blocked_by = any (cast(:obstacles as text[])) or suspects > 0 or letter_keys > 0"
    " or abs(extract(epoch from sharequeue.clock() - observed_at)) > :late_seconds)"
    " order by group_id, topic, partition limit :most"
)
# Partitions without state, subscribed topics without partitions, and groups with neither state nor a subscription.
_WITHOUT_STATE = sa.text(
    "with asked as (select unnest(cast(:groups as text[])) as group_id),"
    " awaited as materialized (select group_id, topic, partition from sharequeue.awaited_share_partitions"
    "  where group_id = any (cast(:groups as text[]))),"
    " begun as materialized (select distinct group_id, topic from sharequeue.share_partition_times"
    "  where group_id = any (cast(:groups as text[]))),"
    " subscribed as materialized (select distinct group_id, unnest(subscribed_topic_names) as topic"
    "  from sharequeue.group_members where group_id = any (cast(:groups as text[])))"
    " select group_id, topic, partition from awaited"
    " union all select group_id, topic, null from (select group_id, topic from subscribed"
    "  except select group_id, topic from begun except select group_id, topic from awaited) as absent"
    " union all select group_id, null, null from asked a where not exists (select from begun b"
    "  where b.group_id = a.group_id) and not exists (select from subscribed s where s.group_id = a.group_id)"
)
