"""All operations at once, from several connections on a few share-partitions: nobody may meet a deadlock.

A step is a call of any function of `tests.operations` with drawn arguments, or calls as programs make them.
Each connection draws its steps from a seed of its own. Refusals are results; a deadlock (40P01) is a failure, also
where somebody repeats the call that met it: the database counts them.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sharequeue.database import Database
from sharequeue.domain.errors import ShareError
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.record_bytes import offsets_by_key
from sharequeue.domain.values import AcknowledgeType, Lease, LeaseOutput, LogSeen, SharePartition
from sharequeue.groups.configs import alter_group_configs
from sharequeue.groups.heartbeats import (
    HeartbeatRequest,
    due_groups,
    ensure_group,
    expire_members_of,
    heartbeat,
    refresh_group,
)
from sharequeue.kafka.topics import TopicInfo
from sharequeue.service.coordinator.watched_topics import record_topics, recorded, start_grown
from sharequeue.state import State
from sharequeue.state.calls import LeaseAcknowledgement
from sharequeue.state.journal import Journal
from sharequeue.state.replicas import hear_replica
from sharequeue.state.rows import AcquireMode, Redelivery
from tests import single
from tests.fixtures.stack import LOCK_BOUNDS
from tests.hostile import functions
from tests.operation_calls import sane
from tests.operations import OPERATIONS
from tests.ordered import KEYS

GROUPS, TOPICS, PARTITIONS = ("g0", "g1"), ("t0", "t1"), (0, 1, 2)
GONE = "gone"
"""A topic of its own: who calls several operations in a transaction knows the ids of the others' share-partitions."""
REDELIVERIES: tuple[Redelivery, ...] = ("kafka", "fan_out")
MODES: tuple[AcquireMode, ...] = ("batch_optimized", "record_limit")
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
CONFIGS: dict[str, str | int] = {
    "sharequeue.circuit.breaker.failure.percent": 60,
    "sharequeue.circuit.breaker.open.ms": 50,
    "errors.deadletterqueue.topic.name": "dlq.letters",
    "share.record.lock.duration.ms": 1000,
    "sharequeue.order": "key",
    "sharequeue.order.on.dead.letter": "hold",
    "sharequeue.order.max.open.keys": 2,
}
DETECTED_AFTER = "20ms"
"""A deadlock is looked for after so long a wait; by default a second, which would hide most of them."""

MAY_HAPPEN = ("23503", "55P03")
"""The group went while the call was on its way; what keeps the journal gave way."""


@dataclass
class Tally:
    """What the connections did and met."""

    steps: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Actor:
    """One connection: a worker, an operator and a service in turn."""

    def __init__(self, url: str, seed: int, number: int, tally: Tally) -> None:
        self.roll = random.Random(seed * 100 + number)  # noqa: S311
        self.database = Database(url, pool_size=1)
        sa.event.listen(self.database.engine, "handle_error", self._met)
        self.state, self.tally, self.member = State(self.database), tally, f"member-{number}"
        self.leases: list[Lease] = []
        self.step = "start"
        work: tuple[Callable[[], object], ...] = (
            self.acquire, self.acknowledge, self.fetch, self.give_back,
        )  # fmt: skip
        rest: tuple[Callable[[], object], ...] = (
            self.dead_letters, self.start, self.configure, self.beat, self.group, self.topics, self.compact,
            self.journal, self.several, self.several, self.many, self.many, self.gone,
        )  # fmt: skip
        self.plan = work * 5 + rest + (self.operation,) * 20
        self.functions = [each for each in functions(self.database) if each.name in OPERATIONS]

    def run(self, until: float) -> None:
        """Step after step until it is time to stop."""
        try:
            while time.monotonic() < until and not self.tally.faults:
                step = self.roll.choice(self.plan)
                self.step = step.__name__
                try:
                    step()
                except ShareError as error:
                    with self.tally.lock:
                        self.tally.refusals[type(error).__name__] += 1
                except DBAPIError as error:
                    state = str(getattr(error.orig, "pgcode", None))
                    with self.tally.lock:
                        self.tally.refusals[state] += 1
                    if state not in MAY_HAPPEN:
                        self._fault(error)
                with self.tally.lock:
                    self.tally.steps[self.step] += 1
        finally:
            self.database.close()

    def _met(self, context: sa.engine.ExceptionContext) -> None:
        # Here, because a call may be repeated where nobody sees it.
        if getattr(context.original_exception, "pgcode", None) == "40P01":
            self._fault(context.original_exception)

    def _fault(self, error: BaseException) -> None:
        original = getattr(error, "orig", error)
        told = f"{self.step}: {getattr(original, 'pgcode', None)} {getattr(original, 'pgerror', original)}"
        with self.tally.lock:
            if told not in self.tally.faults:
                self.tally.faults.append(told)

    @property
    def drawn_group(self) -> str:
        return self.roll.choice(GROUPS)

    def drawn(self) -> SharePartition:
        return SharePartition(self.drawn_group, self.roll.choice(TOPICS), self.roll.choice(PARTITIONS))

    def offset_set(self, lease: Lease) -> dict[AcknowledgeType, OffsetSet]:
        """An outcome for each record of a lease, for all the same or for a part another."""
        kind = self.roll.choice((ACCEPT, ACCEPT, RELEASE, REJECT))
        before = OffsetSet.of((0, self.roll.randint(lease.offsets.first, lease.offsets.end) + 1))
        halves = {ACCEPT: lease.offsets & before}
        halves[kind] = halves.get(kind, EMPTY) | (lease.offsets - before)
        return {k: offsets for k, offsets in halves.items() if offsets}

    def acknowledgement(self, lease: Lease, outputs: tuple[LeaseOutput, ...] = ()) -> LeaseAcknowledgement:
        """An outcome for each record of a lease; mostly with the keys of what is not accepted, some of it held."""
        outcomes = self.offset_set(lease)
        if self.roll.random() < 0.3:
            return LeaseAcknowledgement(lease, outcomes, outputs)
        left = lease.offsets - outcomes.get(ACCEPT, EMPTY)
        keys = offsets_by_key((offset, KEYS[offset % len(KEYS)]) for offset in left.iter_offsets())
        held = OffsetSet.of((self.roll.randint(0, lease.offsets.end), lease.offsets.end + 1))
        holds = (left & held) - keys.get(None, EMPTY)
        return LeaseAcknowledgement(
            lease,
            {kind: offsets - holds for kind, offsets in outcomes.items()},
            outputs,
            holds=holds,
            keys=keys,
        )

    def held(self) -> Lease | None:
        return self.leases.pop(self.roll.randrange(len(self.leases))) if self.leases else None

    # Any operation of the catalogue --------------------------------------------------------------------------------

    def operation(self) -> None:
        """One call of any function that a role may call, with what can be drawn for its arguments."""
        function = self.roll.choice(self.functions)
        self.step = function.name
        drawn = self._arguments()
        given = sane(function, {**drawn, "share_partition_id": self.roll.randint(1, 9), "snapshot": 0})
        given |= {
            each.name: _fitting(drawn[each.name], each.type)
            for each in function.arguments
            if each.name in drawn and (each.name in given or self.roll.random() < 0.5)
        }
        self.database.rows(function.call(given), **given)

    def _arguments(self) -> dict[str, Any]:
        """Draw values by the names of arguments: of a lease that is held, or of any share-partition."""
        lease = self.roll.choice(self.leases) if self.leases and self.roll.random() < 0.7 else None
        at, limit = lease.share_partition if lease else self.drawn(), str(self.roll.randint(4, 8))
        topics = self.roll.sample(
            [(t, p) for t in TOPICS for p in PARTITIONS if (t, p) != (at.topic, at.partition)], 2
        )
        many = [(at.topic, at.partition), *topics]
        first, end = self.roll.randint(0, 300), self.roll.randint(400, 4000)
        token = str(lease.token if lease else uuid4())
        return {
            "token": token,
            "lease_id": lease.lease_id if lease else 1,
            "p_group_id": at.group_id,
            "p_topic": at.topic,
            "p_partition": at.partition,
            "p_topic_id": f"id-{at.topic}",
            "p_topics": [topic for topic, _ in many],
            "p_partitions": [partition for _, partition in many],
            "p_topic_ids": [f"id-{topic}" for topic, _ in many],
            "p_state_epoch": None,
            "p_state_epochs": [None for _ in many],
            "p_member_id": self.member,
            "p_request_id": str(uuid4()),
            "p_token": token,
            "p_tokens": [token, str(uuid4()), str(uuid4())],
            "p_suspects": [False, False, False],
            "p_accepts": [f"{{[{first},{end})}}", "{}", "{}"],
            **{f"p_{kind}s": ["{}"] * 3 for kind in ("release", "reject", "gap")},
            "p_outputs": "[]",
            "p_not_befores": [None] * 3,
            "p_mean_bytes": [10.0] * 3,
            "p_log_end": end,
            "p_last_stable_offset": end,
            "p_log_starts": [0] * 3,
            "p_log_ends": [end] * 3,
            "p_last_stable_offsets": [end] * 3,
            "p_start_offset": self.roll.randint(0, 50),
            "p_start_offsets": [self.roll.randint(0, 50) for _ in many],
            "p_max_records": self.roll.randint(1, 30),
            "p_redelivery": self.roll.choice(REDELIVERIES),
            "p_mode": self.roll.choice(MODES),
            "p_cancelled": self.roll.random() < 0.3,
            "p_offsets": f"{{[{first},{end})}}",
            "p_act": self.roll.choice(("release", "dead_letter")),
            "p_execute": self.roll.random() < 0.8,
            "p_reason": self.roll.choice((None, None, "a test")),
            "p_amount": "10 ms",
            "p_limit": self.roll.randint(1, 50),
            "p_resource_name": at.group_id,
            "p_principal": f"User:{self.roll.choice('ab')}",
            "p_operation": self.roll.choice(("READ", "ALTER", "DELETE")),
            "p_configs": json.dumps({**LOCK_BOUNDS, "group.share.delivery.count.limit": limit}),
        }

    # Workers -------------------------------------------------------------------------------------------------------

    def acquire(self) -> None:
        redelivery: Redelivery = self.roll.choice(REDELIVERIES)
        lock = self.roll.choice((None, 1000))
        lease = single.acquire(
            self.state,
            self.drawn(),
            self.member,
            None,
            self.roll.randint(1, 30),
            redelivery=redelivery,
            lock_duration_ms=lock,
        )
        if lease is not None:
            self.leases = [*self.leases, lease][-20:]

    def acknowledge(self) -> None:
        if lease := self.held():
            outputs = (
                (LeaseOutput("sink", f"/{uuid4()}", len(lease.offsets)),) if self.roll.random() < 0.5 else ()
            )
            self.state.acknowledge([self.acknowledgement(lease, outputs)])

    def fetch(self) -> None:
        if lease := self.held():
            kind = self.roll.choice((ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT))
            mode: AcquireMode = self.roll.choice(MODES)
            with self.state.transaction() as (_, both):
                single.acknowledge(both, lease, {kind: lease.offsets})
                following = single.acquire(
                    both, lease.share_partition, lease.member_id, None, 10, mode=mode, redelivery="kafka"
                )
            if following is not None:
                self.leases.append(following)

    def many(self) -> None:
        """All share-partitions of a group in any order, a call for each operation."""
        group = self.drawn_group
        at = [SharePartition(group, topic, partition) for topic in TOPICS for partition in PARTITIONS]
        self.roll.shuffle(at)
        ends = [self.roll.randint(400, 4000) for _ in at]
        starts = [self.roll.choice((0, 0, 0, 100)) for _ in at]
        self.state.observe(
            [
                LogSeen(*each)
                for each in zip(at, [f"id-{a.topic}" for a in at], starts, ends, ends, strict=True)
            ]
        )
        taken = self.state.acquire(at, self.member, None, self.roll.randint(1, 100), parts=3).leases
        self.state.renew(taken)
        self.state.blocked_keys(group, [lease.token for lease in taken])
        half = len(taken) // 2
        self.state.acknowledge([self.acknowledgement(lease) for lease in taken[:half]])
        self.state.release(taken[half:])

    def several(self) -> None:
        """Several share-partitions in a transaction of the worker's own, in the order of their ids. It is a member:
        as long as it is, nobody can delete offsets, which would give them other ids."""
        group = self.drawn_group
        joined = heartbeat(
            self.database, HeartbeatRequest(group, self.member, 0, subscribed_topic_names=TOPICS)
        )
        if joined.error_code:
            return
        order = self.database.rows(
            sa.text(
                "select topic, partition from sharequeue.share_partitions where group_id = :g and topic <> :gone"
                " order by share_partition_id"
            ),
            g=group,
            gone=GONE,
        )
        taken = []
        with self.state.transaction() as (_, state):
            for row in order:
                lease = single.acquire(
                    state, SharePartition(group, row["topic"], row["partition"]), self.member, None, 5
                )
                if lease is not None:
                    taken.append(lease)
        self.leases = [*self.leases, *taken][-20:]
        heartbeat(self.database, HeartbeatRequest(group, self.member, -1))

    def give_back(self) -> None:
        if lease := self.held():
            single.release(self.state, lease)

    def dead_letters(self) -> None:
        at = self.drawn()
        letters = self.state.dead_letters.open(at, 100)
        if letters is not None:
            if self.roll.random() < 0.2:
                self.state.dead_letters.hold(at, "a test")
            keys = None
            if self.roll.random() < 0.7:
                offsets = OffsetSet.union(letter.offsets for letter in letters.letters)
                keys = offsets_by_key((offset, KEYS[offset % len(KEYS)]) for offset in offsets.iter_offsets())
            self.state.dead_letters.close(letters, keys=keys)
        if self.roll.random() < 0.3:
            last = OffsetSet.of((0, self.roll.randint(1, 2000)))
            holding = [
                replace(batch, offsets=batch.offsets & last) for batch in self.state.dead_letters.holding()
            ]
            self.state.dead_letters.close_letters(holding)

    def compact(self) -> None:
        compaction, group = uuid4(), self.drawn_group
        self.state.outputs.begin_compaction(compaction, group, "sink", f"/{compaction}")
        outputs = self.state.outputs.counted(group, "sink")[:5]
        self.state.outputs.commit_compaction(
            compaction, sorted({o.location for o in outputs}), sum(o.records for o in outputs)
        )
        for known in self.state.outputs.removable(group, "sink", timedelta(0)):
            self.state.outputs.forget_compaction(known)

    # Operators -----------------------------------------------------------------------------------------------------

    def configure(self) -> None:
        names = self.roll.sample(sorted(CONFIGS), 3)
        changes: dict[str, str | int | bool | None] = {
            name: CONFIGS[name] if self.roll.random() < 0.7 else None for name in names
        }
        changes["share.delivery.count.limit"] = self.roll.randint(3, 9)
        alter_group_configs(self.database, self.drawn_group, changes)

    # The service ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Groups, share-partitions and logs that end further on, as the watch makes them."""
        group = self.drawn_group
        ensure_group(self.database, group)
        for topic in self.roll.sample(TOPICS, 2):
            for partition in self.roll.sample(PARTITIONS, 3):
                at = SharePartition(group, topic, partition)
                self.state.initialize(at, f"id-{topic}", 0, 1)
                end = self.roll.randint(400, 4000)
                single.observe(self.state, at, f"id-{topic}", self.roll.choice((0, 0, 0, 100)), end, end)

    def gone(self) -> None:
        """A topic of several groups that the broker no longer has: its state goes, of one group or of all."""
        for group in self.roll.sample(GROUPS, 2):
            ensure_group(self.database, group)
            for partition in PARTITIONS:
                self.state.initialize(SharePartition(group, GONE, partition), f"id-{GONE}", 0, 1)
        self.state.administration.note_topics({GONE: None})
        self.state.administration.remove_deleted_topics(
            timedelta(0), execute=True, group_id=self.roll.choice((None, None, self.drawn_group))
        )

    def beat(self) -> None:
        if self.roll.random() < 0.3:
            # As after a recovery: the next who looks at lapsed locks notes an outage.
            self.database.rows(sa.text("delete from sharequeue.service_run returning 1"))
        self.state.administration.beat(self.roll.choice((None, timedelta(microseconds=1))))

    def group(self) -> None:
        group, act = self.drawn_group, self.roll.random()
        if act < 0.5:
            returned = heartbeat(
                self.database, HeartbeatRequest(group, self.member, 0, subscribed_topic_names=TOPICS)
            )
            if returned.error_code == 0:
                heartbeat(self.database, HeartbeatRequest(group, self.member, returned.member_epoch))
            heartbeat(self.database, HeartbeatRequest(group, self.member, -1))
        elif act < 0.7:
            heartbeat(self.database, HeartbeatRequest(group, self.member, 0, subscribed_topic_names=TOPICS))
            with self.database.transaction() as connection:
                connection.execute(
                    sa.text(
                        "update sharequeue.members set session_expires_at = sharequeue.clock() where member_id = :m"
                    ),
                    {"m": self.member},
                )
            for overdue in due_groups(self.database).overdue:
                expire_members_of(self.database, overdue)
        elif act < 0.8:
            hear_replica(self.database, self.member, timedelta(0))
        else:
            refresh_group(self.database, group)

    def topics(self) -> None:
        known = {t: TopicInfo(f"id-{t}", self.roll.randint(1, 4)) for t in self.roll.sample(TOPICS, 2)}
        record_topics(self.database, known, TOPICS)
        for group in recorded(self.database).grown:
            start_grown(self.database, group)

    def journal(self) -> None:
        Journal(self.database).keep(
            retention=timedelta(days=7), updates_per_snapshot=self.roll.choice((1, 50))
        )


def _fitting(value: object, kind: str) -> object:
    """Return a value as one for each share-partition of a call, where the argument is for many."""
    return [value] * 3 if kind == "int8multirange[]" and isinstance(value, str) else value


def run_at_once(database: Database, seed: int, seconds: float, actors: int = 8) -> Tally:
    """All of it for so long; a deadlock that anybody met is among the faults, or fails right here."""
    with database.transaction() as connection:
        name = connection.exec_driver_sql("select quote_ident(current_database())").scalar_one()
        connection.exec_driver_sql(f"alter database {name} set deadlock_timeout = '{DETECTED_AFTER}'")
    tally = Tally()
    url = database.engine.url.render_as_string(hide_password=False)
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(actors) as pool:
        for done in [pool.submit(Actor(url, seed, n, tally).run, until) for n in range(actors)]:
            done.result()
    return tally


def deadlocks(database: Database) -> int:
    """How many deadlocks the database has counted, whoever met them."""
    [row] = database.rows(
        sa.text("select deadlocks from pg_stat_database where datname = current_database()")
    )
    return int(row["deadlocks"])
