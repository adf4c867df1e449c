"""A worker that obeys order by key: what the histories and the fuzzer send for a lease of an ordered group."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

KEYS = (None, b"", b"a", b"b", b"c")
"""A record without a key, an empty key, and some others."""
GAP, ACCEPT, REJECT, HOLD = 0, 1, 3, 9
"""Kafka's numbers of outcomes, and the outcome of a record that was not given to the handler."""

HASHES = tuple(
    None if key is None else UUID(hashlib.md5(key, usedforsecurity=False).hexdigest()) for key in KEYS
)


def key_of(*where: object) -> UUID | None:
    """Return the hash of the key of the record at a place; the same in every process."""
    return HASHES[zlib.crc32(repr(where).encode()) % len(HASHES)]


def obey(
    wanted: Mapping[int, int],
    leased: Iterable[int],
    key: Callable[[int], UUID | None],
    blocked: Mapping[UUID, int],
    before: Mapping[int, int],
) -> dict[int, int]:
    """Return the outcomes that a worker sends, for those that it would like to.

    ``blocked`` are the keys that are open outside of the lease, from an offset on: their records are held. Of each
    key the accepted ones behind the first that was not accepted are held, too, also behind one that is not
    acknowledged yet. ``before`` are the outcomes that were sent before.
    """
    sent: dict[int, int] = {}
    cut: set[UUID] = set()
    for offset in sorted(leased):
        hashed, outcome = key(offset), wanted.get(offset)
        if offset not in before and hashed is not None and outcome is not None and outcome != GAP:
            outside = offset > blocked.get(hashed, offset)
            if outside or (hashed in cut and outcome == ACCEPT):
                outcome = HOLD
        if hashed is not None and before.get(offset, outcome) not in (ACCEPT, GAP):
            cut.add(hashed)
        if outcome is not None and offset not in before:
            sent[offset] = outcome
    return sent


def reported(sent: Mapping[int, int], key: Callable[[int], UUID | None]) -> dict[UUID | None, list[int]]:
    """Return by their key what was neither accepted nor a gap."""
    keys: dict[UUID | None, list[int]] = {}
    for offset, outcome in sent.items():
        if outcome not in (ACCEPT, GAP):
            keys.setdefault(key(offset), []).append(offset)
    return keys
