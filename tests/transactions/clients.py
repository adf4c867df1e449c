"""Clients that make many calls in one transaction, and a ledger that knows of them by their answers alone.

Each transaction has up to five calls on several share-partitions. Some of its parts are rolled back to a savepoint,
some calls are cut off by `statement_timeout`, some transactions stay open for a while; they end by a commit, a
rollback, the end of their connection, or are prepared and ended later by somebody else. Between two phases the clock
is moved, forwards or backwards. The ledger takes the calls that count in the order of the locks that they held, and
says which answer cannot be true by what the documentation promises.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

import psycopg2
from psycopg2 import extensions

from tests.transactions.ledger import At, Event, Ledger

GROUP, TOPICS, PARTITIONS = "g", ("t0", "t1"), (0, 1)
RECORDS = 400
LOCK_MS = 31 * 60_000 + 30_000
"""Half of the clock's steps off their multiples, so that no lock lapses while calls are made."""
STEP_S = 7 * 60
REFUSED_LEVELS = (extensions.ISOLATION_LEVEL_REPEATABLE_READ, extensions.ISOLATION_LEVEL_SERIALIZABLE)
CUT_OFF, DEADLOCK, GONE = "57014", "40P01", ("57P01", None)
NO_GROUP = "SQ069"
"""Whoever waits while a group is deleted and made again may be told so."""
NOT_PREPARED = "0A000"
"""A transaction that has notified somebody cannot be prepared: Postgres says so, and takes it back."""


@dataclass
class Lease:
    """What an acquire said, whether or not its transaction counted."""

    at: At
    token: str
    epoch: int
    member: str
    offsets: list[tuple[int, int]]


@dataclass
class Common:
    """What the clients know of each other."""

    dsn: str
    ledger: Ledger
    numbers: Iterator[int] = field(default_factory=itertools.count)
    leases: list[Lease] = field(default_factory=list)
    prepared: dict[str, list[Event]] = field(default_factory=dict)
    epochs: dict[At, int] = field(default_factory=lambda: defaultdict(int))
    tally: Counter[str] = field(default_factory=Counter)
    two_phases: bool = False


class RolledBack(Exception):
    """The transaction has ended without a commit."""


class Client:
    """A connection of somebody who writes SQL of his own."""

    def __init__(self, common: Common, name: str, seed: int) -> None:
        self._common, self._name = common, name
        self._draw = random.Random(seed)  # noqa: S311 - a draw of a test
        self._connection = psycopg2.connect(common.dsn)
        self._events: list[Event] = []
        self._got: list[Lease] = []
        """What this transaction has leased."""

    def close(self) -> None:
        """Take back what is open, and go."""
        self._connection.close()

    def transact(self) -> None:
        """Make one transaction of some calls, and end it somehow."""
        draw = self._draw
        if draw.random() < 0.05:
            self._at_another_level()
            return
        self._events, self._got = [], []
        try:
            for at in self._places():
                self._step(at)
            self._end()
        except RolledBack:
            self._common.tally["rolled back"] += 1
        except psycopg2.Error as error:
            if error.pgcode not in (*GONE, CUT_OFF, DEADLOCK, NOT_PREPARED, NO_GROUP):
                self._common.ledger.faults.append(f"{error.pgcode}: {error}")
            self._common.tally[f"met {error.pgcode}"] += 1
            self._again()
        # Others hear of it afterwards, also of what was taken back.
        self._common.leases += self._got

    def _places(self) -> list[At]:
        places = [
            (self._draw.choice(TOPICS), self._draw.choice(PARTITIONS))
            for _ in range(self._draw.randint(1, 5))
        ]
        return places if self._draw.random() < 0.1 else sorted(places)

    def _again(self) -> None:
        if self._connection.closed:
            self._connection = psycopg2.connect(self._common.dsn)
        else:
            self._connection.rollback()

    # How a call is made.

    def _step(self, at: At) -> None:
        draw = self._draw
        way = draw.choices(("plainly", "taken back", "cut off"), (80, 12, 8))[0]
        if way == "plainly":
            self._call(at)
        else:
            self._run("savepoint here")
            known = len(self._events)
            try:
                if way == "cut off":
                    self._run(f"set local statement_timeout = {draw.randint(1, 6)}")
                self._call(at)
            except psycopg2.Error as error:
                if error.pgcode != CUT_OFF:
                    raise
            self._common.tally[way] += 1
            self._run("rollback to savepoint here")
            del self._events[known:]
        if draw.random() < 0.1:
            time.sleep(draw.random() * 0.03)

    def _end(self) -> None:
        how = self._draw.choices(("commit", "rollback", "vanish", "prepare"), (80, 8, 3, 9))[0]
        if how == "commit" or (how == "prepare" and not self._common.two_phases):
            self._connection.commit()
            self._common.ledger.take(self._events)
        elif how == "rollback":
            self._connection.rollback()
            raise RolledBack
        elif how == "vanish":
            self._connection.close()
            self._again()
            raise RolledBack
        else:
            name = f"{self._name}-{uuid4()}"
            self._run(f"prepare transaction '{name}'")
            self._connection.rollback()  # the driver's own note of a transaction
            time.sleep(self._draw.random() * 0.05)
            self._connection.autocommit = True
            counts = self._draw.random() < 0.7
            self._run(f"{'commit' if counts else 'rollback'} prepared '{name}'")
            self._connection.autocommit = False
            self._common.tally["prepared"] += 1
            if counts:
                self._common.ledger.take(self._events)

    def _run(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, arguments or None)
            return list(cursor.fetchall()) if cursor.description else []

    def _asked(self, kind: str, at: At | None, statement: str, *arguments: Any, **what: Any) -> Any:
        statement = f"select r.*, sharequeue.clock() from sharequeue.{statement} as r"  # noqa: S608 - a name
        rows = self._run(statement, *arguments)
        clock: datetime = self._run("select sharequeue.clock()")[0][0] if not rows else rows[-1][-1]
        answer = [row[:-1] for row in rows]
        # The number is drawn while the call's locks are held.
        self._events.append(Event(next(self._common.numbers), kind, at, clock, what, answer))
        return answer

    # The calls.

    def _call(self, at: At) -> None:
        steps = (
            (self._acquire, 40),
            (self._acknowledge, 40),
            (self._renew, 8),
            (self._release, 4),
            (self._release_all, 1),
            (self._force, 3),
            (self._alter, 0.7),
            (self._delete_group, 0.15),
            (self._read, 3),
        )
        self._draw.choices([step for step, _ in steps], [weight for _, weight in steps])[0](at)

    def _acquire(self, at: At) -> None:
        epoch = self._common.epochs[at]
        many, request = self._draw.choice((1, 7, 40)), str(uuid4()) if self._draw.random() < 0.5 else None
        again = 2 if request and self._draw.random() < 0.3 else 1
        member = f"{self._name}-{self._draw.randrange(2)}"
        for _ in range(again):
            rows = self._asked(
                "acquire",
                at,
                "acquire(%s, %s, %s, %s, %s, null, %s, null, %s)",
                *(GROUP, *at, epoch or None, member, many, request),
                member=member,
                many=many,
                request=request,
            )
        if rows and rows[0][0] == 0:
            (first, *_) = rows
            self._common.epochs[at] = first[4]
            runs = [run for row in rows for run in runs_of(row[8])]
            self._got.append(Lease(at, first[3], first[4], member, runs))
        elif rows:
            self._common.epochs[at] = 0

    def _some_lease(self) -> Lease | None:
        recent = self._common.leases[-40:] if self._draw.random() < 0.85 else self._common.leases
        recent = recent + self._got * 5
        return self._draw.choice(recent) if recent else None

    def _acknowledge(self, at: At) -> None:
        lease = self._some_lease()
        if lease is None:
            return
        offsets = [offset for first, end in lease.offsets for offset in range(first, end)]
        if self._draw.random() < 0.4:
            offsets = self._draw.sample(offsets, self._draw.randint(1, len(offsets)))
        parts: dict[str, list[int]] = {name: [] for name in ("accept", "release", "reject", "gap")}
        whole = self._draw.choices(tuple(parts), (60, 20, 10, 10))[0]
        for offset in offsets:
            name = whole if self._draw.random() < 0.9 else self._draw.choice(tuple(parts))
            parts[name].append(offset)
        self._asked(
            "acknowledge",
            lease.at,
            "acknowledge(%s, %s, %s, %s, %s, null, %s, null, %s, %s, %s, %s)",
            *(GROUP, *lease.at, lease.epoch, lease.member, lease.token),
            *("{" + ",".join(f"[{o},{o + 1})" for o in sorted(chosen)) + "}" for chosen in parts.values()),
            token=lease.token,
            parts=parts,
            epoch=lease.epoch,
        )

    def _renew(self, at: At) -> None:
        lease = self._some_lease()
        if lease is not None:
            self._asked(
                "renew",
                lease.at,
                "renew(%s, %s, %s, %s, %s, null, %s)",
                *(GROUP, *lease.at, lease.epoch, lease.member, lease.token),
                token=lease.token,
                epoch=lease.epoch,
            )

    def _release(self, at: At) -> None:
        lease = self._some_lease()
        if lease is not None:
            asked = (GROUP, lease.member, lease.token)
            self._asked(
                "release", None, "release(%s, %s, %s)", *asked, token=lease.token, member=lease.member
            )

    def _release_all(self, at: At) -> None:
        member = f"{self._name}-{self._draw.randrange(2)}"
        self._asked("release", None, "release(%s, %s)", GROUP, member, token=None, member=member)

    def _force(self, at: At) -> None:
        first = self._draw.randrange(RECORDS)
        end = min(RECORDS, first + self._draw.choice((1, 10, 50)))
        act = self._draw.choice(("release", "dead_letter"))
        offsets = f"{{[{first},{end})}}"
        asked = (GROUP, *at, offsets, act)
        self._asked("force", at, "force(%s, %s, %s, %s, %s, true)", *asked, first=first, end=end, act=act)

    def _alter(self, at: At) -> None:
        start = self._draw.randrange(RECORDS)
        self._asked(
            "alter_offsets", at, "alter_offsets(%s, %s, %s, 'id', %s)", *(GROUP, *at, start), start=start
        )

    def _delete_group(self, at: At) -> None:
        """Delete the group and make it again at once: others must not see that it was away."""
        self._asked("delete_group", None, "delete_group(%s)", GROUP)
        topics, partitions = ([each[at] for each in places()] for at in (0, 1))
        same = (["id"] * len(topics), [0] * len(topics))
        asked = (GROUP, topics, partitions, *same)
        self._asked("reset_offsets", None, "reset_offsets(%s, %s, %s, %s, %s, true)", *asked)
        for each in places():
            self._run(
                "select sharequeue.observe(%s, %s, %s, 'id', 0, %s, %s)", GROUP, *each, RECORDS, RECORDS
            )

    def _read(self, at: At) -> None:
        """In the midst of a transaction of one's own, too, the state is sound."""
        found = self._run("select * from sharequeue.verify(%s)", GROUP)
        self._common.ledger.faults += [f"verify in a transaction: {row}" for row in found]

    def _at_another_level(self) -> None:
        """What changes something is refused; what reads sees one moment, in which all is sound."""
        connection = self._connection
        connection.set_session(isolation_level=self._draw.choice(REFUSED_LEVELS))
        try:
            before = self._run(SEEN)
            time.sleep(self._draw.random() * 0.02)
            if self._run(SEEN) != before:
                self._common.ledger.faults.append("the same snapshot shows another state")
            found = self._run("select * from sharequeue.verify(%s)", GROUP)
            self._common.ledger.faults += [f"verify of a snapshot: {row}" for row in found]
            place = self._draw.choice(places())
            try:
                self._run("select * from sharequeue.acquire(%s, %s, %s, null, 'm', null, 10)", GROUP, *place)
                self._common.ledger.faults.append("an acquire at another level was not refused")
            except psycopg2.Error as error:
                if error.pgcode != "SQ042":
                    self._common.ledger.faults.append(f"at another level {error.pgcode}: {error}")
            self._common.tally["another level"] += 1
        finally:
            connection.rollback()
            connection.set_session(isolation_level="READ COMMITTED")


SEEN = (
    "select topic, partition, spso, speo, acquired, available, delivery_complete_count, state_epoch"
    " from sharequeue.share_partition_status where group_id = 'g' order by 1, 2"
)


def places() -> list[At]:
    """Return all share-partitions."""
    return [(topic, partition) for topic in TOPICS for partition in PARTITIONS]


def runs_of(offsets: str) -> list[tuple[int, int]]:
    """Return the runs of a set of offsets, as a driver that does not know the type gets it."""
    inside = offsets.strip("{}")
    return [
        (int(first), int(end))
        for first, end in (run.strip("[)").split(",") for run in inside.replace("),", ") ").split() if run)
    ]


@contextmanager
def session(dsn: str) -> Iterator[Any]:
    """Give a function that runs a statement in a transaction of its own."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True

    def run(statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(statement, arguments or None)
            return list(cursor.fetchall()) if cursor.description else []

    try:
        yield run
    finally:
        connection.close()
