"""A pause, an ACL or a config that has been set holds from its commit on, for a worker that is at work, too."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import SharePartition
from sharequeue.state import State
from tests import single

TRIES = 100
CHANGES = {
    "pause": "select sharequeue.pause(:group_id, 'enough')",
    "acl": "select sharequeue.add_acl('User:other', 'READ', 'ALLOW', 'LITERAL', :group_id)",
    "config": "insert into sharequeue.group_configs values (:group_id, 'share.partition.max.record.locks', '100')",
    "pause of a share-partition": "select sharequeue.pause(:group_id, 'enough', 't', 0)",
}
ACQUIRE = sa.text(
    "select error_code, token, offsets from sharequeue.acquire(:group_id, 't', 0, 1, 'm', null, 500)"
)
ACKNOWLEDGE = sa.text(
    "select * from sharequeue.acknowledge(:group_id, 't', 0, 1, 'm', null, cast(:token as uuid), null,"
    " cast(:offsets as int8multirange), '{}', '{}', '{}')"
)


class Worker:
    """One connection of `User:eve`, for whom there is no ACL: acknowledges what it holds and leases the next."""

    def __init__(self, connection: sa.Connection, group_id: str) -> None:
        self.connection, self.group_id = connection, group_id
        self.connection.exec_driver_sql("select set_config('sharequeue.principal', 'User:eve', false)")
        self.held: Any = self.connection.execute(ACQUIRE, {"group_id": group_id}).mappings().one()

    def fetch(self) -> Any:
        """Acknowledge what is held and acquire again; return what was acquired, None if there was nothing."""
        asked = {"token": str(self.held["token"]), "offsets": self.held["offsets"]}
        self.connection.execute(ACKNOWLEDGE, {"group_id": self.group_id, **asked})
        self.held = self.connection.execute(ACQUIRE, {"group_id": self.group_id}).mappings().one_or_none()
        return self.held


def honoured(change: str, returned: Any) -> bool:
    """Whether a result is what it must be once the change has been committed."""
    if change == "config":
        return returned is not None and OffsetSet.parse(returned["offsets"]).count <= 100
    if change == "acl":
        return returned is not None and returned["error_code"] == 30
    return returned is None


def begin(database: Database, groups: int) -> list[str]:
    """Groups with a share-partition of a million fresh records each."""
    names = [f"g{number}" for number in range(groups)]
    state = State(database)
    with database.transaction() as connection:
        connection.execute(
            sa.text("insert into sharequeue.share_groups (group_id) select unnest(cast(:names as text[]))"),
            {"names": names},
        )
    for name in names:
        state.initialize(SharePartition(name, "t", 0), "id", 0, 1)
        single.observe(state, SharePartition(name, "t", 0), "id", 0, 1_000_000, 1_000_000)
    return names


@pytest.mark.parametrize("change", ["pause", "config"])
def test_a_change_that_was_open_during_a_fetch_holds_when_it_is_committed(
    private_database: Database, change: str
) -> None:
    """A fetch while the change is open goes by what was set before, and the next one by the change. (A pause of a
    share-partition and an ACL lock the row itself, so that the fetch waits.)"""
    (group_id,) = begin(private_database, 1)
    engine = private_database.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, private_database.engine.connect() as changing:
        worker = Worker(connection, group_id)
        connection.exec_driver_sql("set lock_timeout = '30s'")
        changing.execute(sa.text(CHANGES[change]), {"group_id": group_id})
        assert worker.fetch()["token"] is not None, "an open change stops nobody"
        changing.commit()
        assert honoured(change, worker.fetch())
    assert State(private_database).figures.verify() == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_at_any_moment_around_a_fetch_holds_from_its_commit_on(
    private_database: Database, change: str
) -> None:
    """Two connections, hundreds of tries: the change comes 0 to 4 ms after a fetch has begun."""
    groups = begin(private_database, TRIES)
    engine = private_database.engine.execution_options(isolation_level="AUTOCOMMIT")
    seen: Counter[bool] = Counter()

    def changes(connection: sa.Connection, group_id: str, at: float) -> None:
        while time.perf_counter() < at:
            pass
        connection.execute(sa.text(CHANGES[change]), {"group_id": group_id})

    with engine.connect() as connection, engine.connect() as changing, ThreadPoolExecutor(1) as pool:
        for number, group_id in enumerate(groups):
            worker = Worker(connection, group_id)
            done = pool.submit(changes, changing, group_id, time.perf_counter() + number % 41 / 10_000)
            # One that is refused while the change commits holds nothing more, and needs no second one.
            returned = worker.fetch()
            done.result()
            if returned is None or returned["token"] is None:
                seen[True] += 1
                continue
            seen[honoured(change, worker.fetch())] += 1
    assert seen == {True: TRIES}
    assert State(private_database).figures.verify() == []
