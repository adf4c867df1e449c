"""How much sooner does the assignor `backlog` drain a skewed topic than the simple one?

Both in the same Postgres, in turn, each with a group of its own: share-partitions of which one holds most of the
backlog; members that send heartbeats, lease from what they are assigned in rotated order, wait as long as the work
would take (a hundred microseconds a record), and acknowledge. State, leases, heartbeats and the coordinator's rounds
are real, the work is a pause, so that members do not compete for this machine's cores. Time runs ten times as fast
as by default: a heartbeat each 0.5 s, a look at the backlog each second. Measured until the last record is
acknowledged; beside it the bound, when all members work without a break.

    .venv/bin/python benchmarks/bench_assignors.py [--full]
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from itertools import count
from typing import Any

import sqlalchemy as sa
from rig import FULL, in_turn, median, report, server, spread

from sharequeue.database import Database
from sharequeue.groups.configs import ServiceConfigs, alter_group_configs
from sharequeue.groups.configs.published import publish_service_configs
from sharequeue.groups.heartbeats import HeartbeatRequest, heartbeat
from sharequeue.service.coordinator import Coordinator
from sharequeue.state import State
from sharequeue.values import AcknowledgeType, SharePartition

SECONDS_A_RECORD = 100e-6
BATCH = 500
BEAT_SECONDS = 0.5
CASES = (
    # name, members, share-partitions, records of the first, of each of the others
    ("8 members, 8 share-partitions, 80 % in one", 8, 8, 160_000, 5_714),
    ("4 members, 16 share-partitions, half in one", 4, 16, 50_000, 3_333),
    ("8 members, 8 share-partitions, all alike", 8, 8, 25_000, 25_000),
)
ROUNDS = 3 if FULL else 1
_groups = count()


class NoBroker:
    """The coordinator's rounds do not ask it."""


def drained(url: str, assignor: str, members: int, lags: list[int]) -> float:
    """Seconds until a new group has acknowledged all."""
    group = f"group-{next(_groups)}"
    stop = threading.Event()
    no_broker: Any = NoBroker()
    with Database(url, pool_size=members + 2) as database:
        alter_group_configs(
            database,
            group,
            {
                "share.assignors": assignor,
                "share.assignment.interval.ms": 100,
                "share.partition.max.record.locks": 2_000_000,
            },
        )
        for partition, records in enumerate(lags):
            at = SharePartition(group, "t", partition)
            State(database).initialize(at, "id", 0, 1)
            State(database).observe(at, "id", 0, records, records)
        left = sum(lags)
        lock = threading.Lock()

        def work(name: str) -> None:
            nonlocal left
            state = State(database)
            told = heartbeat(database, HeartbeatRequest(group, name, 0, subscribed_topic_names=("t",)))
            assigned = told.assignment[0].partitions if told.assignment else ()
            begins.wait()
            beat, turn = time.monotonic(), 0
            while not stop.is_set():
                if time.monotonic() - beat > BEAT_SECONDS:
                    beat = time.monotonic()
                    told = heartbeat(database, HeartbeatRequest(group, name, told.member_epoch))
                    assert told.error_code == 0, told.error_message
                    if told.assignment is not None:
                        assigned = told.assignment[0].partitions if told.assignment else ()
                lease = None
                for _ in assigned:
                    turn += 1
                    at = SharePartition(group, "t", assigned[turn % len(assigned)])
                    lease = state.acquire(at, name, None, BATCH)
                    if lease is not None:
                        break
                if lease is None:
                    stop.wait(BEAT_SECONDS / 10)
                    continue
                stop.wait(lease.offsets.count * SECONDS_A_RECORD)
                state.acknowledge(lease, {AcknowledgeType.ACCEPT: lease.offsets})
                with lock:
                    left -= lease.offsets.count
                    if left <= 0:
                        stop.set()

        coordinator = Coordinator(database, no_broker, rebalance_interval=2 * BEAT_SECONDS)

        def coordinate() -> None:
            begins.wait()
            while not stop.wait(BEAT_SECONDS / 5):
                coordinator.settle()

        begins = threading.Barrier(members + 2)
        workers = [threading.Thread(target=work, args=(f"member-{n}",)) for n in range(members)]
        workers.append(threading.Thread(target=coordinate))
        for worker in workers:
            worker.start()
        begins.wait()
        began = time.perf_counter()
        for worker in workers:
            worker.join()
        took = time.perf_counter() - began
        with database.transaction() as connection:
            connection.execute(
                sa.text("delete from sharequeue.members where group_id = :group"), {"group": group}
            )
    return took


def main() -> None:
    """Take turns in each case, and print the table."""
    logging.disable(logging.WARNING)
    rows = []
    with server() as url:
        with Database(url) as database:
            publish_service_configs(
                database, ServiceConfigs.of({"group.share.max.record.lock.duration.ms": "3600000"})
            )
        for name, members, partitions, first, others in CASES:
            lags = [first, *[others] * (partitions - 1)]
            simple, backlog = in_turn(
                [
                    partial(drained, url, "simple", members, lags),
                    partial(drained, url, "backlog", members, lags),
                ],
                ROUNDS,
            )
            rows.append(
                [
                    name,
                    f"{sum(lags) * SECONDS_A_RECORD / members:.1f}",
                    f"{median(simple):.1f}",
                    spread(simple),
                    f"{median(backlog):.1f}",
                    spread(backlog),
                    f"{median(simple) / median(backlog):.2f}",
                ]
            )
        report(
            url,
            f"Seconds until a skewed topic is drained, median of {ROUNDS}",
            ["", "bound", "simple", "range", "backlog", "range", "sooner, ×"],
            rows,
        )


if __name__ == "__main__":
    main()
