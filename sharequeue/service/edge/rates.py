"""Rate limits of principals.

Each caller has a token bucket (as in Kafka's quotas), kept in this process as one number: the time at which the
bucket is full again. So each replica has separate buckets.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network

__all__ = ["Rates", "network_of"]

BURST_S = 2.0
"""A bucket holds the tokens of this time, in seconds."""
_MOST_CALLERS = 10_000
_IPV6_OF_ONE = 64
"""The bits of an IPv6 address that identify its network: one customer has all addresses with this prefix."""


class Rates:
    """The rate limit `per_second` for many callers; 0 means no limit. At most `most` buckets are kept: the least
    recently used ones are dropped, which helps only callers that would soon be within the rate anyway."""

    def __init__(
        self, per_second: float, clock: Callable[[], float] = time.monotonic, most: int = _MOST_CALLERS
    ) -> None:
        self._seconds_each = 1 / per_second if per_second else 0.0
        self._clock = clock
        self._most = most
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of kept buckets."""
        return len(self._full_at)

    def take(self, caller: str, tokens: int = 1, most_over: float = BURST_S) -> float:
        """Take tokens from a caller's bucket; return the seconds until the bucket would have had them: 0 within the
        rate. If that is more than `most_over`, nothing is taken."""
        if not self._seconds_each:
            return 0.0
        now = self._clock()
        full_at = max(self._full_at.get(caller, now), now) + tokens * self._seconds_each
        over = full_at - now - BURST_S
        if over <= most_over:
            self._full_at[caller] = full_at
            self._full_at.move_to_end(caller)
            if len(self._full_at) > self._most:
                self._full_at.popitem(last=False)
        return max(over, 0.0)


def network_of(address: str) -> str:
    """Return the network of an address: for IPv6 its first 64 bits."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network((int(found), _IPV6_OF_ONE), strict=False))
    return address
