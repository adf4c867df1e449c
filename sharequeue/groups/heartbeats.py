"""Heartbeats: members of a share group, their epochs and their assignments.

The group coordinator's half of KIP-932 with its state in Postgres: ShareGroupHeartbeat (join, stay, leave),
session expiry, epochs and the assignment. Rules and their order are R-GR-0 to R-GR-10 (Kafka's
`GroupMetadataManager`). The rules that look at a group's state are in ``sql/functions/20_groups/heartbeats.sql``.
Each call of the database is one transaction with the group's row locked, so any number of services may serve a
group. `assignors` computes assignments, the coordinator decides which share-partitions exist, and `state` has the
records and locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.database.lock_timeouts import STEP_LOCK_TIMEOUT_MS, with_short_waits
from sharequeue.database.sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from sharequeue.domain.errors import (
    NONE,
    CoordinatorNotAvailable,
    InvalidGroupId,
    InvalidRequest,
    ShareError,
)
from sharequeue.domain.names import too_long
from sharequeue.groups.assignments import ASSIGN, AssignedTopic, assignment_parameters, write_assignment
from sharequeue.groups.configs import ServiceConfigs

JOIN_EPOCH = 0
LEAVE_EPOCH = -1


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """ShareGroupHeartbeat, version 1: None for rack and topics means "as before", epoch 0 joins, −1
    leaves."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """The response to a heartbeat. `assignment` None means that it is as before."""

    error_code: int = NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    session_timeout_ms: int = 0
    assignment: list[AssignedTopic] | None = None


def ensure_group(database: Database, group_id: str) -> None:
    """Make the group, at epoch 1, if there is none. Raises `InvalidGroupId` for an id that is not allowed."""
    if not group_id or too_long("group id", group_id):
        raise InvalidGroupId(too_long("group id", group_id))
    with database.transaction() as connection:
        connection.execute(
            text("insert into sharequeue.share_groups (group_id) values (:group_id) on conflict do nothing"),
            {"group_id": group_id},
        )


def heartbeat(
    database: Database,
    request: HeartbeatRequest,
    service: ServiceConfigs | None = None,
    principal: str | None = None,
) -> HeartbeatResponse:
    """Return the response to one ShareGroupHeartbeat: one call of the database, or two when an assignment is due.

    `principal` is the sender, whose ACLs are checked; None is the service itself, which may send for any principal.

    A refused heartbeat has Kafka's error number in its response, and nothing has changed. One exception: after
    `CoordinatorNotAvailable` a join or a new subscription may be stored without its assignment. Repeat the heartbeat.
    Raises only errors of the database.
    """
    try:
        if request.member_epoch == LEAVE_EPOCH:
            database.rows(_LEAVE, group_id=request.group_id, member_id=request.member_id, principal=principal)
            return HeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
        return _stay(database, request, service or ServiceConfigs.stored(database), principal)
    except ShareError as error:
        return HeartbeatResponse(error_code=error.code, error_message=error.message)
    except ValueError as error:
        # The driver cannot send a text with the character NUL.
        unsent = InvalidRequest(f"A field of the heartbeat is not valid: {error}")
        return HeartbeatResponse(error_code=unsent.code, error_message=unsent.message)
    except DBAPIError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        held = CoordinatorNotAvailable(
            f"Group {request.group_id} is locked by another transaction. Try again in a moment."
        )
        return HeartbeatResponse(error_code=held.code, error_message=held.message)


def is_keep_alive(request: HeartbeatRequest) -> bool:
    """Return whether a heartbeat only keeps the member alive, as nearly all do."""
    return (
        request.member_epoch > JOIN_EPOCH
        and request.subscribed_topic_names is None
        and request.rack_id is None
    )


def keep_alive(
    database: Database, requests: Sequence[tuple[HeartbeatRequest, str | None]], service: ServiceConfigs
) -> list[HeartbeatResponse | None]:
    """Return the responses to heartbeats, each with its principal, in one call.

    None for those that `heartbeat` has to process. A call and a commit for each would take most of a service's time.

    Only for replicas that check all groups: it does not check whether a group's topics or share-partitions have
    changed. A crash of Postgres may lose what it did in the last moment; sessions then go on as after any outage.
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


@dataclass(frozen=True, slots=True)
class DueGroups:
    """Groups with expired members, and groups that have to be assigned again."""

    overdue: tuple[str, ...]
    behind: tuple[str, ...]


def due_groups(database: Database) -> DueGroups:
    """Return the groups with expired sessions, and those whose assignment is behind their epoch.

    A heartbeat in the future, from before the clock was set back, is corrected as a session expires.
    """
    rows = database.rows(
        text(
            "select group_id, true as overdue from sharequeue.members,"
            " (select sharequeue.clock() as now) as c"
            " where session_expires_at <= now or heartbeat_at > now group by group_id"
            " union all select g.group_id, false from sharequeue.share_groups g"
            " where g.assignment_epoch < g.group_epoch"
            " and exists (select from sharequeue.members m where m.group_id = g.group_id)"
        )
    )
    return DueGroups(
        tuple(str(row["group_id"]) for row in rows if row["overdue"]),
        tuple(str(row["group_id"]) for row in rows if not row["overdue"]),
    )


def changed_groups(database: Database, after: str, limit: int) -> tuple[list[str], str | None]:
    """Return those of the next groups by name whose topics or share-partitions have changed since their assignment.

    `limit` groups are checked, starting after `after`. The second value is the last of them, None at the end.
    """
    rows = database.rows(
        text(
            "select g.group_id, exists (select from sharequeue.members m where m.group_id = g.group_id)"
            " and (g.metadata_hash is distinct from sharequeue.metadata_hash(g.group_id) or exists"
            " (select share_partition_id from sharequeue.assignable_share_partitions(g.group_id) except"
            " select a.share_partition_id from sharequeue.assignments a where a.group_id = g.group_id)) as changed"
            " from sharequeue.share_groups g where g.group_id > :after order by g.group_id limit :limit"
        ),
        after=after,
        limit=limit,
    )
    changed = [str(row["group_id"]) for row in rows if row["changed"]]
    return changed, str(rows[-1]["group_id"]) if len(rows) == limit else None


def expire_members_of(database: Database, group_id: str) -> list[str]:
    """Remove the members of a group whose session has expired, release their records, and return their ids.

    Kafka's coordinator only fences them and lets their locks lapse. Here the records of a removed member are
    available again at once (R-GR-9). Raises `CoordinatorNotAvailable` while another transaction
    holds the group.
    """
    [row] = database.rows(_EXPIRE, group_id=group_id)
    return list(row["members"])


def refresh_group(database: Database, group_id: str, service: ServiceConfigs | None = None) -> int | None:
    """Raise a group's epoch if its topics have changed, and assign it if due, as a heartbeat does.

    Return the group epoch; None when there is no such group.
    """
    service = service or ServiceConfigs.stored(database)
    interval = service.bounded("assignment.interval.ms")
    [row] = database.rows(_REFRESH, group_id=group_id, assignment_interval_ms=interval)
    if row["to_assign"] is not None:
        write_assignment(database, group_id, row["to_assign"])
    epoch: int | None = row["group_epoch"]
    return epoch


_ASSIGNING = 3
"""How many times one heartbeat tries to assign. A try fails if members join or leave meanwhile. After the last one
the response has the present assignment of the group, and the next heartbeat of the group tries again."""

_BEAT = (
    "select * from sharequeue.heartbeat(:group_id, :member_id, :member_epoch, :rack_id,"
    " cast(:topics as text[]), :client_id, :client_host, :max_size, cast(:session_timeout_ms as integer[]),"
    " cast(:heartbeat_interval_ms as integer[]), cast(:assignment_interval_ms as integer[]), :assign, :principal)"
)
_HEARTBEAT = with_short_waits(_BEAT)
_ASSIGN_AND_HEARTBEAT = with_short_waits(f"{ASSIGN}; {_BEAT}")
_LEAVE = with_short_waits("select sharequeue.leave_group(:group_id, :member_id, :principal)")
_KEEP_ALIVE = with_short_waits(
    "set local synchronous_commit = off; select * from sharequeue.keep_alive("
    "cast(:group_ids as text[]), cast(:member_ids as text[]), cast(:epochs as integer[]),"
    " cast(:client_ids as text[]), cast(:client_hosts as text[]), cast(:principals as text[]),"
    " cast(:session_timeout_ms as integer[]), cast(:heartbeat_interval_ms as integer[]))"
)
_EXPIRE = with_short_waits("select sharequeue.expire_members(:group_id) as members", STEP_LOCK_TIMEOUT_MS)
_REFRESH = with_short_waits(
    "select * from sharequeue.refresh_group(:group_id, cast(:assignment_interval_ms as integer[]))",
    STEP_LOCK_TIMEOUT_MS,
)


def _stay(
    database: Database, request: HeartbeatRequest, service: ServiceConfigs, principal: str | None
) -> HeartbeatResponse:
    """Join or stay. Call the database, and again with each assignment that it asked for, until it asks for none."""
    topics = request.subscribed_topic_names
    parameters: dict[str, Any] = {
        "group_id": request.group_id,
        "member_id": request.member_id,
        "member_epoch": request.member_epoch,
        "rack_id": request.rack_id,
        "topics": None if topics is None else list(topics),
        "client_id": request.client_id,
        "client_host": request.client_host,
        "max_size": service.max_size,
        "session_timeout_ms": service.bounded("session.timeout.ms"),
        "heartbeat_interval_ms": service.bounded("heartbeat.interval.ms"),
        "assignment_interval_ms": service.bounded("assignment.interval.ms"),
        "principal": principal,
    }
    [row] = database.rows(_HEARTBEAT, **parameters, assign=True)
    for left in reversed(range(_ASSIGNING)):
        if row["to_assign"] is None:
            break
        assignment = assignment_parameters(row["to_assign"])
        [row] = database.rows(_ASSIGN_AND_HEARTBEAT, **parameters, **assignment, assign=left > 0)
    return HeartbeatResponse(
        member_id=request.member_id,
        member_epoch=row["member_epoch"],
        heartbeat_interval_ms=row["heartbeat_interval_ms"],
        session_timeout_ms=row["session_timeout_ms"],
        assignment=row["assignment"],
    )
