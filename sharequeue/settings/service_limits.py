"""How much may one client take of the coordinator service?

The bounds of `sharequeue serve`, from `SHAREQUEUE_SERVICE_<NAME>`. What enforces them is in `service`: `connections`,
`protocol` and `rates`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ServiceLimits"]


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Bounds of one replica: `SHAREQUEUE_SERVICE_<NAME>`. Raises ValueError for what cannot be."""

    max_connections: int = 2_000
    """Connections at once. A new one takes the place of the one that has waited longest for its client."""
    request_timeout_ms: int = 10_000
    """Longest that a client may take over a TLS handshake, and over one request, from its first byte to its last."""
    answer_timeout_ms: int = 30_000
    """Longest that a client may take to read an answer."""
    idle_timeout_ms: int = 75_000
    """Longest that a connection stays open between requests."""
    requests_per_second: int = 2_500
    """Of one principal, on average; a request other than a heartbeat counts as 5. 0 for no bound."""

    def __post_init__(self) -> None:
        times = self.request_timeout_ms, self.answer_timeout_ms, self.idle_timeout_ms
        if self.max_connections < 10 or min(times) < 100 or self.requests_per_second < 0:
            raise ValueError(
                "the service holds at least 10 connections, waits at least 100 ms for a client, and a rate is not "
                "negative (0 is no bound)"
            )
