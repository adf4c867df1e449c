"""The log ends of a consumer's share-partitions, and whether the broker can be read.

The service's watch checks every two seconds. A waiting consumer sees a new record at once, because it reads at the
log's end anyway. It then reports the log end to the state, as the watch would, and leases. So a record is delivered a
moment after it was produced, without more requests to the broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sharequeue.consumer.reader import Key, LeaseReader
from sharequeue.domain.errors import ShareError
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import LogSeen, SharePartition
from sharequeue.kafka.topics import Topics
from sharequeue.state import State

_log = logging.getLogger(__name__)

BROKER_TIMEOUT_S = 2.0
BETWEEN_LOOKS_S = 0.05
"""Shortest time between two checks: records may arrive one by one, and other consumers may lease them."""
LONGEST_WAIT_S = 10.0
LOOK_AGAIN_S = 0.5
"""How long to wait before something unreadable is checked again."""


class LogEnds:
    """The log ends that this consumer knows."""

    def __init__(self, settings: Settings, state: State, token: Callable[[str], Any] | None = None) -> None:
        self._state = state
        self._topics = Topics(settings, BROKER_TIMEOUT_S, token)
        self.set_sasl_credentials = self._topics.set_sasl_credentials
        self._ids: dict[str, str] = {}
        """The id of each topic that the broker returned last."""
        self._observed: dict[Key, int] = {}
        self._unreadable: dict[Key, tuple[float, float]] = {}
        """When a partition is checked again, and how long the last wait was."""
        self._looked_at = 0.0
        self._right_cluster = False

    def check_cluster(self) -> None:
        """Check once that the broker belongs to the cluster of the state.

        Offsets of another cluster would be acknowledged as gaps. Raises InconsistentClusterId,
        BrokerNotAvailable.
        """
        if not self._right_cluster:
            self._state.administration.check_cluster(self._topics.cluster_id())
            self._right_cluster = True

    def forget(self) -> None:
        """Forget all ends, so that all are read again."""
        self._observed.clear()

    def unknown(self, assignment: Mapping[SharePartition, str]) -> dict[SharePartition, str]:
        """Return the share-partitions whose log end was never read."""
        return {at: topic_id for at, topic_id in assignment.items() if key_of(at) not in self._observed}

    def grown(
        self, assignment: Mapping[SharePartition, str], reader: LeaseReader
    ) -> dict[SharePartition, str]:
        """Return the share-partitions with a record past the log end that the state knows."""
        if time.monotonic() < self._looked_at + BETWEEN_LOOKS_S:
            return {}
        ends = reader.seen_ends()
        return {
            at: topic_id
            for at, topic_id in assignment.items()
            if ends.get(key_of(at), 0) > self._observed.get(key_of(at), 0)
        }

    def cannot_be_read(self, key: Key) -> None:
        """Mark a partition as unreadable: it is not leased until the broker responds for it again."""
        _, before = self._unreadable.get(key, (0.0, LOOK_AGAIN_S / 2))
        wait = min(2 * before, LONGEST_WAIT_S)
        self._unreadable[key] = time.monotonic() + wait, wait

    def readable(self, assignment: Mapping[SharePartition, str], reader: LeaseReader) -> list[SharePartition]:
        """Return the share-partitions that may be leased from, in order; check unreadable ones first."""
        for at, topic_id in assignment.items():
            again, _ = self._unreadable.get(key_of(at), (None, 0.0))
            if again is not None and again <= time.monotonic():
                if self.observe({at: topic_id}, reader):
                    del self._unreadable[key_of(at)]
                else:
                    self.cannot_be_read(key_of(at))
        return sorted(at for at in assignment if key_of(at) not in self._unreadable)

    def observe(self, share_partitions: Mapping[SharePartition, str], reader: LeaseReader) -> bool:
        """Report these logs' ends to the state, and have the reader wait there; return whether all are known."""
        partitions: dict[str, list[int]] = {}
        for at in share_partitions:
            partitions.setdefault(at.topic, []).append(at.partition)
        refused: dict[str, ShareError] = {}
        try:
            before = self._ids if partitions.keys() <= self._ids.keys() else self._ask(partitions)
            logs = self._topics.offsets_of(partitions, refused)
            after = self._ask(partitions)
        except ShareError as error:
            _log.warning("the ends of the logs could not be read: %s", error)
            before, logs, after = {}, {}, {}
        # If a topic was created again meanwhile, it is unknown which of the two the offsets belong to.
        ids = {name: topic_id for name, topic_id in after.items() if before.get(name) == topic_id}
        seen = [
            LogSeen(at, ids[at.topic], log.log_start, log.log_end, log.last_stable_offset)
            for at in share_partitions
            if (log := logs.get(key_of(at))) is not None and at.topic in ids
        ]
        self._looked_at = time.monotonic()
        if seen:
            self._state.observe(seen)
        for each in seen:
            self._observed[key_of(each.share_partition)] = each.log_end
            reader.watch(key_of(each.share_partition), each.log_end)
        return len(seen) == len(share_partitions)

    def _ask(self, names: Collection[str]) -> dict[str, str]:
        """Ask the broker for the current ids of these topics.

        A topic whose id is the same as before had that id all the time in between.
        """
        known = {name: topic.topic_id for name, topic in self._topics.ask(names).known.items()}
        self._ids = {name: topic_id for name, topic_id in self._ids.items() if name not in names} | known
        return known


def key_of(at: SharePartition) -> Key:
    """Return topic and partition."""
    return at.topic, at.partition
