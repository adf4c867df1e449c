"""How do members say that they are alive, many in one call?

Nearly every heartbeat only says that: it subscribes to nothing new, and of the group nothing is new. A call of the
database with a commit for each would take most of a service's time. `keep_alive` does all those of a moment at once,
and leaves any other to `heartbeats.heartbeat`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharequeue.database import Database
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.heartbeats import JOIN_EPOCH, HeartbeatRequest, HeartbeatResponse
from sharequeue.groups.short_waits import with_short_waits


def only_says_alive(request: HeartbeatRequest) -> bool:
    """Whether a heartbeat asks for nothing."""
    return (
        request.member_epoch > JOIN_EPOCH
        and request.subscribed_topic_names is None
        and request.rack_id is None
    )


def keep_alive(
    database: Database, requests: Sequence[tuple[HeartbeatRequest, str | None]], service: ServiceConfigs
) -> list[HeartbeatResponse | None]:
    """Return the responses to heartbeats, each with its principal, in one call; None for those that
    `heartbeats.heartbeat` has to process.

    Only for who looks at all groups by himself: whether a group's topics or share-partitions have changed is not
    looked at here. A crash of Postgres may lose what it did in the last moment; sessions then go on as after any
    outage.
    """
    rows = database.rows(
        _KEEP_ALIVE,
        group_ids=[request.group_id for request, _ in requests],
        member_ids=[request.member_id for request, _ in requests],
        epochs=[request.member_epoch for request, _ in requests],
        client_ids=[request.client_id for request, _ in requests],
        client_hosts=[request.client_host for request, _ in requests],
        principals=[principal for _, principal in requests],
        session_timeout_ms=service.bounded("session.timeout.ms"),
        heartbeat_interval_ms=service.bounded("heartbeat.interval.ms"),
    )
    responses: list[HeartbeatResponse | None] = [None] * len(requests)
    for row in rows:
        request, _ = requests[row["place"] - 1]
        responses[row["place"] - 1] = HeartbeatResponse(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=row["heartbeat_interval_ms"],
            session_timeout_ms=row["session_timeout_ms"],
        )
    return responses


_KEEP_ALIVE = with_short_waits(
    "set local synchronous_commit = off; select * from sharequeue.keep_alive("
    "cast(:group_ids as text[]), cast(:member_ids as text[]), cast(:epochs as integer[]),"
    " cast(:client_ids as text[]), cast(:client_hosts as text[]), cast(:principals as text[]),"
    " cast(:session_timeout_ms as integer[]), cast(:heartbeat_interval_ms as integer[]))"
)
