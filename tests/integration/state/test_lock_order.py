"""One order of locks: whatever runs at the same time, nobody meets a deadlock."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from sharequeue.database import Database
from sharequeue.groups.acls import Acl, Acls
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.state import State
from tests.fix_stack import say
from tests.operations_at_once import deadlocks, run_at_once

SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "7"))


def test_all_operations_at_once_meet_no_deadlock(private_database: Database) -> None:
    """Eight connections draw from every operation on two groups: not one deadlock, and every invariant holds."""
    say(f"all operations at once: seed {SEED}")
    tally = run_at_once(private_database, SEED, 6)
    assert not tally.faults, f"seed {SEED}: {tally.faults[0]}"
    assert deadlocks(private_database) == 0, f"seed {SEED}"
    assert State(private_database).figures.verify() == []


def test_a_config_and_an_acl_that_wait_for_the_same_settings_meet_no_deadlock(
    private_database: Database,
) -> None:
    """Both wait for a group's settings, the config first; when these are free, both go on."""
    ensure_group(private_database, "g")
    with ThreadPoolExecutor(2) as pool:
        with private_database.transaction() as holder:
            holder.execute(sa.text("select from sharequeue.group_settings where group_id = 'g' for update"))
            config = pool.submit(
                alter_group_configs, private_database, "g", {"share.delivery.count.limit": 3}
            )
            _wait_for_waiting(private_database, 1)
            acl = pool.submit(Acls(private_database).add, Acl("User:worker", "READ", "ALLOW", "LITERAL", "g"))
            _wait_for_waiting(private_database, 2)
        config.result(timeout=30)
        assert acl.result(timeout=30)
    assert deadlocks(private_database) == 0


def _wait_for_waiting(database: Database, connections: int) -> None:
    """Until so many connections to the database wait for a lock."""
    waiting = sa.text(
        "select count(*) as waiting from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 30
    while database.rows(waiting)[0]["waiting"] < connections:
        assert time.monotonic() < deadline, f"{connections} connections should wait for a lock"
        time.sleep(0.01)
