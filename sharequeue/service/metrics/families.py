"""The metrics that are read from the database, with their meaning.

Kafka's metrics have their names of the JMX exporter (`docs/reference/metrics.md`); ours begin with `sharequeue_`.
The figures that a process counts are in `registry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sharequeue.groups.replicas import Replicas
from sharequeue.service.health.faults import KINDS, Fault
from sharequeue.service.metrics.exposition import Family, Kind, Series, labelled
from sharequeue.words.figures import GroupFigures, SharePartitionStatus, words_of
from sharequeue.words.values import HeldDeadLetters

__all__ = [
    "DATABASE_UP",
    "FAULTS",
    "FAULT_AGE",
    "LETTERS_FAILED",
    "REPLICA_WORK",
    "SUMMED",
    "Read",
    "all_families",
    "of_database",
    "of_failed_letters",
    "of_faults",
    "of_work",
]


@dataclass(frozen=True, slots=True)
class Read:
    """The rows read for a scrape. The rows of groups have the sums over all their share-partitions."""

    groups: list[dict[str, Any]]
    states: Mapping[str, int]
    share_partitions: list[dict[str, Any]]
    members: list[dict[str, Any]]
    left_out: Mapping[str, int]
    replicas: Replicas
    held: list[tuple[HeldDeadLetters, float]]
    seconds: float


_PARTITION = ("group", "partition", "topic")
_COORDINATOR = "kafka_server_group_coordinator_metrics"
_GROUP_METRICS = "kafka_server_sharegroupmetrics"
_PARTITION_METRICS = "kafka_server_sharepartitionmetrics"

DATABASE_UP = Family(
    "sharequeue_database_up",
    "gauge",
    (),
    "1 if the database returns the figures within four seconds, else 0 with only the counts of this process.",
)
FAULTS = Family(
    "sharequeue_faults", "gauge", ("kind",), "The current faults in /ready of this replica, by kind."
)
FAULT_AGE = Family(
    "sharequeue_fault_age_seconds", "gauge", ("kind",), "Age of the oldest fault of a kind, in this replica."
)
REPLICA_WORK = Family(
    "sharequeue_replica_work_age_seconds",
    "gauge",
    ("work",),
    "Seconds since this replica last did each periodic task. Only one replica at a time watches.",
)
LETTERS_FAILED = Family(
    f"{_GROUP_METRICS}_deadletterqueuefailedproducerequests_total",
    "counter",
    ("group",),
    "Failed attempts of this replica to write the dead letters of a share-partition.",
)
_SECONDS = Family("sharequeue_read_seconds", "gauge", (), "Time that the database took for this scrape.")
_REPLICAS = Family("sharequeue_replicas", "gauge", (), "Replicas that were active in the last 15 s.")
_WORK = Family(
    "sharequeue_work_age_seconds",
    "gauge",
    ("work",),
    "Seconds since any replica last did the task: watch, sweep, journal, dead_letters.",
)
_LEFT_OUT = Family(
    "sharequeue_left_out",
    "gauge",
    ("of",),
    "Groups, share-partitions and members without their own series, because there are too many.",
)
_GROUP_COUNT = Family(f"{_COORDINATOR}_group_count", "gauge", ("protocol",), "Groups, by protocol.")
_STATE_COUNT = Family(f"{_COORDINATOR}_share_group_count", "gauge", ("state",), "Share groups, by state.")
_ACKNOWLEDGED = Family(
    f"{_GROUP_METRICS}_recordacknowledgements_total",
    "counter",
    ("ackType", "group"),
    "Records acknowledged: Accept, Release, Reject, Renew. Gaps are not counted.",
)
_FINISHED = Family(
    "sharequeue_group_finished_records_total",
    "counter",
    ("group", "outcome"),
    "Records that ended: accepted, rejected, exhausted (no delivery left), gap.",
)
_STATUS = Family(
    "sharequeue_share_partition_status",
    "gauge",
    (*_PARTITION, "status"),
    "1 for the status: active, paused, breaker_open, dead_letters_held, log_truncated, topic_deleted or"
    " topic_recreated.",
)
_HELD = Family(
    "sharequeue_share_partition_held_dead_letters",
    "gauge",
    _PARTITION,
    "Dead letters whose topic cannot be written; /ready has the reason.",
)


def _of_group(column: str, name: str, kind: Kind, meaning: str = "") -> tuple[str, Family]:
    """Return a metric of groups for a column; without `meaning` it has that of GroupFigures."""
    return column, Family(name, kind, ("group",), meaning or words_of(GroupFigures, column))


def _of_partition(column: str, name: str, kind: Kind, meaning: str = "") -> tuple[str, Family]:
    """Return a metric of share-partitions for a column; without `meaning` it has that of SharePartitionStatus."""
    name = name if name.startswith("kafka_") else f"sharequeue_share_partition_{name}"
    return column, Family(name, kind, _PARTITION, meaning or words_of(SharePartitionStatus, column))


_GROUP: Mapping[str, Family] = dict(
    (
        _of_group("members", "sharequeue_group_members", "gauge", "Members of a share group."),
        _of_group(
            "group_epoch",
            f"{_COORDINATOR}_share_group_rebalance_count",
            "untyped",
            "Rebalances of a group since its creation: its group epoch. Counts up.",
        ),
        _of_group("lag", "sharequeue_group_lag", "gauge"),
        _of_group("stuck_leases", "sharequeue_group_stuck_leases", "gauge"),
        _of_group(
            "oldest_waits_seconds",
            "sharequeue_group_oldest_record_age_seconds",
            "gauge",
            "Least time that the group's oldest unfinished record has waited.",
        ),
        _of_group(
            "drain_seconds",
            "sharequeue_group_time_to_drain_seconds",
            "gauge",
            "Time to process the lag at the rate of up to the last hour; no series while the rate is unknown.",
        ),
        _of_group("lost_records", "sharequeue_group_lost_records_total", "counter"),
        _of_group(
            "letters",
            f"{_GROUP_METRICS}_deadletterqueuerecordcount",
            "untyped",
            "Dead letters written to their topic. Counts up.",
        ),
        _of_group(
            "letter_batches",
            f"{_GROUP_METRICS}_deadletterqueuetotalproducerequests_total",
            "counter",
            "Batches of dead letters written, or dropped, by any writer.",
        ),
        _of_group(
            "dropped_letters",
            "sharequeue_group_dropped_dead_letters_total",
            "counter",
            "Dead letters dropped because they could not be written, if the group is configured to drop them.",
        ),
    )
)
_ACKNOWLEDGEMENTS = {"Accept": "accepted", "Release": "released", "Reject": "rejected", "Renew": "renewed"}
_OUTCOMES = ("accepted", "rejected", "exhausted", "gap")
_OTHERWISE = ("members", "group_epoch", "stuck_leases", "oldest_waits_seconds", "drain_seconds")
SUMMED = sorted({*_GROUP, *_ACKNOWLEDGEMENTS.values(), *_OUTCOMES}.difference(_OTHERWISE))
"""Figures of a group that are the sum over its share-partitions: columns of `monitored_share_partitions`."""

_SHARE_PARTITION: Mapping[str, Family] = dict(
    (
        _of_partition(
            "in_flight",
            f"{_PARTITION_METRICS}_inflightmessagecount",
            "gauge",
            "Span of the in-flight window: SPEO − SPSO, in offsets.",
        ),
        _of_partition(
            "in_flight_batches",
            f"{_PARTITION_METRICS}_inflightbatchcount",
            "gauge",
            "Batches in the in-flight window.",
        ),
        _of_partition(
            "lapsed",
            f"{_PARTITION_METRICS}_acquisitionlocktimeout_total",
            "counter",
            "Records whose lock lapsed.",
        ),
        _of_partition("lag", "lag", "gauge"),
        _of_partition("spso", "start_offset", "gauge"),
        _of_partition(
            "speo", "end_offset", "gauge", "SPEO: its rate is that of records acquired for the first time."
        ),
        _of_partition("log_end", "log_end_offset", "gauge"),
        _of_partition("acquired", "acquired_records", "gauge"),
        _of_partition("available", "available_records", "gauge"),
        _of_partition("archiving", "archiving_records", "gauge"),
        _of_partition(
            "lost_records",
            "lost_records_total",
            "counter",
            "Records that retention removed before they ended.",
        ),
        _of_partition(
            "oldest_waits_seconds",
            "oldest_record_age_seconds",
            "gauge",
            "Least time that the oldest unfinished record has waited; no series if all have ended.",
        ),
        _of_partition(
            "retention_seconds",
            "retention_seconds",
            "gauge",
            "Time until retention reaches SPSO, at its speed of up to the last hour; no series while it"
            " does not move.",
        ),
    )
)

_MEMBER: Mapping[str, Family] = {
    "records": Family(
        "sharequeue_member_acquired_records",
        "gauge",
        ("group", "member"),
        "Records that a member holds; of the 1,000 members with the oldest locks.",
    ),
    "oldest_lock_seconds": Family(
        "sharequeue_member_oldest_lock_age_seconds",
        "gauge",
        ("group", "member"),
        "Seconds since the member took the oldest lock that it holds; of the same members.",
    ),
}


def all_families() -> list[Family]:
    """Return every metric of this module."""
    return [
        *(
            DATABASE_UP,
            FAULTS,
            FAULT_AGE,
            REPLICA_WORK,
            LETTERS_FAILED,
            _SECONDS,
            _REPLICAS,
            _WORK,
            _LEFT_OUT,
        ),
        *(_GROUP_COUNT, _STATE_COUNT, _ACKNOWLEDGED, _FINISHED, _STATUS, _HELD),
        *(*_GROUP.values(), *_SHARE_PARTITION.values(), *_MEMBER.values()),
    ]


def of_faults(faults: list[Fault]) -> Iterator[tuple[Family, list[Series]]]:
    """Yield the number and age of current faults by kind."""
    by_kind = {kind: [each.age_seconds for each in faults if each.kind == kind] for kind in KINDS}
    yield FAULTS, [(labelled(["kind"], [kind]), len(ages)) for kind, ages in by_kind.items()]
    yield (
        FAULT_AGE,
        [(labelled(["kind"], [kind]), max(ages)) for kind, ages in by_kind.items() if ages],
    )


def of_work(family: Family, ages: Mapping[Any, float | None]) -> tuple[Family, list[Series]]:
    """Return the seconds since each kind of work was done."""
    return family, [(labelled(["work"], [work]), age) for work, age in ages.items()]


def of_failed_letters(failed: Mapping[str, int]) -> list[Series]:
    """Return the failed attempts to write dead letters, by group."""
    return [(labelled(["group"], [group]), tries) for group, tries in sorted(failed.items())]


def of_database(read: Read) -> Iterator[tuple[Family, list[Series]]]:
    """Yield all metrics of a scrape's reads."""
    yield DATABASE_UP, [("", 1)]
    yield _SECONDS, [("", read.seconds)]
    yield _REPLICAS, [("", read.replicas.alive)]
    yield of_work(_WORK, read.replicas.ages)
    yield _LEFT_OUT, [(labelled(["of"], [of]), rows) for of, rows in read.left_out.items()]
    yield _GROUP_COUNT, [(labelled(["protocol"], ["share"]), sum(read.states.values()))]
    states = ("Empty", "Stable", "Dead")
    yield _STATE_COUNT, [(labelled(["state"], [state]), read.states.get(state, 0)) for state in states]
    yield from _of_groups(read.groups)
    yield from _of_share_partitions(read)
    members = [
        (labelled(("group", "member"), (row["group_id"], row["member_id"])), row) for row in read.members
    ]
    for name, family in _MEMBER.items():
        yield family, [(labels, row[name]) for labels, row in members]


def _of_groups(rows: list[dict[str, Any]]) -> Iterator[tuple[Family, list[Series]]]:
    named = [(labelled(["group"], [row["group_id"]]), row) for row in rows]
    for name, family in _GROUP.items():
        yield family, [(labels, row[name]) for labels, row in named]
    yield (
        _ACKNOWLEDGED,
        [
            (labelled(_ACKNOWLEDGED.labels, (kind, row["group_id"])), row[name])
            for row in rows
            for kind, name in _ACKNOWLEDGEMENTS.items()
        ],
    )
    yield (
        _FINISHED,
        [
            (labelled(_FINISHED.labels, (row["group_id"], outcome)), row[outcome])
            for row in rows
            for outcome in _OUTCOMES
        ],
    )


def _of_share_partitions(read: Read) -> Iterator[tuple[Family, list[Series]]]:
    named = []
    status: list[Series] = []
    for row in read.share_partitions:
        labels = labelled(_PARTITION, (row["group_id"], str(row["partition"]), row["topic"]))
        row["in_flight"] = row["speo"] - row["spso"]
        named.append((labels, row))
        status.append((f'{labels[:-1]},status="{row["condition"]}"}}', 1))
    for name, family in _SHARE_PARTITION.items():
        yield family, [(labels, row[name]) for labels, row in named]
    yield _STATUS, status
    held = [(each, each.share_partition) for each, _ in read.held]
    yield (
        _HELD,
        [
            (labelled(_PARTITION, (at.group_id, str(at.partition), at.topic)), each.records)
            for each, at in held
        ],
    )
