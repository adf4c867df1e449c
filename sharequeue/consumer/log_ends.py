"""Where do the logs of a consumer's share-partitions end now, and can the broker be read?

The service's watch looks every two seconds. A consumer that waits sees a new record at once, because it reads at
the log's end anyway; it then tells the state where the log ends, as the watch would, and leases. So a record is
delivered a moment after it was produced, and nobody has to ask the broker more often.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sharequeue.consumer.reader import Key, Reader
from sharequeue.errors import ShareError
from sharequeue.kafka.topics import Topics
from sharequeue.settings import Settings
from sharequeue.state import State
from sharequeue.values import LogSeen, SharePartition

_log = logging.getLogger(__name__)

BROKER_TIMEOUT_S = 2.0
BETWEEN_LOOKS_S = 0.05
"""Of records that come one by one, and that others lease, not each is worth a look."""
LONGEST_WAIT_S = 10.0
LOOK_AGAIN_S = 0.5
"""How long is waited before something is looked at again that cannot be read."""


class LogEnds:
    """What this consumer knows of its logs' ends."""

    def __init__(self, settings: Settings, state: State, token: Callable[[str], Any] | None = None) -> None:
        self._state = state
        self._topics = Topics(settings, BROKER_TIMEOUT_S, token)
        self.set_sasl_credentials = self._topics.set_sasl_credentials
        self._ids: dict[str, str] = {}
        """Of each topic the id that the broker returned last."""
        self._observed: dict[Key, int] = {}
        self._unreadable: dict[Key, tuple[float, float]] = {}
        """When a partition is looked at again, and how long was waited before."""
        self._looked_at = 0.0
        self._right_cluster = False

    def check_cluster(self) -> None:
        """Make sure, once, that the broker is of the cluster that the state is of: offsets of another one would be
        acknowledged as gaps. Raises InconsistentClusterId, BrokerNotAvailable."""
        if not self._right_cluster:
            self._state.administration.check_cluster(self._topics.cluster_id())
            self._right_cluster = True

    def forget(self) -> None:
        """Look at all of them anew."""
        self._observed.clear()

    def unknown(self, assignment: Mapping[SharePartition, str]) -> dict[SharePartition, str]:
        """Those that were never looked at."""
        return {at: topic_id for at, topic_id in assignment.items() if key_of(at) not in self._observed}

    def grown(self, assignment: Mapping[SharePartition, str], reader: Reader) -> dict[SharePartition, str]:
        """Those of which a record has come from behind the end that the state was told."""
        if time.monotonic() < self._looked_at + BETWEEN_LOOKS_S:
            return {}
        ends = reader.seen_ends()
        return {
            at: topic_id
            for at, topic_id in assignment.items()
            if ends.get(key_of(at), 0) > self._observed.get(key_of(at), 0)
        }

    def cannot_be_read(self, key: Key) -> None:
        """Nothing could be read of a partition: it is not leased before the broker answers for it again."""
        _, before = self._unreadable.get(key, (0.0, LOOK_AGAIN_S / 2))
        wait = min(2 * before, LONGEST_WAIT_S)
        self._unreadable[key] = time.monotonic() + wait, wait

    def readable(self, assignment: Mapping[SharePartition, str], reader: Reader) -> list[SharePartition]:
        """The share-partitions that may be leased from, in order; the broker is asked first for some."""
        for at, topic_id in assignment.items():
            again, _ = self._unreadable.get(key_of(at), (None, 0.0))
            if again is not None and again <= time.monotonic():
                if self.observe({at: topic_id}, reader):
                    del self._unreadable[key_of(at)]
                else:
                    self.cannot_be_read(key_of(at))
        return sorted(at for at in assignment if key_of(at) not in self._unreadable)

    def observe(self, share_partitions: Mapping[SharePartition, str], reader: Reader) -> bool:
        """Tell the state where these logs end now, and have the reader wait there; return whether all are known."""
        sizes: dict[str, int] = {}
        for at in share_partitions:
            sizes[at.topic] = max(sizes.get(at.topic, 0), at.partition + 1)
        refused: dict[str, ShareError] = {}
        try:
            before = self._ids if sizes.keys() <= self._ids.keys() else self._ask(sizes)
            logs = self._topics.offsets_of(sizes, refused)
            after = self._ask(sizes)
        except ShareError as error:
            _log.warning("the ends of the logs are not known: %s", error)
            before, logs, after = {}, {}, {}
        # A topic that was made again meanwhile: nobody knows of which one the offsets are.
        ids = {name: topic_id for name, topic_id in after.items() if before.get(name) == topic_id}
        seen = [
            LogSeen(at, ids[at.topic], log.log_start, log.log_end, log.last_stable_offset)
            for at in share_partitions
            if (log := logs.get(key_of(at))) is not None and at.topic in ids
        ]
        self._looked_at = time.monotonic()
        if seen:
            self._state.many.observe(seen)
        for each in seen:
            self._observed[key_of(each.share_partition)] = each.log_end
            reader.watch(key_of(each.share_partition), each.log_end)
        return len(seen) == len(share_partitions)

    def _ask(self, names: Collection[str]) -> dict[str, str]:
        """The ids of these topics now. One that had the same id earlier had it all the time between."""
        known = {name: topic.topic_id for name, topic in self._topics.ask(names).known.items()}
        self._ids = {name: topic_id for name, topic_id in self._ids.items() if name not in names} | known
        return known


def key_of(at: SharePartition) -> Key:
    """Topic and partition."""
    return at.topic, at.partition
