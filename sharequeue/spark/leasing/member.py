"""The member that a run leases for, and the order of its share-partitions."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Protocol

from sharequeue.state.locks import Holder
from sharequeue.words.values import SharePartition

_turns = itertools.count()


class Member(Holder, Protocol):
    """A member of a share group, for example `sharequeue.groups.membership.Membership`."""

    @property
    def assignment(self) -> list[SharePartition]:
        """The share-partitions assigned to it now."""
        ...


def in_turn(member: Member, topics: Sequence[str]) -> list[SharePartition]:
    """Return the assigned share-partitions of these topics, starting at a different one for each call and each
    member, so that none starves.
    """
    assigned = sorted(sp for sp in member.assignment if sp.topic in topics)
    turn = (next(_turns) + zlib.crc32(member.member_id.encode())) % len(assigned) if assigned else 0
    return assigned[turn:] + assigned[:turn]
