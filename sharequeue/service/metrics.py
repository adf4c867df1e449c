"""Which figures does the service show to Prometheus?

Read from the database when they are asked for, so that every replica shows the same. Kafka's metrics carry
the names that they have in the JMX exporter (kafka-semantics 2.18, 2.19); ours begin with `sharequeue_`. What
one process counts itself (heartbeats by error) is in the same registry.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.groups.descriptions import GroupSummary, list_groups
from sharequeue.state import State
from sharequeue.values import HeldDeadLetters, SharePartitionStatus

_log = logging.getLogger(__name__)

_PARTITION_LABELS = ("group", "topic", "partition")


class Metrics:
    """The registry of one service."""

    def __init__(self, database: Database) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_StateCollector(database))
        self.heartbeats = Counter(
            "sharequeue_heartbeats",
            "Responses to heartbeats, by error code (0 is none).",
            ["error_code"],
            registry=self.registry,
        )


class _StateCollector(Collector):
    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> Iterable[Metric]:
        # Registering asks for names; without this it would ask the database, which may not be there yet.
        return []

    def collect(self) -> Iterable[Metric]:
        reachable = GaugeMetricFamily("sharequeue_database_up", "Whether the database answers.")
        try:
            groups = list_groups(self._database)
            partitions = State(self._database).figures.describe()
            held = State(self._database).dead_letters.held()
        except SQLAlchemyError as error:
            _log.warning("no figures for /metrics: %s", str(error).splitlines()[0])
            reachable.add_metric([], 0)
            return [reachable]
        reachable.add_metric([], 1)
        return [reachable, *_group_metrics(groups), *_partition_metrics(partitions), _held_metric(held)]


def _group_metrics(groups: list[GroupSummary]) -> list[Metric]:
    count = GaugeMetricFamily(
        "kafka_server_group_coordinator_metrics_group_count", "Groups, by protocol.", labels=["protocol"]
    )
    count.add_metric(["share"], len(groups))
    by_state = GaugeMetricFamily(
        "kafka_server_group_coordinator_metrics_share_group_count",
        "Share groups, by state.",
        labels=["state"],
    )
    for state in ("Empty", "Stable", "Dead"):
        by_state.add_metric([state], sum(group.group_state == state for group in groups))
    members = GaugeMetricFamily("sharequeue_group_members", "Members of a share group.", labels=["group"])
    for group in groups:
        members.add_metric([group.group_id], group.members)
    return [count, by_state, members]


def _held_metric(held: list[HeldDeadLetters]) -> Metric:
    """One series for each share-partition whose dead letters cannot be written; none is as it should be."""
    family = GaugeMetricFamily(
        "sharequeue_share_partition_held_dead_letters",
        "Dead letters whose topic cannot be written; /ready has the reason.",
        labels=_PARTITION_LABELS,
    )
    for each in held:
        at = each.share_partition
        family.add_metric([at.group_id, at.topic, str(at.partition)], each.records)
    return family


def _partition_metrics(partitions: list[SharePartitionStatus]) -> list[Metric]:
    def family(name: str, documentation: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, documentation, labels=_PARTITION_LABELS)

    window = family(
        "kafka_server_sharepartitionmetrics_inflightmessagecount",
        "Span of the in-flight window: SPEO − SPSO, in offsets.",
    )
    lag = family("sharequeue_share_partition_lag", "Records not yet processed for good.")
    start = family("sharequeue_share_partition_start_offset", "SPSO.")
    log_end = family("sharequeue_share_partition_log_end_offset", "The log's end, as last seen.")
    acquired = family("sharequeue_share_partition_acquired_records", "Records held under a lock.")
    available = family(
        "sharequeue_share_partition_available_records", "Records waiting to be delivered again."
    )
    archiving = family(
        "sharequeue_share_partition_archiving_records", "Dead letters that are not written yet."
    )
    for each in partitions:
        labels = [each.group_id, each.topic, str(each.partition)]
        window.add_metric(labels, each.speo - each.spso)
        lag.add_metric(labels, each.lag)
        start.add_metric(labels, each.spso)
        log_end.add_metric(labels, each.log_end)
        acquired.add_metric(labels, each.acquired)
        available.add_metric(labels, each.available)
        archiving.add_metric(labels, each.archiving)
    return [window, lag, start, log_end, acquired, available, archiving]
