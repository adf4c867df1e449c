"""The metrics that are read from the database, with their meaning, and Prometheus's text format.

Kafka's metrics have their names of the JMX exporter (`docs/reference/metrics.md`); ours begin with `sharequeue_`.
The figures that a process counts are in `registry`. The text is written without prometheus_client, which takes
seconds for the series of 10,000 share-partitions: here the labels of a row are formatted once for all its metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sharequeue.domain.figures import GroupFigures, SharePartitionStatus, words_of
from sharequeue.domain.values import HeldDeadLetters
from sharequeue.service.health.faults import KINDS, Fault
from sharequeue.state.replicas import Replicas

__all__ = ["SUMMED", "Family", "Read", "all_families", "of_database", "of_process", "unavailable"]

Kind = Literal["gauge", "counter", "untyped"]
Series = tuple[str, float | None]
"""Labels as text, and the value; None if unknown: then there is no series."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name in a scrape, its type, labels and meaning. Kafka's counters whose names do not end in
    `_total` are untyped."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str

    def of(self, *values: str) -> str:
        """Return labels with these values as text, escaped so that a value cannot forge a line."""
        pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(self.labels, values, strict=True))
        return "{" + ",".join(pairs) + "}"


@dataclass(frozen=True, slots=True)
class Read:
    """The rows read for a scrape. The rows of groups have the sums over all their share-partitions."""

    groups: list[dict[str, Any]]
    states: Mapping[str, int]
    share_partitions: list[dict[str, Any]]
    members: list[dict[str, Any]]
    replicas: Replicas
    held: list[tuple[HeldDeadLetters, float]]
    seconds: float


_COORDINATOR = "kafka_server_group_coordinator_metrics"
_GROUP_METRICS = "kafka_server_sharegroupmetrics"
_PARTITION_METRICS = "kafka_server_sharepartitionmetrics"
_PARTITION = ("group", "partition", "topic")


def _gauge(name: str, meaning: str, *labels: str) -> Family:
    return Family(name, "gauge", labels, meaning)


_DATABASE_UP = _gauge(
    "sharequeue_database_up",
    "1 if the database returns the figures within four seconds, else 0 with only the counts of this process.",
)
_FAULTS = _gauge("sharequeue_faults", "The current faults in /ready of this replica, by kind.", "kind")
_FAULT_AGE = _gauge(
    "sharequeue_fault_age_seconds", "Age of the oldest fault of a kind, in this replica.", "kind"
)
_REPLICA_WORK = _gauge(
    "sharequeue_replica_work_age_seconds",
    "Seconds since this replica last did each periodic task. Only one replica at a time watches.",
    "work",
)
_LETTERS_FAILED = Family(
    f"{_GROUP_METRICS}_deadletterqueuefailedproducerequests_total",
    "counter",
    ("group",),
    "Failed attempts of this replica to write the dead letters of a share-partition.",
)
_SECONDS = _gauge("sharequeue_read_seconds", "Time that the database took for this scrape.")
_REPLICAS = _gauge("sharequeue_replicas", "Replicas that were active in the last 15 s.")
_WORK = _gauge(
    "sharequeue_work_age_seconds",
    "Seconds since any replica last did the task: watch, sweep, journal, dead_letters.",
    "work",
)
_GROUP_COUNT = _gauge(f"{_COORDINATOR}_group_count", "Groups, by protocol.", "protocol")
_STATE_COUNT = _gauge(f"{_COORDINATOR}_share_group_count", "Share groups, by state.", "state")
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
_STATUS = _gauge(
    "sharequeue_share_partition_status",
    "1 for the status: active, paused, breaker_open, dead_letters_held, log_truncated, topic_deleted or"
    " topic_recreated.",
    *(*_PARTITION, "status"),
)
_HELD = _gauge(
    "sharequeue_share_partition_held_dead_letters",
    "Dead letters whose topic cannot be written; /ready has the reason.",
    *_PARTITION,
)

Row = tuple[str, str, Kind, str]
"""A column, the name of its metric, its type, and its meaning; if that is empty, it is that of the figure."""

_OF_GROUPS: tuple[Row, ...] = (
    ("members", "members", "gauge", "Members of a share group."),
    (
        "group_epoch",
        f"{_COORDINATOR}_share_group_rebalance_count",
        "untyped",
        "Rebalances of a group since its creation: its group epoch. Counts up.",
    ),
    ("lag", "lag", "gauge", ""),
    ("stuck_leases", "stuck_leases", "gauge", ""),
    (
        "oldest_waits_seconds",
        "oldest_record_age_seconds",
        "gauge",
        "Least time that the group's oldest unfinished record has waited.",
    ),
    ("lost_records", "lost_records_total", "counter", ""),
    ("held_records", "held_records", "gauge", ""),
    ("open_keys", "open_keys", "gauge", ""),
    ("letter_keys", "letter_keys", "gauge", ""),
    ("results_waiting", "waiting_results", "gauge", ""),
    (
        "results_oldest_seconds",
        "oldest_waiting_result_age_seconds",
        "gauge",
        "Seconds since the first of the waiting results were acknowledged; no series if none wait.",
    ),
    ("results_held", "held_result_sinks", "gauge", ""),
    (
        "letters",
        f"{_GROUP_METRICS}_deadletterqueuerecordcount",
        "untyped",
        "Dead letters written to their topic. Counts up.",
    ),
    (
        "letter_batches",
        f"{_GROUP_METRICS}_deadletterqueuetotalproducerequests_total",
        "counter",
        "Batches of dead letters written, or dropped, by any writer.",
    ),
    (
        "dropped_letters",
        "dropped_dead_letters_total",
        "counter",
        "Dead letters dropped because they could not be written, if the group is configured to drop them.",
    ),
)
_OF_SHARE_PARTITIONS: tuple[Row, ...] = (
    (
        "in_flight",
        f"{_PARTITION_METRICS}_inflightmessagecount",
        "gauge",
        "Span of the in-flight window: SPEO − SPSO, in offsets.",
    ),
    (
        "in_flight_batches",
        f"{_PARTITION_METRICS}_inflightbatchcount",
        "gauge",
        "Batches in the in-flight window.",
    ),
    (
        "lapsed",
        f"{_PARTITION_METRICS}_acquisitionlocktimeout_total",
        "counter",
        "Records whose lock lapsed.",
    ),
    ("lag", "lag", "gauge", ""),
    ("spso", "start_offset", "gauge", ""),
    (
        "speo",
        "end_offset",
        "gauge",
        "SPEO: its rate is that of records acquired for the first time.",
    ),
    ("log_start", "log_start_offset", "gauge", ""),
    ("log_end", "log_end_offset", "gauge", ""),
    ("acquired", "acquired_records", "gauge", ""),
    ("available", "available_records", "gauge", ""),
    ("archiving", "archiving_records", "gauge", ""),
    ("lost_records", "lost_records_total", "counter", "Records that retention removed before they ended."),
    ("held_records", "held_records", "gauge", ""),
    ("open_keys", "open_keys", "gauge", ""),
    ("letter_keys", "letter_keys", "gauge", ""),
    (
        "open_seconds",
        "oldest_open_key_age_seconds",
        "gauge",
        "Seconds since the oldest open key is open; no series without an open key.",
    ),
    (
        "oldest_waits_seconds",
        "oldest_record_age_seconds",
        "gauge",
        "Least time that the oldest unfinished record has waited; no series if all have ended.",
    ),
)
_OF_MEMBERS: tuple[Row, ...] = (
    (
        "records",
        "acquired_records",
        "gauge",
        "Records that a member holds; of the 1,000 members with the oldest locks.",
    ),
    (
        "oldest_lock_seconds",
        "oldest_lock_age_seconds",
        "gauge",
        "Seconds since the member took the oldest lock that it holds; of the same members.",
    ),
)


def _families(
    prefix: str, labels: tuple[str, ...], figures: type, rows: tuple[Row, ...]
) -> Mapping[str, Family]:
    """Return the metrics of rows by column."""
    return {
        column: Family(
            name if name.startswith("kafka_") else f"{prefix}{name}",
            kind,
            labels,
            meaning or words_of(figures, column),
        )
        for column, name, kind, meaning in rows
    }


_GROUP = _families("sharequeue_group_", ("group",), GroupFigures, _OF_GROUPS)
_SHARE_PARTITION = _families(
    "sharequeue_share_partition_", _PARTITION, SharePartitionStatus, _OF_SHARE_PARTITIONS
)
_MEMBER = _families("sharequeue_member_", ("group", "member"), GroupFigures, _OF_MEMBERS)
_ACKNOWLEDGEMENTS = {"Accept": "accepted", "Release": "released", "Reject": "rejected", "Renew": "renewed"}
_OUTCOMES = ("accepted", "rejected", "exhausted", "gap")
SUMMED = sorted(
    {*_GROUP, *_ACKNOWLEDGEMENTS.values(), *_OUTCOMES}
    - {"members", "group_epoch", "stuck_leases", "oldest_waits_seconds"}
    - {"results_waiting", "results_oldest_seconds", "results_held"}
)
"""Figures of a group that are the sum over its share-partitions: columns of `monitored_share_partitions`."""


def all_families() -> list[Family]:
    """Return every metric of this module."""
    return [
        *(_DATABASE_UP, _FAULTS, _FAULT_AGE, _REPLICA_WORK, _LETTERS_FAILED, _SECONDS, _REPLICAS, _WORK),
        *(_GROUP_COUNT, _STATE_COUNT, _ACKNOWLEDGED, _FINISHED, _STATUS, _HELD),
        *(*_GROUP.values(), *_SHARE_PARTITION.values(), *_MEMBER.values()),
    ]


def unavailable() -> str:
    """Return the text of a scrape without the figures of the database."""
    return _written(_DATABASE_UP, [("", 0)])


def of_process(
    faults: Sequence[Fault], work: Mapping[Any, float | None], failed_letters: Mapping[str, int]
) -> str:
    """Return the text of this replica's faults, the ages of its work, and its failed writes of letters by group."""
    by_kind = {kind: [each.age_seconds for each in faults if each.kind == kind] for kind in KINDS}
    return "".join(
        (
            _written(_FAULTS, ((_FAULTS.of(kind), len(ages)) for kind, ages in by_kind.items())),
            _written(
                _FAULT_AGE, ((_FAULT_AGE.of(kind), max(ages, default=None)) for kind, ages in by_kind.items())
            ),
            _written(_REPLICA_WORK, ((_REPLICA_WORK.of(each), age) for each, age in work.items())),
            _written(
                _LETTERS_FAILED,
                ((_LETTERS_FAILED.of(group), tries) for group, tries in sorted(failed_letters.items())),
            ),
        )
    )


def of_database(read: Read) -> str:
    """Return the text of all metrics of a scrape's reads."""
    return "".join(_written(family, series) for family, series in _of_database(read))


def _of_database(read: Read) -> Iterator[tuple[Family, Iterable[Series]]]:
    yield _DATABASE_UP, [("", 1)]
    yield _SECONDS, [("", read.seconds)]
    yield _REPLICAS, [("", read.replicas.alive)]
    yield _WORK, ((_WORK.of(work), age) for work, age in read.replicas.ages.items())
    yield _GROUP_COUNT, [(_GROUP_COUNT.of("share"), sum(read.states.values()))]
    states = ("Empty", "Stable", "Dead")
    yield _STATE_COUNT, ((_STATE_COUNT.of(state), read.states.get(state, 0)) for state in states)
    yield from _of_rows(_GROUP, read.groups, ("group_id",))
    yield (
        _ACKNOWLEDGED,
        (
            (_ACKNOWLEDGED.of(kind, row["group_id"]), row[name])
            for row in read.groups
            for kind, name in _ACKNOWLEDGEMENTS.items()
        ),
    )
    yield (
        _FINISHED,
        (
            (_FINISHED.of(row["group_id"], outcome), row[outcome])
            for row in read.groups
            for outcome in _OUTCOMES
        ),
    )
    partition = ("group_id", "partition", "topic")
    yield from _of_rows(_SHARE_PARTITION, read.share_partitions, partition)
    yield (
        _STATUS,
        (
            (_STATUS.of(*(str(row[name]) for name in (*partition, "condition"))), 1)
            for row in read.share_partitions
        ),
    )
    held = [(each.share_partition, each.records) for each, _ in read.held]
    yield _HELD, ((_HELD.of(at.group_id, str(at.partition), at.topic), records) for at, records in held)
    yield from _of_rows(_MEMBER, read.members, ("group_id", "member_id"))


def _of_rows(
    families: Mapping[str, Family], rows: Iterable[Mapping[str, Any]], names: Sequence[str]
) -> Iterator[tuple[Family, Iterable[Series]]]:
    """Yield the metrics of rows; `names` are the columns of their labels."""
    first = next(iter(families.values()))
    labelled = [(first.of(*(str(row[name]) for name in names)), row) for row in rows]
    for column, family in families.items():
        yield family, [(labels, row[column]) for labels, row in labelled]


def _written(family: Family, series: Iterable[Series]) -> str:
    """Return a metric as text, with its meaning."""
    meaning = family.meaning.replace("\\", "\\\\").replace("\n", "\\n")
    lines = [f"# HELP {family.name} {meaning}", f"# TYPE {family.name} {family.kind}"]
    lines += [f"{family.name}{labels} {float(value)!r}" for labels, value in series if value is not None]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
