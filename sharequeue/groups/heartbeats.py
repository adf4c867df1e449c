"""Who is in a share group, at which epoch, and what may each member work on?

The group coordinator's half of KIP-932 with its state in Postgres: ShareGroupHeartbeat (join, stay, leave),
session expiry, epochs and the assignment. Rules and their order are kafka-semantics 2.14
(`GroupMetadataManager`). The rules that look at a group's state are in ``sql/functions/20_groups/heartbeats.sql``.
Each call of the database is one transaction with the group's row locked, so any number of services may serve a
group. Who gets what is `assignors`'; which share-partitions exist is decided by the coordinator; records and locks
are `state`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import RowMapping, text
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.errors import (
    NONE,
    CoordinatorNotAvailable,
    InvalidGroupId,
    InvalidRequest,
    InvalidTopic,
    ShareError,
)
from sharequeue.groups.acls import require_heartbeat
from sharequeue.groups.assignments import AssignedTopic, assigned_topics, write_assignment
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.short_waits import STEP_LOCK_TIMEOUT_MS, with_short_waits
from sharequeue.names import is_blank, too_long, topic_name_problem

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
MAX_MEMBER_ID_LENGTH = 36


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
    assignment: tuple[AssignedTopic, ...] | None = None


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
    """Return the response to one ShareGroupHeartbeat: one call of the database, or three when an assignment is due.

    `principal` sends it, and is asked for its ACLs; None is the service itself, which may send it for anybody.

    A refused heartbeat has Kafka's error number in its response, and nothing has changed. One exception: after
    `CoordinatorNotAvailable` a join or a new subscription may be stored without its assignment. Repeat the heartbeat.
    Raises only what the database raises.
    """
    service = service or ServiceConfigs.stored(database)
    try:
        try:
            _check_request(request)
        except ShareError:
            # As on a broker: who may not is told that first, whatever else is wrong.
            if principal is not None:
                require_heartbeat(database, principal, request.group_id, request.subscribed_topic_names or ())
            raise
        if request.member_epoch == LEAVE_EPOCH:
            database.rows(_LEAVE, group_id=request.group_id, member_id=request.member_id, principal=principal)
            return HeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
        return _stay(database, request, service, principal)
    except ShareError as error:
        return HeartbeatResponse(error_code=error.code, error_message=error.message)
    except DBAPIError as error:
        if getattr(error.orig, "pgcode", None) != _LOCK_NOT_AVAILABLE:
            raise
        held = CoordinatorNotAvailable(
            f"Group {request.group_id} is held by a transaction of somebody else's. Try again in a moment."
        )
        return HeartbeatResponse(error_code=held.code, error_message=held.message)


@dataclass(frozen=True, slots=True)
class DueGroups:
    """Groups with members whose session is over, and groups that have to be assigned anew."""

    overdue: tuple[str, ...]
    behind: tuple[str, ...]


def due_groups(database: Database) -> DueGroups:
    """Return the groups for which a session or an epoch says that something is to be done."""
    rows = database.rows(
        text(
            "select group_id, true as overdue from sharequeue.members"
            " where session_expires_at <= (select sharequeue.clock()) group by group_id"
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
    """Return those of the next groups by name whose topics or share-partitions have changed since they were assigned.

    `limit` groups are looked at, beginning behind `after`. The second value is the last of them, None at the end.
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
    """Remove the members of a group whose session is over, release what they hold, and return their ids.

    Kafka's coordinator only fences them and lets their locks lapse. Here the records of a member that is gone come
    back at once (kafka-semantics 2.20, line 6). Raises `CoordinatorNotAvailable` while another transaction holds the
    group.
    """
    [row] = database.rows(_EXPIRE, group_id=group_id)
    return list(row["members"])


def refresh_group(database: Database, group_id: str, service: ServiceConfigs | None = None) -> int | None:
    """Raise a group's epoch where its topics have changed, and assign what is due, as a heartbeat does.

    Return the group epoch; None when there is no such group.
    """
    service = service or ServiceConfigs.stored(database)
    interval = service.bounded("assignment.interval.ms")
    [row] = database.rows(_REFRESH, group_id=group_id, assignment_interval_ms=interval)
    if row["to_assign"] is not None:
        write_assignment(database, group_id, row["to_assign"])
    epoch: int | None = row["group_epoch"]
    return epoch


_LOCK_NOT_AVAILABLE = "55P03"
_ASSIGNING = 3
"""How often one heartbeat tries to assign. A try fails when members come or go meanwhile. After the last one the
response has the assignment that the group has, and the next heartbeat of the group tries again."""

_HEARTBEAT = with_short_waits(
    "select * from sharequeue.heartbeat(:group_id, :member_id, :member_epoch, :rack_id,"
    " cast(:topics as text[]), :client_id, :client_host, :max_size, cast(:session_timeout_ms as integer[]),"
    " cast(:heartbeat_interval_ms as integer[]), cast(:assignment_interval_ms as integer[]), :assign, :principal)"
)
_LEAVE = with_short_waits("select sharequeue.leave_group(:group_id, :member_id, :principal)")
_EXPIRE = with_short_waits("select sharequeue.expire_members(:group_id) as members", STEP_LOCK_TIMEOUT_MS)
_REFRESH = with_short_waits(
    "select * from sharequeue.refresh_group(:group_id, cast(:assignment_interval_ms as integer[]))",
    STEP_LOCK_TIMEOUT_MS,
)


def _check_request(request: HeartbeatRequest) -> None:
    """Raise the errors of rows 3 to 7, which do not depend on the group's state."""
    if not 1 <= len(request.member_id) <= MAX_MEMBER_ID_LENGTH:
        raise InvalidRequest(
            f"The member id has {len(request.member_id)} characters: give 1 to {MAX_MEMBER_ID_LENGTH}, "
            "a UUID for one."
        )
    if is_blank(request.member_id):
        raise InvalidRequest("The member id is blank: give a UUID, for one.")
    if is_blank(request.group_id):
        raise InvalidRequest("The group id is empty: name the share group.")
    if request.rack_id is not None and is_blank(request.rack_id):
        raise InvalidRequest("The rack id is empty: name the rack, or leave it out.")
    named = {"group id": request.group_id, "rack id": request.rack_id or "", "client id": request.client_id}
    for what, name in named.items():
        if problem := too_long(what, name):
            raise InvalidRequest(problem)
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        raise InvalidRequest("Who joins (member epoch 0) must subscribe: give subscribed_topic_names.")
    if request.member_epoch < LEAVE_EPOCH:
        raise InvalidRequest(
            f"Member epoch {request.member_epoch} is not valid: 0 joins, −1 leaves, else it is the last one "
            "answered."
        )
    for name in request.subscribed_topic_names or ():
        # Kafka takes any text here. Nobody can make a topic of such a name, so the member would wait for ever.
        if problem := topic_name_problem(name):
            raise InvalidTopic(problem)


def _stay(
    database: Database, request: HeartbeatRequest, service: ServiceConfigs, principal: str | None
) -> HeartbeatResponse:
    """Join or stay. Call the database, and again after each assignment that it asked for, until it asks for none."""

    def call(*, assign: bool) -> RowMapping:
        topics = request.subscribed_topic_names
        [row] = database.rows(
            _HEARTBEAT,
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack_id=request.rack_id,
            topics=None if topics is None else list(topics),
            client_id=request.client_id,
            client_host=request.client_host,
            max_size=service.max_size,
            session_timeout_ms=service.bounded("session.timeout.ms"),
            heartbeat_interval_ms=service.bounded("heartbeat.interval.ms"),
            assignment_interval_ms=service.bounded("assignment.interval.ms"),
            assign=assign,
            principal=principal,
        )
        return row

    row = call(assign=True)
    for left in reversed(range(_ASSIGNING)):
        if row["to_assign"] is None:
            break
        write_assignment(database, request.group_id, row["to_assign"])
        row = call(assign=left > 0)
    return HeartbeatResponse(
        member_id=request.member_id,
        member_epoch=row["member_epoch"],
        heartbeat_interval_ms=row["heartbeat_interval_ms"],
        session_timeout_ms=row["session_timeout_ms"],
        assignment=None if row["assignment"] is None else assigned_topics(row["assignment"]),
    )
