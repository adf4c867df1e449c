"""A lease has the isolation level at which it was acquired, whatever the group's config says later."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    AcknowledgementBatch,
    AcknowledgeType,
    Lease,
    SharePartition,
)
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from sharequeue.state.journal import Journal
from tests import single
from tests.waiting import pass_time

ACCEPT = AcknowledgeType.ACCEPT
SetLevel = Callable[[str], object]


@pytest.fixture
def set_level(private_database: Database, at: SharePartition) -> SetLevel:
    """Give a function that sets the isolation level of the group."""
    return lambda level: alter_group_configs(private_database, at.group_id, {"share.isolation.level": level})


def _acquire(state: State, at: SharePartition, request_id: UUID) -> Lease | None:
    return single.acquire(state, at, "m1", None, 10, request_id=request_id)


def _acquire_kafka(state: State, at: SharePartition, request_id: UUID) -> Lease | None:
    return single.acquire(state, at, "m1", None, 10, request_id=request_id, redelivery="kafka")


@pytest.mark.rule("R-IL-1")
@pytest.mark.parametrize("acquire", [_acquire, _acquire_kafka])
def test_a_lease_says_its_level_and_a_repeat_the_same(
    private_database: Database,
    at: SharePartition,
    set_level: SetLevel,
    acquire: Callable[[State, SharePartition, UUID], Lease | None],
) -> None:
    """By each way to acquire, under both redeliveries; the level of the next lease is the config's."""
    state = State(private_database)
    for level, other in ((READ_COMMITTED, READ_UNCOMMITTED), (READ_UNCOMMITTED, READ_COMMITTED)):
        set_level(level)
        request = uuid4()
        lease = acquire(state, at, request)
        assert lease is not None
        assert lease.isolation_level == level
        set_level(other)
        again = acquire(state, at, request)
        assert again == lease
    assert [row.isolation_level for row in state.figures.leases(at.group_id)] == [
        READ_COMMITTED,
        READ_UNCOMMITTED,
    ]


@pytest.mark.rule("R-IL-1")
def test_a_part_that_is_renewed_apart_keeps_the_level(
    private_database: Database, at: SharePartition, set_level: SetLevel
) -> None:
    """It becomes a row of its own among the leases."""
    state = State(private_database)
    set_level(READ_COMMITTED)
    lease = single.acquire(state, at, "m1", None, 10, redelivery="kafka")
    assert lease is not None
    set_level(READ_UNCOMMITTED)
    renewed = [AcknowledgementBatch.of(3, 5, AcknowledgeType.RENEW)]
    state.fetches.acknowledge_batches(at, "m1", renewed, token=lease.token)
    assert [row.isolation_level for row in state.figures.leases(at.group_id)] == [READ_COMMITTED] * 2
    assert Journal(private_database).verify() == []


def test_a_suspect_past_the_last_stable_offset_holds_up_no_other(
    private_database: Database, at: SharePartition, set_level: SetLevel
) -> None:
    """Its last attempt would come alone in its round. While it may not be read, there is no such attempt: everything
    else is leased in one call."""
    state = State(private_database)
    others = [SharePartition(at.group_id, at.topic, partition) for partition in (1, 2)]
    for other in others:
        state.initialize(other, "id", 0, 2)
        single.observe(state, other, "id", 0, 10, 10)
    alter_group_configs(private_database, at.group_id, {"share.delivery.count.limit": 2})
    assert single.acquire(state, at, "m1", None, 1) is not None
    pass_time(private_database, 3601)
    state.sweep()
    set_level(READ_COMMITTED)
    single.observe(state, at, "id", 0, 1000, 0)
    leased = state.acquire([at, *others], "m2", None, 100).leases
    assert [each.share_partition for each in leased] == others
    single.observe(state, at, "id", 0, 1000, 1000)
    (alone,) = state.acquire([at, *others], "m2", None, 100).leases
    assert (alone.offsets, alone.last_attempt) == (OffsetSet.of((0, 1)), True)


@pytest.mark.rule("R-IL-1")
@pytest.mark.parametrize("by_sql", [False, True])
def test_a_last_stable_offset_outside_the_log_is_stored_inside(
    by_sql: bool, private_database: Database, at: SharePartition, set_level: SetLevel
) -> None:
    """A broker is asked for it at another moment than for the log end. Nothing past the end is leased, so the log
    does not look truncated."""
    state = State(private_database)
    set_level(READ_COMMITTED)
    for log_start, stable, stored in ((0, 1_005, 1_000), (0, 900, 900), (500, 400, 500)):
        if by_sql:
            private_database.rows(
                sa.text("select sharequeue.observe('g', 't', 0, 'id', :start, 1000, :stable)"),
                start=log_start,
                stable=stable,
            )
        else:
            single.observe(state, at, "id", log_start, 1_000, stable)
        (status,) = state.figures.describe(at.group_id)
        assert (status.log_start, status.log_end, status.last_stable_offset) == (log_start, 1_000, stored)
    single.observe(state, at, "id", 500, 1_000, 1_005)
    lease = single.acquire(state, at, "m1", None, 10_000)
    assert lease is not None
    assert lease.offsets.end == 1_000
    assert state.figures.describe(at.group_id)[0].fault is None
