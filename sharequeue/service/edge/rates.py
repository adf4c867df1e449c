"""Does somebody ask too often?

A token bucket for each who asks (Kafka's quotas are such, too), kept in this process as one number: the time at which
its bucket is full again. So each replica has buckets of its own.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network

__all__ = ["Rates", "network_of"]

BURST_S = 2.0
"""A bucket holds as much as is allowed in this time."""
_MOST_CALLERS = 10_000
_IPV6_OF_ONE = 64
"""Bits of an address of IPv6 that say whose it is: one customer has all that begin with them."""


class Rates:
    """How far each of many is over `per_second`; 0 is no bound. What is known of one that has not asked for long is
    forgotten: at most `most` are kept, and nobody gains by it but who would soon be within its rate anyway."""

    def __init__(
        self, per_second: float, clock: Callable[[], float] = time.monotonic, most: int = _MOST_CALLERS
    ) -> None:
        self._seconds_each = 1 / per_second if per_second else 0.0
        self._clock = clock
        self._most = most
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Of how many something is kept."""
        return len(self._full_at)

    def take(self, who: str, tokens: int = 1, most_over: float = BURST_S) -> float:
        """Take tokens from somebody's bucket; return the seconds after which it would have had them: 0 within the
        rate. Where that is more than `most_over`, nothing is taken."""
        if not self._seconds_each:
            return 0.0
        now = self._clock()
        full_at = max(self._full_at.get(who, now), now) + tokens * self._seconds_each
        over = full_at - now - BURST_S
        if over <= most_over:
            self._full_at[who] = full_at
            self._full_at.move_to_end(who)
            if len(self._full_at) > self._most:
                self._full_at.popitem(last=False)
        return max(over, 0.0)


def network_of(address: str) -> str:
    """Whose an address is: of IPv6 its first 64 bits."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network((int(found), _IPV6_OF_ONE), strict=False))
    return address
