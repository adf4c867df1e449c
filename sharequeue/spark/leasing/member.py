"""What does a run need to know of the member it leases for?"""

from __future__ import annotations

import threading
from typing import Protocol

from sharequeue.values import SharePartition


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
