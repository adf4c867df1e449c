"""Heartbeats that only say that a member is alive, many in a call: those are done, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.groups.acls import Acl, Acls
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat, keep_alive
from sharequeue.service.keep_alives import KeepAlives
from tests.waiting import set_clock

pytestmark = pytest.mark.usefixtures("standing_clock")

CONFIGS = ServiceConfigs()
ANN, BOB = "User:ann", "User:bob"


@pytest.fixture
def database(private_database: Database) -> Database:
    """Give a database with members `ann` and `bob` of group `g`, both with what they are to have."""
    alter_group_configs(
        private_database, "g", {"share.assignment.interval.ms": 0, "share.session.timeout.ms": 50_000}
    )
    for member in ("ann", "bob"):
        joined = heartbeat(
            private_database,
            HeartbeatRequest("g", member, 0, subscribed_topic_names=("t",), client_id="c", client_host="h"),
            CONFIGS,
            f"User:{member}",
        )
        assert joined.error_code == 0
    assert heartbeat(private_database, of("ann", joined.member_epoch - 1), CONFIGS, ANN).member_epoch == 3
    return private_database


def of(member: str, epoch: int = 3, **changes: Any) -> HeartbeatRequest:
    return HeartbeatRequest("g", member, epoch, **{"client_id": "c", "client_host": "h", **changes})


def expiries(database: Database) -> dict[str, float]:
    rows = database.rows(
        text(
            "select member_id, extract(epoch from session_expires_at - sharequeue.clock()) as left"
            " from sharequeue.members"
        )
    )
    return {row["member_id"]: float(row["left"]) for row in rows}


def test_those_alive_have_their_session_renewed(database: Database) -> None:
    """One call renews the sessions of all, and returns what a heartbeat does."""
    set_clock(database, timedelta(seconds=40))
    assert max(expiries(database).values()) < 20
    responses = keep_alive(database, [(of("bob"), BOB), (of("ann"), ANN)], CONFIGS)
    assert [each and (each.member_id, each.member_epoch, each.session_timeout_ms) for each in responses] == [
        ("bob", 3, 50_000),
        ("ann", 3, 50_000),
    ]
    assert min(expiries(database).values()) > 30
    assert heartbeat(database, of("ann"), CONFIGS, ANN) == responses[1]


@pytest.mark.parametrize(
    ("request_", "principal"),
    [
        (of("nobody"), ANN),
        (of("ann", 2), ANN),
        (of("ann", 4), ANN),
        (of("ann"), BOB),
        (of("ann", client_id="another"), ANN),
        (of("ann", client_host="elsewhere"), ANN),
        (HeartbeatRequest("another", "ann", 3, client_id="c", client_host="h"), ANN),
    ],
)
def test_other_heartbeats_are_left_to_their_own_call(
    database: Database, request_: HeartbeatRequest, principal: str
) -> None:
    """Strangers, other epochs, another's member and what is new of a member are left to a heartbeat of their own."""
    before = expiries(database)
    [left, done] = keep_alive(database, [(request_, principal), (of("bob"), BOB)], CONFIGS)
    assert left is None
    assert done is not None
    assert expiries(database)["ann"] <= before["ann"]


def test_a_group_of_which_something_is_new(database: Database) -> None:
    """While an assignment is due, or its principal may not READ the group, nothing is done; a held row is skipped."""
    asked = [(of("ann"), ANN)]
    with database.engine.connect() as holder, holder.begin():
        holder.execute(text("select from sharequeue.members for update"))
        assert keep_alive(database, asked, CONFIGS) == [None]
    Acls(database).add(Acl(BOB, "READ", "ALLOW", "LITERAL", "g"))
    assert keep_alive(database, asked, CONFIGS) == [None]
    Acls(database).add(Acl(ANN, "READ", "ALLOW", "LITERAL", "g"))
    assert keep_alive(database, asked, CONFIGS) != [None]
    assert heartbeat(database, of("bob", -1), CONFIGS, BOB).error_code == 0
    assert keep_alive(database, asked, CONFIGS) == [None]


def test_gathered(database: Database) -> None:
    """Heartbeats of one moment are one call; none of those is one that asks for something, or one while nobody looks
    at the groups."""
    calls = 0

    async def run(work: Callable[[], Any]) -> Any:
        nonlocal calls
        calls += 1
        return await asyncio.to_thread(work)

    async def all_at_once() -> None:
        beats = KeepAlives(database, CONFIGS, run, lambda: True)
        ann, bob, stranger = await asyncio.gather(
            beats.response(of("ann"), ANN), beats.response(of("bob"), BOB), beats.response(of("ann"), BOB)
        )
        assert calls == 1
        assert ann is not None
        assert bob is not None
        assert stranger is None
        assert await beats.response(of("ann", subscribed_topic_names=("t",)), ANN) is None
        assert await beats.response(of("ann", 0), ANN) is None
        assert await KeepAlives(database, CONFIGS, run, lambda: False).response(of("ann"), ANN) is None
        assert calls == 1

    asyncio.run(all_at_once())


@pytest.mark.parametrize("of_member", [None, BOB])
def test_a_member_belongs_to_its_principal(database: Database, of_member: str | None) -> None:
    """Only its own principal may heartbeat for a member, subscribe it or make it leave; a member that joined without
    a principal belongs to the service alone."""
    Acls(database).add(Acl(ANN, "READ", "ALLOW", "LITERAL", "g"))
    Acls(database).add(Acl(BOB, "READ", "ALLOW", "LITERAL", "g"))
    request = HeartbeatRequest("g", "m", 0, subscribed_topic_names=("t",))
    joined = heartbeat(database, request, CONFIGS, of_member)
    epoch = joined.member_epoch
    for refused in (
        HeartbeatRequest("g", "m", epoch),
        HeartbeatRequest("g", "m", epoch, subscribed_topic_names=("other",)),
        HeartbeatRequest("g", "m", 0, subscribed_topic_names=("other",)),
        HeartbeatRequest("g", "m", -1),
    ):
        assert heartbeat(database, refused, CONFIGS, ANN).error_code == 30
    assert keep_alive(database, [(HeartbeatRequest("g", "m", epoch), ANN)], CONFIGS) == [None]
    assert heartbeat(database, HeartbeatRequest("g", "m", epoch), CONFIGS, of_member).error_code == 0
    # The service itself acts for all members.
    assert heartbeat(database, HeartbeatRequest("g", "m", -1), CONFIGS).error_code == 0
