"""A random history of both engines, and its calls.

Two groups, of two share-partitions and of one, with the same three members, in `tests.oracle` and in the SQL
functions at once. Here are how a call is made on both, its results compared as they come, and where its details are
drawn from. The operations are in ``two_engines`` and ``operator_steps``, the comparison of states in ``comparison``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from sharequeue.domain.errors import ShareError
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import Acknowledged, SharePartition
from tests.conformance.drawing import drawn
from tests.conformance.sql_side import SqlSide, place, ranges_of, refusal
from tests.conformance.tally import Different, Held, Tally
from tests.fixtures.stack import LOCK_BOUNDS
from tests.oracle import AcknowledgementBatch, Acquired, InMemoryShareGroups, LogBatch, RecordState
from tests.ordered import HASHES, key_of

MEMBERS = ("m1", "m'2", "m3")
LIMIT, LOCKS = "share.delivery.count.limit", "share.partition.max.record.locks"
LOCK_MS, RENEWAL = "share.record.lock.duration.ms", "share.renew.acknowledge.enable"
ISOLATION, DLQ = "share.isolation.level", "errors.deadletterqueue.topic.name"
REFUND = "sharequeue.cancelled.run.refund.enable"
BREAKER = "sharequeue.circuit.breaker."
PERCENT = f"{BREAKER}failure.percent"
ORDER = "sharequeue.order"
ORDERS = (
    (ORDER, ("key", "key", "key", "none")),
    (f"{ORDER}.on.dead.letter", ("continue", "hold", "hold")),
    (f"{ORDER}.max.open.keys", ("1", "2", "100000", "100000")),
)
"""The configs of order by key, in histories that have it."""
DID = ("spso", "lag", "accepted", "released", "rejected", "gaps", "exhausted")
KINDS = (1, 1, 1, 2, 2, 2, 3, 0, 4)
Where = tuple[str, str | None, int | None]
"""What is paused: group, topic, partition, the last two None for all of them."""
PLACES = ((0, 0), (0, 1), (1, 0))
"""Group and partition of the share-partitions of a history."""


class History:
    """One history so far: what is drawn, what is sent, what both hold."""

    def __init__(self, sql: SqlSide, roll: int, number: int, tally: Tally, *, ordered: bool = False) -> None:
        self.sql, self.tally, self.random = sql, tally, Random(roll)  # noqa: S311
        self.ordered = ordered
        self.memory = InMemoryShareGroups(sql.start, service_configs=LOCK_BOUNDS)
        self.number, self.requests = number, 0
        self.groups = [f"g{number}", f"g{number}b"]
        self.names = [SharePartition(self.groups[group], "t", partition) for group, partition in PLACES]
        self.seconds = 0.0
        self.last: list[tuple[str, tuple[object, ...]]] = []
        self.leases: list[Held] = []
        self.tokens: dict[str, UUID] = {}
        self.sent: list[tuple[Callable[[], object], object]] = []
        self.paused: list[Where] = []
        self.mistaken: dict[SharePartition, set[int]] = {}
        """The records of which another key than theirs was reported last."""
        self.after_calls: list[Callable[[], None]] = []
        """What looks at the model after each call."""
        pick = self.random.choice
        configs = {group: self._configs() for group in self.groups}
        sql.begin(self.names, configs)
        for group, chosen in configs.items():
            self.memory.configure(group, chosen)
        self.known = pick((True, False))
        self.set_back = False
        self.logs: dict[SharePartition, list[LogBatch]] = {}
        self.ends: dict[SharePartition, int] = {}
        self.starts: dict[SharePartition, int] = {}
        self.aborted: dict[SharePartition, OffsetSet] = {}
        for at in self.names:
            self.memory.initialize(at, "id", 0, 1)
            self.logs[at], self.ends[at], self.starts[at], self.aborted[at] = [], 0, 0, EMPTY
            self.produce(at, self.random.randint(1, 8))

    def _configs(self) -> dict[str, str]:
        pick = self.random.choice
        configs = {LIMIT: str(pick((2, 2, 3, 3, 4, 5, 7))), LOCKS: str(pick((8, 15, 30, 60)))}
        configs |= {DLQ: pick(("", "dlq.t", "dlq.t")), REFUND: pick(("true", "false"))}
        configs |= {ISOLATION: pick(("read_committed", "read_uncommitted"))}
        # In three groups of eight: behind an open circuit little happens.
        configs |= {PERCENT: pick(("0",) * 5 + ("40", "70", "70")), f"{BREAKER}min.records": pick(("2", "6"))}
        configs |= {
            f"{BREAKER}window.records": pick(("6", "20")),
            f"{BREAKER}probe.records": pick(("1", "3")),
        }
        configs |= {f"{BREAKER}open.ms": pick(("5000", "20000"))}
        return configs | ({name: pick(values) for name, values in ORDERS} if self.ordered else {})

    # Calls on both

    def both(
        self, call: str, memory: Callable[[], object], sql: Callable[[], object], *about: object
    ) -> object:
        """What both return, a refusal by its name; different results end the history."""
        self.tally.calls[call] += 1
        self.last = [*self.last[-4:], (call, about)]
        expected, got = said(memory), said(sql)
        for look in self.after_calls:
            look()
        if isinstance(expected, str):
            self.tally.refusals[expected] += 1
        if expected != got:
            states = [f"{at}: {drawn(self.memory.describe(at))}" for at in self.there()]
            if self.ordered:
                states = [self.whole(at) for at in self.there()]
            raise Different(
                f"{call} {about}: in memory {expected}, in Postgres {got}; in memory now: {states}"
            )
        return expected

    def whole(self, at: SharePartition) -> str:
        """A share-partition, with the keys and waits of its records."""
        found = self.memory.share_partition(at)
        records = [
            (
                o,
                r.state.name,
                r.delivery_count,
                r.part,
                r.not_before,
                r.reported and str(r.reported.key_hash)[:4],
            )
            for o, r in found.records.items()
        ]
        return f"{at} of {at.group_id} at {self.seconds}: {records} letters {sorted(found.letters)}"

    # What a call is made of

    def settle(self) -> None:
        """Lapsed locks are settled."""
        self.both(
            "sweep", lambda: self.memory.sweep().records, lambda: self.sql.call("sweep", 1000)[0]["records"]
        )

    def configure(self, group_id: str, change: dict[str, str]) -> None:
        """Configs of a group change; what lapsed before ends by the old ones."""
        self.settle()
        self.memory.configure(group_id, change)
        self.sql.configure(group_id, change)

    def send(
        self, name: str, memory: Callable[[], object], sql: Callable[[], object], *about: object
    ) -> object:
        """A call with a request id, at times repeated; what both return."""

        def call() -> Any:
            return self.both(name, memory, sql, *about)

        result = call()
        refused = isinstance(result, str) or result == () or (result[1:] == ((),) and result[0] is not None)
        if not refused:
            if self.random.random() < 0.15 and call() != result:
                raise Different(f"{name}, repeated at once, has another result than {result}")
            self.sent = [*self.sent[-4:], (call, result)]
        return result

    def acquired(
        self,
        at: SharePartition,
        member: str,
        rows: list[dict[str, Any]],
        given: list[Acquired],
        fan_out: bool,
    ) -> object:
        if not rows or rows[0]["error_code"] is None:
            return ()
        refused = refusal(*error(rows[0]))
        if refused:
            return refused
        lease = given[-1].lease if given else None
        if lease is not None and rows[0]["token"] not in self.tokens:
            self.tokens[rows[0]["token"]] = lease.token
            if self.random.random() < 0.9:  # else the client never learned of it
                self.leases.append(Held(at, member, lease, rows[0]["token"]))
        runs = [(*run, row["delivery_count"]) for row in rows for run in ranges_of(row["offsets"])]
        until, level = self.sql.seconds(rows[0]["expires_at"]), rows[0]["isolation_level"]
        return (until, level, *joined(runs)) if fan_out else (until, level, *runs)

    def there(self) -> list[SharePartition]:
        """The share-partitions that are initialised."""
        return [at for group in self.groups for at in self.memory.share_partitions(group)]

    def archiving(self, at: SharePartition) -> bool:
        records = self.memory.share_partition(at).records.values()
        return any(record.state is RecordState.ARCHIVING for record in records)

    def at(self) -> SharePartition:
        return self.random.choices(self.names, (7, 2, 2))[0]

    def key_of(self, at: SharePartition) -> Callable[[int], UUID | None]:
        """The key of each record of a share-partition."""
        return lambda offset: key_of(self.number, *place(at)[1:], offset)

    def mistakes(self, offsets: Iterable[int]) -> tuple[set[int], UUID | None]:
        """Draw some records, now and then, of which a faulty worker reports another key, and that key."""
        some = {o for o in offsets if self.random.random() < 0.3} if self.random.random() < 0.1 else set()
        self.tally.met["a key that is not the record's"] += bool(some)
        return some, self.random.choice(HASHES[1:])

    def wait(self, how_often: float = 0.25) -> datetime | None:
        """A time for what is released: mostly none, now and then one that has passed."""
        if self.random.random() >= how_often:
            return None
        return self.memory.now() + timedelta(seconds=self.random.choice((-3.0, 0.25, 5.0, 12.000001, 40.0)))

    def member(self) -> str:
        return self.random.choice(MEMBERS)

    def request(self) -> UUID:
        self.requests += 1
        return UUID(int=(self.number << 64) + self.requests)

    def epoch(self, at: SharePartition) -> int | None:
        known = self.memory.describe(at).state_epoch if at in self.there() else 1
        return self.random.choice((None,) * 6 + (known,) * 4 + (known - 1,))

    def lease(self, at: SharePartition | None) -> Held | None:
        leases = [held for held in self.leases[-8:] if at in (None, held.at)]
        return self.random.choice(leases) if leases else None

    def fetch(self, at: SharePartition) -> dict[str, Any]:
        if self.random.random() < 0.4:
            return {"redelivery": "fan_out"}
        return {
            "redelivery": "kafka",
            "mode": self.random.choice(("batch_optimized", "record_limit")),
            "batch_size": self.random.choice((None, 3, 8)),
            "log_batches": [b for b in self.logs[at] if b.last >= self.starts[at]] if self.known else None,
            "aborted": self.aborted[at] if self.known else EMPTY,
        }

    def runs(
        self, at: SharePartition, member: str, lease: Held | None, renews: bool
    ) -> list[AcknowledgementBatch]:
        roll = self.random
        kinds = KINDS if renews else KINDS[:-1]
        there = self.memory.share_partition(at) if at in self.there() else None
        held = there.held(member, lease.lease.token if lease else None) if there else []
        if roll.random() < 0.8 and held:
            kept = [offset for offset in held if roll.random() < 0.9] or held
            ends: list[list[int]] = []
            for offset in kept:
                if ends and ends[-1][1] == offset - 1 and roll.random() < 0.9:
                    ends[-1][1] = offset
                else:
                    ends.append([offset, offset])
            if roll.random() < 0.08:
                ends.insert(roll.randint(0, len(ends)), [roll.randint(0, self.ends[at]) for _ in range(2)])
        else:
            low = there.spso if there else 0
            first = max(0, low + roll.randint(-3, 20))
            ends = []
            for _ in range(roll.randint(1, 3)):
                ends.append([first, first + roll.randint(0, 6)])
                first = ends[-1][1] + roll.randint(0, 3)
        runs = []
        kind = roll.choice(kinds)
        for first, last in ends:
            if roll.random() < 0.3:
                kind = roll.choice(kinds)
            apart = roll.random() < 0.25
            types = [roll.choice(kinds) for _ in range(first, last + 1)] if apart else [kind]
            runs.append(AcknowledgementBatch(first, last, tuple(types)))
        return runs

    def produce(self, at: SharePartition, batches: int) -> None:
        end = self.ends[at]
        for _ in range(batches):
            end += self.random.choice((0, 0, 0, 2)) if self.known else 0
            size = self.random.randint(1, 9)
            if self.random.random() < 0.15:
                self.aborted[at] |= OffsetSet.of((end, end + size))
            self.logs[at].append(LogBatch(end, end + size - 1))
            end += size
        self.ends[at] = end
        self.observe(at)

    def observe(self, at: SharePartition) -> None:
        if at in self.there():
            self.settle()
            stable = self.random.choice((self.ends[at], self.ends[at], self.logs[at][-1].first))
            start, end = self.starts[at], self.ends[at]
            self.memory.observe(at, "id", start, end, stable)
            self.sql.rows("observe", *place(at), start, end, stable)

    def ranges(self, got: Acquired, fan_out: bool) -> tuple[Any, ...]:
        if got.lease is None:
            return ()
        runs = [(run.first, run.last, run.delivery_count) for run in got.ranges]
        until, level = self.sql.seconds(got.lease.expires_at), got.lease.isolation_level
        return (until, level, *joined(runs)) if fan_out else (until, level, *runs)


def did(result: Acknowledged) -> tuple[int, ...]:
    """The figures of an acknowledgement."""
    return tuple(getattr(result, name) for name in DID)


def said(call: Callable[[], object]) -> object:
    """What a call returns, a refusal by its name."""
    try:
        return call()
    except ShareError as error:
        return error.name


def error(row: dict[str, Any]) -> tuple[int | None, str | None]:
    """The refusal in a row, if there is one."""
    return row["error_code"], row["error_message"]


def joined(runs: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Runs in order, neighbours of one delivery count as one: a set has no batches."""
    found: list[tuple[int, int, int]] = []
    for first, last, count in sorted(runs):
        if found and found[-1][1] == first - 1 and found[-1][2] == count:
            found[-1] = (found[-1][0], last, count)
        else:
            found.append((first, last, count))
    return found
