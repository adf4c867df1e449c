"""Limits for one client of the coordinator service.

Those of `sharequeue serve`, from `SHAREQUEUE_SERVICE_<NAME>`. `sharequeue.service.edge` enforces them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ServiceLimits"]


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits of one replica: `SHAREQUEUE_SERVICE_<NAME>`. Raises ValueError for invalid values."""

    max_connections: int = 2_000
    """Connections at the same time. A new one replaces the one that has waited longest for its client."""
    request_timeout_ms: int = 10_000
    """The longest duration of a TLS handshake, and of one request from its first byte to its last."""
    answer_timeout_ms: int = 30_000
    """The longest time that a client may take to read a response."""
    idle_timeout_ms: int = 75_000
    """The longest time that a connection stays open between requests."""
    requests_per_second: int = 2_500
    """Average rate of one principal; a request other than a heartbeat counts as 5. 0 for no limit."""

    def __post_init__(self) -> None:
        times = self.request_timeout_ms, self.answer_timeout_ms, self.idle_timeout_ms
        if self.max_connections < 10 or min(times) < 100 or self.requests_per_second < 0:
            raise ValueError(
                "the service needs at least 10 connections and timeouts of at least 100 ms, and a rate must not be "
                "negative (0 for no limit)"
            )
