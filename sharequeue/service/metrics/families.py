"""Which metrics does a scrape have of the database, and what do they mean?

Kafka's carry the names that they have behind the JMX exporter (`docs/reference/metrics.md`); ours begin with
`sharequeue_`. What a process counts itself is in `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sharequeue.service.health.faults import KINDS, Fault
from sharequeue.service.metrics.exposition import Family, Kind, Series, labelled
from sharequeue.service.metrics.figures import Read

__all__ = [
    "DATABASE_UP",
    "FAULTS",
    "FAULT_AGE",
    "LETTERS_FAILED",
    "REPLICA_WORK",
    "all_families",
    "of_database",
    "of_failed_letters",
    "of_faults",
    "of_work",
]

_PARTITION = ("group", "partition", "topic")
_COORDINATOR = "kafka_server_group_coordinator_metrics"
_GROUP_METRICS = "kafka_server_sharegroupmetrics"
_PARTITION_METRICS = "kafka_server_sharepartitionmetrics"

DATABASE_UP = Family(
    "sharequeue_database_up",
    "gauge",
    (),
    "1 while the database has the figures within four seconds, else 0; then only what this process counts is there.",
)
FAULTS = Family(
    "sharequeue_faults", "gauge", ("kind",), "What is wrong now, as /ready of this replica has it, by kind."
)
FAULT_AGE = Family(
    "sharequeue_fault_age_seconds", "gauge", ("kind",), "Age of the oldest fault of a kind, in this replica."
)
REPLICA_WORK = Family(
    "sharequeue_replica_work_age_seconds",
    "gauge",
    ("work",),
    "Seconds since this replica last did what replicas do by themselves. Only one replica at a time watches.",
)
LETTERS_FAILED = Family(
    f"{_GROUP_METRICS}_deadletterqueuefailedproducerequests_total",
    "counter",
    ("group",),
    "Tries of this replica to write the dead letters of a share-partition that failed.",
)
_SECONDS = Family("sharequeue_read_seconds", "gauge", (), "How long the database took for this scrape.")
_REPLICAS = Family("sharequeue_replicas", "gauge", (), "Replicas that were at work in the last 15 s.")
_WORK = Family(
    "sharequeue_work_age_seconds",
    "gauge",
    ("work",),
    "Seconds since any replica last did it: watch, sweep, journal, dead_letters.",
)
_LEFT_OUT = Family(
    "sharequeue_left_out",
    "gauge",
    ("of",),
    "Groups, share-partitions and members that have no series of their own, because there are too many.",
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


def _of_group(name: str, kind: Kind, meaning: str) -> Family:
    return Family(name, kind, ("group",), meaning)


_GROUP: Mapping[str, Family] = {
    "members": _of_group("sharequeue_group_members", "gauge", "Members of a share group."),
    "group_epoch": _of_group(
        f"{_COORDINATOR}_share_group_rebalance_count",
        "untyped",
        "Rebalances of a group since it was made: its group epoch. Counts up.",
    ),
    "lag": _of_group("sharequeue_group_lag", "gauge", "Records not yet processed for good."),
    "stuck_leases": _of_group(
        "sharequeue_group_stuck_leases",
        "gauge",
        "Leases that nobody brings to an end: the member is gone, or the lock lapsed long ago.",
    ),
    "oldest_waits_seconds": _of_group(
        "sharequeue_group_oldest_record_age_seconds",
        "gauge",
        "How long the group's oldest unfinished record has waited at least.",
    ),
    "drain_seconds": _of_group(
        "sharequeue_group_time_to_drain_seconds",
        "gauge",
        "How long the lag takes at the rate of the last hour at most; no series while the rate is not known.",
    ),
    "lost_records": _of_group(
        "sharequeue_group_lost_records_total", "counter", "Records that retention took before they ended."
    ),
    "letters": _of_group(
        f"{_GROUP_METRICS}_deadletterqueuerecordcount",
        "untyped",
        "Dead letters written to their topic. Counts up.",
    ),
    "letter_batches": _of_group(
        f"{_GROUP_METRICS}_deadletterqueuetotalproducerequests_total",
        "counter",
        "Batches of dead letters written, or dropped, by whoever wrote them.",
    ),
    "dropped_letters": _of_group(
        "sharequeue_group_dropped_dead_letters_total",
        "counter",
        "Dead letters dropped because they could not be written, where a group is set to drop them.",
    ),
}


def _of_partition(name: str, kind: Kind, meaning: str) -> Family:
    return Family(name, kind, _PARTITION, meaning)


_SHARE_PARTITION: Mapping[str, Family] = {
    "in_flight": _of_partition(
        f"{_PARTITION_METRICS}_inflightmessagecount",
        "gauge",
        "Span of the in-flight window: SPEO − SPSO, in offsets.",
    ),
    "in_flight_batches": _of_partition(
        f"{_PARTITION_METRICS}_inflightbatchcount", "gauge", "Batches in the in-flight window."
    ),
    "lapsed": _of_partition(
        f"{_PARTITION_METRICS}_acquisitionlocktimeout_total", "counter", "Records whose lock lapsed."
    ),
    "lag": _of_partition("sharequeue_share_partition_lag", "gauge", "Records not yet processed for good."),
    "spso": _of_partition("sharequeue_share_partition_start_offset", "gauge", "SPSO."),
    "speo": _of_partition(
        "sharequeue_share_partition_end_offset",
        "gauge",
        "SPEO: its rate is that of records acquired for the first time.",
    ),
    "log_end": _of_partition(
        "sharequeue_share_partition_log_end_offset", "gauge", "The log's end, as last seen."
    ),
    "acquired": _of_partition(
        "sharequeue_share_partition_acquired_records", "gauge", "Records held under a lock."
    ),
    "available": _of_partition(
        "sharequeue_share_partition_available_records", "gauge", "Records waiting to be delivered again."
    ),
    "archiving": _of_partition(
        "sharequeue_share_partition_archiving_records", "gauge", "Dead letters that are not written yet."
    ),
    "lost_records": _of_partition(
        "sharequeue_share_partition_lost_records_total",
        "counter",
        "Records that retention took before they ended.",
    ),
    "oldest_waits_seconds": _of_partition(
        "sharequeue_share_partition_oldest_record_age_seconds",
        "gauge",
        "How long the oldest unfinished record has waited at least; no series where all have ended.",
    ),
    "retention_seconds": _of_partition(
        "sharequeue_share_partition_retention_seconds",
        "gauge",
        "How long until retention reaches SPSO, at its speed in the last hour at most; no series while it stands"
        " still.",
    ),
}

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
    """What is wrong now, by kind."""
    by_kind = {kind: [each.age_seconds for each in faults if each.kind == kind] for kind in KINDS}
    yield FAULTS, [(labelled(["kind"], [kind]), len(ages)) for kind, ages in by_kind.items()]
    yield (
        FAULT_AGE,
        [(labelled(["kind"], [kind]), max(ages)) for kind, ages in by_kind.items() if ages],
    )


def of_work(family: Family, ages: Mapping[Any, float | None]) -> tuple[Family, list[Series]]:
    """Ages by kind of work."""
    return family, [(labelled(["work"], [work]), age) for work, age in ages.items()]


def of_failed_letters(failed: Mapping[str, int]) -> list[Series]:
    """Failed tries to write dead letters, by group."""
    return [(labelled(["group"], [group]), tries) for group, tries in sorted(failed.items())]


def of_database(read: Read) -> Iterator[tuple[Family, list[Series]]]:
    """Everything that a scrape has read."""
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
    types = {"Accept": "accepted", "Release": "released", "Reject": "rejected", "Renew": "renewed"}
    yield (
        _ACKNOWLEDGED,
        [
            (labelled(_ACKNOWLEDGED.labels, (kind, row["group_id"])), row[name])
            for row in rows
            for kind, name in types.items()
        ],
    )
    yield (
        _FINISHED,
        [
            (labelled(_FINISHED.labels, (row["group_id"], outcome)), row[outcome])
            for row in rows
            for outcome in ("accepted", "rejected", "exhausted", "gap")
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
