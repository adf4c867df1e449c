"""The options of the reader, by what they do.

A leased offset that a reader does not return may count as a gap, which is never delivered again. So a user may only
set how records are fetched, for how long a task waits, and how to connect. Nothing that a user sets may change which
records are read: all other options are refused by name, before anything is leased. The read that decides what is a
gap gets only those that say how to connect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

ISOLATION = "kafka.isolation.level"
"""The connector's option for the isolation level. Each lease is read at the level at which it was acquired: a
stricter reader would treat the records of an open transaction as gaps, a less strict one delivers those of aborted
ones.
"""

FETCH_BYTES = "kafka.max.partition.fetch.bytes"
"""The connector's option for the size of a fetch."""

READER_OPTIONS: Mapping[str, str] = {
    # Fetches are larger than the defaults: small records are read faster (docs/evidence/benchmarks.md).
    "kafka.max.poll.records": "5000",
    FETCH_BYTES: str(8 * 2**20),
    # The leased records are in the log. The connector requests the log ends after a prefetch; if the lease ends at
    # the log end, that fetch waits for more records: by default half a second in every task.
    "kafka.fetch.max.wait.ms": "10",
    # How long a task waits for an expected offset that is missing (the log was truncated, the topic recreated, the
    # broker unavailable). The connector's default of two minutes is twice a long lock.
    "kafkaConsumer.pollTimeoutMs": "30000",
    # The same for its position in a partition without a leader. Java's client would wait twice as long.
    "kafka.default.api.timeout.ms": "30000",
}
"""Our own options."""
SMALL_SCAN = 10_000
"""The most offsets of a topic-partition in a scan whose fetches are smaller."""
SMALL_FETCH_BYTES = str(2**20)
"""The size of these fetches, the client's default: a fetch also returns what follows the last wanted record."""

_FETCHES: Mapping[str, int] = {
    "fetchOffset.numRetries": 0,
    "fetchOffset.retryIntervalMs": 0,
    "kafka.fetch.max.bytes": 1,
    "kafka.fetch.max.wait.ms": 0,
    "kafka.fetch.min.bytes": 0,
    FETCH_BYTES: 1,
    "kafka.max.poll.interval.ms": 1,
    "kafka.max.poll.records": 1,
    "kafkaConsumer.pollTimeoutMs": 1,
    "maxRecordsPerPartition": 1,
    "minPartitions": 1,
}
"""The options of fetches and tasks, with the lowest value of each."""
_CONNECTIONS: Mapping[str, int] = {
    "kafka.connections.max.idle.ms": -1,
    "kafka.default.api.timeout.ms": 1,
    "kafka.metadata.max.age.ms": 0,
    "kafka.receive.buffer.bytes": -1,
    "kafka.reconnect.backoff.max.ms": 0,
    "kafka.reconnect.backoff.ms": 0,
    "kafka.request.timeout.ms": 1,
    "kafka.retry.backoff.max.ms": 0,
    "kafka.retry.backoff.ms": 0,
    "kafka.send.buffer.bytes": -1,
    "kafka.socket.connection.setup.timeout.max.ms": 1,
    "kafka.socket.connection.setup.timeout.ms": 1,
}
"""The options of connections, with the lowest value of each."""
_IDENTITY = ("groupIdPrefix", "kafka.client.dns.lookup", "kafka.client.id")
"""The names by which the broker knows the client; its ACLs may require a prefix of groups."""
_SECURITY = ("kafka.sasl.", "kafka.security.", "kafka.ssl.")
_RACK = "kafka.client.rack"

_INSTEAD = {
    ISOLATION: "records are read at the isolation level at which they were leased. Leave it out, and set the group's "
    "config share.isolation.level: it counts from the next lease on",
    "kafka.bootstrap.servers": "records are read from the cluster of the group. Leave it out, and set "
    "SHAREQUEUE_BOOTSTRAP_SERVERS",
    "kafka.group.id": "Spark keeps consumers and fetched records by this name: a read with other options would fail, "
    "and a topic that is made again would give its old records. Leave it out, and set groupIdPrefix, to a prefix "
    "that the ACLs of the cluster allow",
    "includeheaders": "whether headers are read is the argument `headers`. Leave it out, and use that",
}
_NAMES = {name.lower(): name for name in (*_FETCHES, *_CONNECTIONS, *_IDENTITY, _RACK)}


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """The options that a user has set, under the names as Spark's connector documents them. `of` checks them."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, given: Mapping[str, object] | None) -> Self:
        """Return the checked options. The connector ignores the case of names, and so does this.

        Raises ValueError for an option that is not supported, is set twice, or has an invalid value.
        """
        checked: dict[str, str] = {}
        for name, value in (given or {}).items():
            known = _known(name)
            if known in checked:
                raise ValueError(f"the reader's option {known} is set twice, as {name} too: set it once")
            checked[known] = _checked(known, value)
        return cls(checked)

    @property
    def connecting(self) -> dict[str, str]:
        """The options that say how to connect: those that the read gets that decides what is a gap."""
        return {
            name: value
            for name, value in self.given.items()
            if name in _CONNECTIONS or name in _IDENTITY or name.startswith(_SECURITY)
        }


def _known(name: str) -> str:
    """Return the documented form of an option's name. Raises ValueError for one that is not supported."""
    lower = name.lower()
    if known := _NAMES.get(lower):
        return known
    if lower.startswith(_SECURITY):
        return lower
    reason = _INSTEAD.get(
        lower,
        "it may change which records are read, and a leased record that is not read would count as a gap. Leave it "
        f"out. Supported are {', '.join(sorted(_NAMES.values()))}, and those that begin with {', '.join(_SECURITY)}",
    )
    raise ValueError(f"the reader's option {name} is not supported: {reason}")


def _checked(name: str, value: object) -> str:
    """Return the value of a supported option as text. Raises ValueError if it is not valid."""
    least = {**_FETCHES, **_CONNECTIONS}.get(name)
    if least is None:
        return str(value)
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueError(f"the reader's option {name} is {value!r}: expected a whole number from {least} on")
    return str(number)
