"""What does a run need to know of the member it leases for, and where does it begin to lease?"""

from __future__ import annotations

import itertools
import threading
import zlib
from collections.abc import Sequence
from typing import Protocol

from sharequeue.values import SharePartition

_turns = itertools.count()


class Member(Protocol):
    """A member of a share group, as `sharequeue.groups.membership.Membership` is one."""

    @property
    def member_id(self) -> str:
        """Its id."""
        ...

    @property
    def member_epoch(self) -> int | None:
        """Its epoch now; None for a holder that is no member."""
        ...

    @property
    def assignment(self) -> list[SharePartition]:
        """The share-partitions assigned to it now."""
        ...

    @property
    def lost(self) -> threading.Event:
        """Set when the group no longer knows it."""
        ...


def in_turn(member: Member, topics: Sequence[str]) -> list[SharePartition]:
    """Return what is assigned of these topics; each time and each member begins at another, so that none starves."""
    assigned = sorted(sp for sp in member.assignment if sp.topic in topics)
    turn = (next(_turns) + zlib.crc32(member.member_id.encode())) % len(assigned) if assigned else 0
    return assigned[turn:] + assigned[:turn]
