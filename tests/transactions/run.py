"""One attack by transactions: phases of many clients, the clock moved between two, all of it drained at the end."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from psycopg2.extensions import make_dsn

from sharequeue.database import Database
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.state import State
from tests import single
from tests.transactions.clients import (
    GROUP,
    LOCK_MS,
    RECORDS,
    SEEN,
    STEP_S,
    Client,
    Common,
    places,
    session,
)
from tests.transactions.ledger import OK, Event, Ledger
from tests.waiting import PATIENCE_S


@dataclass(frozen=True)
class Attacked:
    """What came of it."""

    faults: list[str]
    tally: Counter[str]


def attack(
    database: Database,
    *,
    seed: int,
    clients: int,
    phases: int,
    transactions: int,
    two_phases: bool = False,
) -> Attacked:
    """Have so many clients make so many transactions each in a phase."""
    url = database.engine.url
    dsn = (
        make_dsn(host=url.host, port=url.port, user=url.username, password=url.password, dbname=url.database)
        + " options='-c deadlock_timeout=50ms -c timezone=UTC'"
    )
    alter_group_configs(
        database, GROUP, {"share.record.lock.duration.ms": LOCK_MS, "share.delivery.count.limit": 5}
    )
    state = State(database)
    for topic, partition in places():
        state.initialize(SharePartition(GROUP, topic, partition), "id", 0, 1)
        single.observe(state, SharePartition(GROUP, topic, partition), "id", 0, RECORDS, RECORDS)
    ledger = Ledger(places(), RECORDS)
    common = Common(dsn, ledger, two_phases=two_phases)
    draw = random.Random(seed)  # noqa: S311 - a draw of a test
    everybody = [Client(common, f"c{n}", seed * 1000 + n) for n in range(clients)]
    with session(dsn) as run, ThreadPoolExecutor(clients) as pool:
        for _ in range(phases):
            started = threading.Barrier(clients)

            def work(client: Client, started: threading.Barrier = started) -> None:
                started.wait(PATIENCE_S)
                for _ in range(transactions):
                    client.transact()

            list(pool.map(work, everybody))
            ledger.settle()
            ledger.faults += [f"verify: {row}" for row in run("select * from sharequeue.verify(%s)", GROUP)]
            ledger.faults += compared(ledger, run(SEEN))
            if ledger.faults:
                break
            # Never so that a lock ends within a phase: it has half a step more than a whole number of them.
            run("select sharequeue.set_clock_offset(%s * interval '1 s')", STEP_S * draw.randint(-6, 9))
            run("select sharequeue.sweep(10000)")
            ledger.sweep(run("select sharequeue.clock()")[0][0])
        for client in everybody:
            client.close()
        if not ledger.faults:
            ledger.faults += drained(ledger, run)
            found = run("select * from sharequeue.verify_journal(%s)", GROUP)
            ledger.faults += [f"the journal differs: {row}" for row in found]
    return Attacked(ledger.faults, ledger.tally + common.tally)


def compared(ledger: Ledger, rows: list[tuple[object, ...]]) -> list[str]:
    """Return where the view has other figures than the answers."""
    found = []
    for topic, partition, spso, _, acquired, available, _, epoch in rows:
        known = ledger.partitions[str(topic), int(str(partition))]
        held = sum(record.token is not None for record in known.records)
        free = sum(r.token is None and not r.done and r.count > 0 for r in known.records)
        if (spso, epoch) != (known.spso, known.epoch) or acquired != held:
            found.append(
                f"{topic}-{partition}: SPSO {spso}, epoch {epoch}, {acquired} acquired, {available} available;"
                f" by the answers {known.spso}, {known.epoch}, {held}, {free}"
            )
    return found


def drained(ledger: Ledger, run: object) -> list[str]:
    """Everything that is left comes, once, and then nothing."""
    assert callable(run)
    run("select sharequeue.raise_state_epochs()")
    for at, partition in ledger.partitions.items():
        partition.epoch += 1
        for token in list(partition.held):
            for offset in partition.of(token):
                partition.give_back(offset)
        partition.held.clear()
        number = 10**9
        while True:
            clock = run("select sharequeue.clock()")[0][0]
            rows = run("select * from sharequeue.acquire(%s, %s, %s, null, 'end', null, 100)", GROUP, *at)
            what = {"request": None, "member": "end"}
            ledger.take([Event(number := number + 1, "acquire", at, clock, what, rows)])
            ledger.settle()
            if not rows:
                break
            offsets = "{" + ",".join(str(row[8]).strip("{}") for row in rows) + "}"
            done = run(
                "select * from sharequeue.acknowledge(%s, %s, %s, %s, 'end', null, %s, null, %s, '{}', '{}', '{}')",
                *(GROUP, *at, rows[0][4], rows[0][3], offsets),
            )
            if done[0][0] != OK:
                return [f"the last acknowledgement of {at}: {done}"]
            for record in partition.records:
                if record.token == rows[0][3]:
                    record.token, record.done = None, True
        if partition.spso != RECORDS:
            return [f"{at} ends at {partition.spso} by the answers"]
    return []
