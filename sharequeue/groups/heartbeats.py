"""Who is in a share group, at which epoch, and what may each member work on?

The group coordinator's half of KIP-932 with its state in Postgres: ShareGroupHeartbeat (join, stay, leave),
session expiry, epochs and the assignment. Rules and their order are kafka-semantics 2.14
(`GroupMetadataManager`). Everything that touches a group runs in one transaction with the group's row locked,
so any number of services may serve it. Who gets what is `assignors`'; which share-partitions exist is decided
by the coordinator; records and locks are `state`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, text
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.errors import (
    NONE,
    CoordinatorNotAvailable,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidGroupId,
    InvalidRequest,
    InvalidTopic,
    ShareError,
    UnknownMemberId,
)
from sharequeue.groups.assignments import AssignedTopic, settle_member, tell_assignment, update_epochs
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs, stored_configs
from sharequeue.groups.service_leases import short_transaction
from sharequeue.names import too_long, topic_name_problem

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
    """The answer to a heartbeat; `assignment` None means that it is as before."""

    error_code: int = NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    session_timeout_ms: int = 0
    assignment: tuple[AssignedTopic, ...] | None = None


def ensure_group(database: Database, group_id: str) -> None:
    """Make the group if there is none; it begins at epoch 1. Raises `InvalidGroupId` for an id that cannot be."""
    if not group_id or too_long("group id", group_id):
        raise InvalidGroupId(too_long("group id", group_id))
    with database.transaction() as connection:
        _make_group(connection, group_id)


def heartbeat(
    database: Database, request: HeartbeatRequest, service: ServiceConfigs | None = None
) -> HeartbeatResponse:
    """One ShareGroupHeartbeat. A refusal is an answer with Kafka's error number; nothing has changed then.

    Raises only what the database raises.
    """
    service = service or ServiceConfigs.stored(database)
    try:
        _check_request(request)
        with short_transaction(database) as connection:
            if request.member_epoch == LEAVE_EPOCH:
                return _leave(connection, request)
            return _stay(connection, request, service)
    except ShareError as error:
        return HeartbeatResponse(error_code=error.code, error_message=error.message)
    except DBAPIError as error:
        if getattr(error.orig, "pgcode", None) != _LOCK_NOT_AVAILABLE:
            raise
        held = CoordinatorNotAvailable(_held(request.group_id))
        return HeartbeatResponse(error_code=held.code, error_message=held.message)


def overdue_groups(database: Database) -> list[str]:
    """The groups with members whose session is over."""
    rows = database.rows(
        text(
            "select distinct group_id from sharequeue.members where session_expires_at <= sharequeue.clock()"
        )
    )
    return [str(row["group_id"]) for row in rows]


def expire_members_of(database: Database, group_id: str) -> list[str]:
    """End the sessions of one group whose time is over: the members leave, and what they hold is released unanswered.

    Gives the members. Kafka's coordinator only fences them and lets their locks lapse; here records of a member that
    is known to be gone come back at once (kafka-semantics 2.20, line 6). Raises `CoordinatorNotAvailable` while
    somebody else is at work on the group.
    """
    with short_transaction(database) as connection:
        locked = connection.execute(
            text(
                "select from sharequeue.share_groups where group_id = :group_id for no key update skip locked"
            ),
            {"group_id": group_id},
        )
        if locked.first() is None:
            raise CoordinatorNotAvailable(_held(group_id))
        gone = connection.execute(
            text(
                "delete from sharequeue.members where group_id = :group_id"
                " and session_expires_at <= sharequeue.clock() returning member_id"
            ),
            {"group_id": group_id},
        )
        members = sorted(str(member.member_id) for member in gone)
        for member_id in members:
            connection.execute(
                text("select sharequeue.release(:group_id, :member_id)"),
                {"group_id": group_id, "member_id": member_id},
            )
        _after_leaving(connection, group_id, len(members))
    return members


def refresh_group(database: Database, group_id: str, service: ServiceConfigs | None = None) -> int | None:
    """Bring a group's epoch up to what is known of its topics; gives the group epoch, None without such a
    group.

    What a heartbeat does before it answers, for a group whose members are between heartbeats.
    """
    service = service or ServiceConfigs.stored(database)
    with short_transaction(database) as connection:
        if _lock_group(connection, group_id) is None:
            return None
        configs = GroupConfigs.of(group_id, stored_configs(connection, group_id), service)
        update_epochs(connection, configs, subscription_changed=False)
        return int(connection.scalar(_GROUP_EPOCH, {"group_id": group_id}) or 0)


_LOCK_NOT_AVAILABLE = "55P03"
_GROUP_EPOCH = text("select group_epoch from sharequeue.share_groups where group_id = :group_id")


def _held(group_id: str) -> str:
    return f"Group {group_id} is held by a transaction of somebody else's. Try again in a moment."


def _check_request(request: HeartbeatRequest) -> None:
    """Rows 3 to 7: what is wrong whatever the group's state."""
    if not 1 <= len(request.member_id) <= MAX_MEMBER_ID_LENGTH:
        raise InvalidRequest(
            f"The member id has {len(request.member_id)} characters: give 1 to {MAX_MEMBER_ID_LENGTH}, "
            "a UUID for one."
        )
    if not request.group_id:
        raise InvalidRequest("The group id is empty: name the share group.")
    if request.rack_id == "":
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
        # Kafka takes any text here and never finds such a topic. Nobody can ever make one, so the member would wait
        # for good.
        if problem := topic_name_problem(name):
            raise InvalidTopic(problem)


def _make_group(connection: Connection, group_id: str) -> None:
    connection.execute(
        text("insert into sharequeue.share_groups (group_id) values (:group_id) on conflict do nothing"),
        {"group_id": group_id},
    )


def _lock_group(connection: Connection, group_id: str) -> RowMapping | None:
    # "no key update", not "update": rows that refer to the group may be written while a heartbeat runs.
    rows = connection.execute(
        text("select * from sharequeue.share_groups where group_id = :group_id for no key update"),
        {"group_id": group_id},
    )
    return rows.mappings().one_or_none()


def _member(connection: Connection, request: HeartbeatRequest) -> RowMapping | None:
    rows = connection.execute(
        text("select * from sharequeue.members where group_id = :group_id and member_id = :member_id"),
        {"group_id": request.group_id, "member_id": request.member_id},
    )
    return rows.mappings().one_or_none()


def _no_member(request: HeartbeatRequest) -> UnknownMemberId:
    return UnknownMemberId(
        f"{request.member_id} is not a member of group {request.group_id}: it never joined, left, or its "
        "session expired. Join again with member epoch 0."
    )


def _leave(connection: Connection, request: HeartbeatRequest) -> HeartbeatResponse:
    """Epoch −1, whatever the member's own epoch; records it still holds wait for their lock, as in Kafka."""
    if _lock_group(connection, request.group_id) is None:
        raise GroupIdNotFound(f"There is no share group {request.group_id}: there is nothing to leave.")
    gone = connection.execute(
        text("delete from sharequeue.members where group_id = :group_id and member_id = :member_id"),
        {"group_id": request.group_id, "member_id": request.member_id},
    )
    if gone.rowcount == 0:
        raise _no_member(request)
    _after_leaving(connection, request.group_id, 1)
    return HeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)


def _after_leaving(connection: Connection, group_id: str, members: int) -> None:
    """One epoch for each that left; with nobody left there is nothing to assign, and the next comer need not
    wait."""
    connection.execute(
        text(
            "update sharequeue.share_groups g set group_epoch = g.group_epoch + :members,"
            " assignment_epoch ="
            " case when remain.any_member then g.assignment_epoch else g.group_epoch + :members end,"
            " assigned_at = case when remain.any_member then g.assigned_at end"
            " from (select exists"
            " (select from sharequeue.members where group_id = :group_id) as any_member) as remain"
            " where g.group_id = :group_id and :members > 0"
        ),
        {"group_id": group_id, "members": members},
    )


def _stay(connection: Connection, request: HeartbeatRequest, service: ServiceConfigs) -> HeartbeatResponse:
    """Epoch 0 or above: rows 8 to 12, then the member, the group's epochs, and what there is to tell."""
    if request.member_epoch == JOIN_EPOCH:
        _make_group(connection, request.group_id)
    if _lock_group(connection, request.group_id) is None:
        raise GroupIdNotFound(
            f"There is no share group {request.group_id}. Join with member epoch 0 to make it."
        )
    member = _member(connection, request)
    if member is None:
        _check_size(connection, request, service)
    if request.member_epoch != JOIN_EPOCH:
        if member is None:
            raise _no_member(request)
        _check_epoch(request, int(member["member_epoch"]), int(member["previous_member_epoch"]))
    configs = GroupConfigs.of(request.group_id, stored_configs(connection, request.group_id), service)
    subscribed = _save_member(connection, request, member, configs)
    update_epochs(connection, configs, subscription_changed=subscribed)
    epoch, moved = settle_member(connection, request.group_id, request.member_id)
    asked = request.member_epoch == JOIN_EPOCH or request.subscribed_topic_names is not None
    assignment = (
        tell_assignment(connection, request.group_id, request.member_id, always=asked)
        if asked or moved
        else None
    )
    return HeartbeatResponse(
        member_id=request.member_id,
        member_epoch=epoch,
        heartbeat_interval_ms=configs.heartbeat_interval_ms,
        session_timeout_ms=configs.session_timeout_ms,
        assignment=assignment,
    )


def _check_size(connection: Connection, request: HeartbeatRequest, service: ServiceConfigs) -> None:
    count = text("select count(*) from sharequeue.members where group_id = :group_id")
    if int(connection.scalar(count, {"group_id": request.group_id}) or 0) >= service.max_size:
        raise GroupMaxSizeReached(
            f"Group {request.group_id} has {service.max_size} members, which is all that "
            "`group.share.max.size` allows. Stop one, or raise the limit."
        )


def _check_epoch(request: HeartbeatRequest, known: int, previous: int) -> None:
    # The previous epoch is what a member has whose last answer was lost on the way.
    if request.member_epoch > known or request.member_epoch not in (known, previous):
        relation = "above" if request.member_epoch > known else "below"
        raise FencedMemberEpoch(
            f"Member epoch {request.member_epoch} is {relation} {known}, which the group knows for "
            f"{request.member_id} (the one before was {previous}). Abandon what is held and join again "
            "with 0."
        )


def _save_member(
    connection: Connection, request: HeartbeatRequest, member: RowMapping | None, configs: GroupConfigs
) -> bool:
    """Write the member down as alive; whether its subscription changed (a new member's has)."""
    before: set[str] | None = None if member is None else set(member["subscribed_topic_names"])
    named = request.subscribed_topic_names
    topics = before or set() if named is None else set(named)
    connection.execute(
        text(
            "insert into sharequeue.members as m"
            " (group_id, member_id, member_epoch, rack_id, client_id, client_host,"
            " subscribed_topic_names, joined_at, heartbeat_at, session_expires_at)"
            " select :group_id, :member_id, 0, :rack_id, :client_id, :client_host, cast(:topics as text[]),"
            " at, at, at + cast(:session as interval) from sharequeue.clock() as at"
            " on conflict on constraint members_pkey do update set"
            " rack_id = coalesce(excluded.rack_id, m.rack_id),"
            " client_id = excluded.client_id, client_host = excluded.client_host,"
            " subscribed_topic_names = excluded.subscribed_topic_names, heartbeat_at = excluded.heartbeat_at,"
            " session_expires_at = excluded.session_expires_at"
        ),
        {
            "group_id": request.group_id,
            "member_id": request.member_id,
            "rack_id": request.rack_id,
            "client_id": request.client_id,
            "client_host": request.client_host,
            "topics": sorted(topics),
            "session": f"{configs.session_timeout_ms} milliseconds",
        },
    )
    return topics != before
