"""Settings that belong together: connections to the database, its roles, the service's limits for one client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sharequeue.domain.settings.addresses import SettingInvalid

__all__ = ["DatabaseOptions", "RoleNames", "ServiceLimits"]


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """Options of connections to Postgres: `SHAREQUEUE_DATABASE_<NAME>`. Raises SettingInvalid for invalid values."""

    pool_size: int = 5
    """Connections kept open; the same number again may be opened for a short time."""
    statement_timeout_ms: int = 60_000
    """The longest duration of one statement; 0 for no limit."""
    lock_timeout_ms: int = 30_000
    """The longest wait of a statement for a row lock; 0 for no limit."""
    pre_ping: bool = True
    """Test a connection that has been idle for a second before it is used."""

    def __post_init__(self) -> None:
        _check_between("DATABASE_POOL_SIZE", self.pool_size, 1, 10_000)
        _check_between("DATABASE_STATEMENT_TIMEOUT_MS", self.statement_timeout_ms, 0)
        _check_between("DATABASE_LOCK_TIMEOUT_MS", self.lock_timeout_ms, 0)


class RoleNames(NamedTuple):
    """The names of the group roles in Postgres: `SHAREQUEUE_DATABASE_<PURPOSE>_ROLE`."""

    owner: str = "sharequeue_owner"
    """Owns the schema and may do everything; migrations run as a member of it."""
    service: str = "sharequeue_service"
    """Runs the coordinator: keeps groups and members, and may act for other principals."""
    worker: str = "sharequeue_worker"
    """May call the functions of operations, and has no access to tables."""
    reader: str = "sharequeue_reader"
    """May read the views."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits of one replica: `SHAREQUEUE_SERVICE_<NAME>`. Raises SettingInvalid for invalid values."""

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
        _check_between("SERVICE_MAX_CONNECTIONS", self.max_connections, 10, 1_000_000)
        _check_between("SERVICE_REQUEST_TIMEOUT_MS", self.request_timeout_ms, 100)
        _check_between("SERVICE_ANSWER_TIMEOUT_MS", self.answer_timeout_ms, 100)
        _check_between("SERVICE_IDLE_TIMEOUT_MS", self.idle_timeout_ms, 100)
        _check_between("SERVICE_REQUESTS_PER_SECOND", self.requests_per_second, 0)


def _check_between(name: str, value: int, least: int, most: int = 2**31 - 1) -> None:
    """Raise SettingInvalid unless a setting is within its bounds. Postgres and the system count to 2³¹ - 1."""
    if not least <= value <= most:
        raise SettingInvalid(f"SHAREQUEUE_{name}", f"{value} is not valid: expected {least:,} to {most:,}")
