"""Arguments and results of calls of ``sharequeue.state.State``: share-partitions and leases of one group.

A call holds the rows of its share-partitions locked until it commits: send at most ``A_CALL`` of them, and the rest
in further calls (``in_calls``). Kafka's requests name many partitions too (KIP-932: ShareFetch, ShareAcknowledge).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, TypeVar
from uuid import UUID

import numpy as np

from sharequeue.domain.errors import ShareError
from sharequeue.domain.offsets import EMPTY, MAX_OFFSET, OffsetSet
from sharequeue.domain.values import AcknowledgeType, KeptRecords, Lease, LeaseOutput, SharePartition

A_CALL = 200
"""Share-partitions in one call: their rows are locked for about 0.1 s. The functions refuse more than 1,000."""
DELAYS = 100
"""Different times that the released records of one lease may have: the function refuses more."""
RANGES = 200_000
"""Ranges of offsets in one statement of an acknowledgement: it takes some seconds, and longer on a busy server. The
function refuses more than a million for a lease."""
OBSERVED_AT_ONCE = 10_000
"""For ``observe``, which locks only the rows whose log offsets have changed."""


@dataclass(frozen=True, slots=True)
class LeaseAcknowledgement:
    """The acknowledgement of one lease: sets of offsets by outcome, and the outputs that count with it.

    Released records are delivered again at ``not_before``, by the database's clock; without it, ``backoff`` delays
    them by the group's back-off, else they are available at once. ``delays`` gives released offsets their own times,
    100 at most. All times are rounded up to the second.

    In a group that is ordered by key, ``holds`` are given back unprocessed, with their delivery, because an earlier
    record of their key is open, and ``keys`` has the keys of all released, rejected and held offsets: the MD5 of the
    key as a UUID, None for records without a key.

    ``kept`` are released records whose raw bytes are in files.
    """

    lease: Lease
    outcomes: Mapping[AcknowledgeType, OffsetSet]
    outputs: Sequence[LeaseOutput] = ()
    not_before: datetime | None = None
    backoff: bool = False
    delays: Mapping[datetime, OffsetSet] = field(default_factory=dict)
    holds: OffsetSet = EMPTY
    keys: Mapping[UUID | None, OffsetSet] = field(default_factory=dict)
    kept: KeptRecords | None = None

    @property
    def range_count(self) -> int:
        """The number of ranges of offsets in all sets."""
        return sum(chosen.range_count for chosen in self._sets)

    @property
    def _sets(self) -> list[OffsetSet]:
        return [*self.outcomes.values(), self.holds]

    def parts(self, most: int) -> Iterator[LeaseAcknowledgement]:
        """Yield the acknowledgement in parts of at most ``most`` ranges, by offset; the first has the outputs."""
        firsts = np.sort(np.concatenate([chosen.bounds[:, 0] for chosen in self._sets]))
        edges = [0, *(int(first) for first in firsts[most::most]), MAX_OFFSET + 1]
        for first, end in pairwise(edges):
            part = OffsetSet.of((first, end))
            yield replace(
                self,
                outcomes={kind: chosen & part for kind, chosen in self.outcomes.items()},
                outputs=self.outputs if first == 0 else (),
                delays={at: some for at, chosen in self.delays.items() if (some := chosen & part)},
                holds=self.holds & part,
                keys={key: some for key, chosen in self.keys.items() if (some := chosen & part)},
                kept=self.kept and self.kept.within(part),
            )


@dataclass(frozen=True, slots=True)
class BlockedKeys:
    """The keys that a lease of a group ordered by key must hold, each from behind an offset on.

    ``hashes`` has the MD5 of each key as a UUID, and ``first_offsets`` its first open record that is not in the
    lease: leased records of the key behind it must be held. ``untils`` has the time until which that record waits,
    None if it does not wait or its time is not known.
    """

    hashes: Sequence[UUID]
    first_offsets: Sequence[int]
    untils: Sequence[datetime | None]


@dataclass(frozen=True, slots=True)
class AcquiredLeases:
    """The leases of an acquire, and the share-partitions that refused it."""

    leases: tuple[Lease, ...]
    refusals: Mapping[SharePartition, ShareError]


_T = TypeVar("_T")


def in_calls(items: Sequence[_T], most: int = A_CALL) -> Iterator[Sequence[_T]]:
    """Yield the items in order, in parts that fit into one call."""
    for first in range(0, len(items), most):
        yield items[first : first + most]


def names_of(share_partitions: Sequence[SharePartition]) -> dict[str, Any]:
    """Return the parameters that name share-partitions. ValueError if they are of several groups."""
    group_ids = {at.group_id for at in share_partitions}
    if len(group_ids) != 1:
        raise ValueError(f"one call is for one group, but share-partitions of {sorted(group_ids)} were given")
    return {
        "group_id": group_ids.pop(),
        "topics": [at.topic for at in share_partitions],
        "partitions": [at.partition for at in share_partitions],
    }


def holders_of(leases: Sequence[Lease]) -> dict[str, Any]:
    """Return the parameters that fence leases. ValueError if they are of several members or epochs."""
    members = {(lease.member_id, lease.member_epoch) for lease in leases}
    if len(members) != 1:
        raise ValueError("one call is for leases of one member under one epoch, but several were given")
    member_id, member_epoch = members.pop()
    return {
        **names_of([lease.share_partition for lease in leases]),
        "state_epochs": [lease.state_epoch for lease in leases],
        "member_id": member_id,
        "member_epoch": member_epoch,
        "tokens": [str(lease.token) for lease in leases],
    }


def keys_to_json(keys: Mapping[UUID | None, OffsetSet]) -> list[dict[str, str | None]]:
    """Return the keys of records as the SQL functions take them."""
    return [
        {"key": None if key is None else str(key), "offsets": str(offsets)} for key, offsets in keys.items()
    ]
