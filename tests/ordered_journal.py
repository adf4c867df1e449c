"""What the journal says about the order of keys: when each record was finished, by which lease, and who had to wait.

A record is open while it is AVAILABLE, ACQUIRED or ARCHIVING. The journal is replayed without any function of the
state, so that an error of theirs cannot hide itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet

_ROWS = sa.text(
    "select j.journal_id, cast(cast(j.xmin as text) as bigint) as transaction, j.at, j.kind, j.first_offset,"
    " j.last_offset, j.part, j.state, j.lease_id, j.not_before, j.cause, cast(j.offsets as text) as offsets, j.spso,"
    " j.speo, j.key_hash"
    " from sharequeue.journal j join sharequeue.share_partitions sp using (share_partition_id)"
    " where sp.group_id = :group and sp.topic = :topic and sp.partition = :partition order by j.journal_id"
)
_AVAILABLE, _ACQUIRED, _ARCHIVING, _ARCHIVED = 0, 1, 3, 4
_NOWHERE = -1
_ZERO = timedelta()
_OPEN = (_AVAILABLE, _ACQUIRED, _ARCHIVING)
Row = Mapping[Any, Any]
KeyOf = Mapping[int, bytes | None]
"""The key of each offset that has a record."""


@dataclass(frozen=True, slots=True)
class Finish:
    """How a record was finished: the number of the commit, its transaction and time, and the lease of an accepted
    one."""

    commit: int
    transaction: int
    at: datetime
    lease_id: int | None


@dataclass(frozen=True, slots=True)
class Wait:
    """An offset that was available, but not before a time, although no earlier record of its key had failed, or for
    longer than that one, or than its own back-off."""

    at: datetime
    offset: int
    not_before: datetime


@dataclass
class History:
    """One share-partition: its finished records, by offset, and who waited for no reason of its key's."""

    accepted: dict[int, Finish] = field(default_factory=dict)
    given_up: dict[int, Finish] = field(default_factory=dict)
    leases: int = 0
    most_leases: int = 0
    """The most leases that were open at once."""
    waits: list[Wait] = field(default_factory=list)
    fresh: list[tuple[datetime, int]] = field(default_factory=list)
    """When offsets were leased for the first time, and how many keys were open then."""

    def overtaken(
        self, key_of: KeyOf, ordered: Callable[[int], bool] = lambda lease_id: True
    ) -> list[tuple[int, int]]:
        """Return the pairs of offsets of one key of which the later was accepted while the earlier was open, in an
        `ordered` lease."""
        found: list[tuple[int, int]] = []
        latest: dict[bytes, tuple[int, int]] = {}
        for offset, finish in sorted({**self.given_up, **self.accepted}.items()):
            key = key_of.get(offset)
            if key is None:
                continue
            commit, earlier = latest.get(key, (0, -1))
            if offset in self.accepted and finish.commit < commit and ordered(finish.lease_id or 0):
                found.append((earlier, offset))
            latest[key] = max((commit, earlier), (finish.commit, offset))
        return found


class _Replay:
    """The states of a share-partition's offsets, row by row of its journal."""

    def __init__(
        self, size: int, key_of: KeyOf, failing: frozenset[int], letters_hold: bool, back_off: timedelta
    ) -> None:
        names = {
            key: number for number, key in enumerate({key for key in key_of.values() if key is not None})
        }
        self.key = np.full(size, _NOWHERE)
        for offset, key in key_of.items():
            self.key[offset] = _NOWHERE if key is None else names[key]
        self.keys = len(names)
        self.letters_hold, self.letters = letters_hold, np.zeros(size, bool)
        self.back_off = np.timedelta64(back_off, "us")
        self.failing = np.isin(np.arange(size), sorted(failing))
        self.state = np.full(size, _NOWHERE, np.int8)
        self.owner = np.full(size, _NOWHERE)
        self.lease = np.full(size, _NOWHERE)
        self.until = np.zeros(size, "datetime64[us]")
        self.cause = np.full(size, None, object)
        self.owners: dict[tuple[int, int], int] = {}
        self.open_leases: set[int] = set()
        self.spso = self.speo = self.speo_before = 0
        self.reported: dict[int, object] = {}
        self.keys_before, self.is_fresh = 0, False
        self.history = History()
        self._before = (self.is_open(), self.state.copy(), self.lease.copy())

    def is_open(self) -> np.ndarray:
        """Return which offsets are open now."""
        open_ = np.isin(self.state, _OPEN)
        open_[: self.spso] = False
        return open_

    def apply(self, row: Row) -> None:
        """Apply one row."""
        kind = row["kind"]
        if kind in ("initialized", "snapshot", "share_partition"):
            self.spso, self.speo = row["spso"], row["speo"]
            if kind == "snapshot":
                self.state[:], self.owner[:] = _NOWHERE, _NOWHERE
                self.open_leases.clear()
                self.reported.clear()
        elif kind == "lease":
            self.history.leases += row["lease_id"] not in self.open_leases
            self.open_leases.add(row["lease_id"])
        elif kind == "lease_gone":
            self.open_leases.discard(row["lease_id"])
        elif kind in ("keys_added", "keys_gone"):
            for offset in OffsetSet.parse(str(row["offsets"])).iter_offsets():
                self.reported.pop(offset, None)
                if kind == "keys_added" and row["key_hash"] is not None:
                    self.reported[offset] = row["key_hash"]
        elif kind in ("batch", "batch_gone", "offsets_added", "offsets_taken"):
            self._batch(row)

    def _batch(self, row: Row) -> None:
        at = (row["first_offset"], row["part"])
        owner = self.owners.setdefault(at, len(self.owners))
        offsets = row["offsets"]
        if row["kind"] in ("batch", "batch_gone"):
            mine = self.owner == owner
            self.state[mine], self.owner[mine] = _NOWHERE, _NOWHERE
        if row["kind"] == "batch_gone":
            return
        if offsets is None:
            bounds = [(row["first_offset"], row["last_offset"] + 1)]
        else:
            bounds = OffsetSet.parse(str(offsets)).bounds.tolist()
        some = np.concatenate([np.arange(first, end) for first, end in bounds] or [np.arange(0)])
        if row["kind"] == "offsets_taken":
            mine = some[self.owner[some] == owner]
            self.state[mine], self.owner[mine] = _NOWHERE, _NOWHERE
            return
        if row["kind"] == "offsets_added":
            (like,) = np.nonzero(self.owner == owner)
            values = (
                tuple(each[like[0]] for each in (self.lease, self.until, self.cause)) if len(like) else None
            )
            self.state[some], self.owner[some] = row["state"], owner
            if values is not None:
                self.lease[some], self.until[some], self.cause[some] = values
            return
        self.is_fresh |= row["state"] == _ACQUIRED and row["last_offset"] >= self.speo_before
        self.state[some], self.owner[some] = row["state"], owner
        self.lease[some] = _NOWHERE if row["lease_id"] is None else row["lease_id"]
        self.until[some] = _stamp(row["not_before"])
        self.cause[some] = row["cause"]

    def commit(self, number: int, transaction: int, at: datetime) -> None:
        """Note what the rows since the last commit have finished, and who waits."""
        now = self.is_open()
        before, states, leases = self._before
        (left,) = np.nonzero(before & ~now)
        for offset in left.tolist():
            self.history.accepted.pop(offset, None)
            self.history.given_up.pop(offset, None)
            lease = int(leases[offset])
            if states[offset] == _ARCHIVING or self.state[offset] == _ARCHIVED:
                if self.cause[offset] != "gap":
                    self.history.given_up[offset] = Finish(number, transaction, at, None)
                    self.letters[offset] = self.letters_hold
            else:
                by = None if lease == _NOWHERE else lease
                self.history.accepted[offset] = Finish(number, transaction, at, by)
        self.history.most_leases = max(self.history.most_leases, len(self.open_leases))
        if self.is_fresh:
            self.history.fresh.append((at, self.keys_before))
        self.keys_before, self.is_fresh = len(set(self.reported.values())), False
        self.speo_before = self.speo
        self._wait(now, at)
        self._before = (now, self.state.copy(), self.lease.copy())

    def _wait(self, open_: np.ndarray, at: datetime) -> None:
        """Note who waits. A reason is an earlier failed record of the key, which is open or a dead letter that holds
        it; or that the record has failed itself, for no longer than a back-off."""
        waiting = (self.state == _AVAILABLE) & open_ & (self.until > _stamp(at))
        if not waiting.any():
            return
        offsets = np.arange(len(self.state))
        first = np.full(self.keys + 1, len(self.state))
        failed = (open_ | self.letters) & self.failing & (self.key >= 0)
        np.minimum.at(first, self.key[failed], offsets[failed])
        behind = (first[self.key] < offsets) & (self.key >= 0)
        own = self.failing & (self.until <= _stamp(at) + self.back_off)
        for offset in np.nonzero(waiting & ~(behind | own))[0].tolist():
            self.history.waits.append(Wait(at, offset, self.until[offset].item()))


def _stamp(at: object) -> np.datetime64:
    if at is None:
        return np.datetime64(0, "us")
    assert isinstance(at, datetime)
    return np.datetime64(at.replace(tzinfo=None) - (at.utcoffset() or _ZERO), "us")


def history_of(
    database: Database,
    group: str,
    topic: str,
    partition: int,
    key_of: KeyOf,
    failing: frozenset[int],
    letters_hold: bool = False,
    back_off: timedelta = timedelta(hours=1),
) -> History:
    """Replay the journal of a share-partition. `failing`: the offsets that a handler ever released or rejected;
    `letters_hold`: their dead letters are a reason to wait, too; `back_off`: the longest of a failed record."""
    rows = database.rows(_ROWS, group=group, topic=topic, partition=partition)
    size = max([*key_of, *(int(row["last_offset"] or 0) for row in rows)], default=0) + 1
    replay = _Replay(size, key_of, failing, letters_hold, back_off)
    commit = 0
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        replay.apply(row)
        if following is None or following["transaction"] != row["transaction"]:
            commit += 1
            replay.commit(commit, row["transaction"], row["at"])
    return replay.history
