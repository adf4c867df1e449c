"""What is a random history of both engines, and what must be equal after each of its steps?

One group with two share-partitions and three members, in `sharequeue.testing` and in the SQL functions at once. Here
are what a call on both is made of, where its details are drawn from, and the comparison: answers as they come, and
after every step the state, offset by offset, expiries to the microsecond. The operations are in ``two_engines``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from sharequeue.errors import ShareError
from sharequeue.leases import Lease, SharePartition
from sharequeue.offsets import EMPTY, OffsetSet
from sharequeue.testing import AcknowledgementBatch, Acquired, InMemoryShareGroups, LogBatch, RecordState
from tests.conformance.drawing import drawn
from tests.conformance.sql_side import SqlSide, place, ranges_of, refusal

MEMBERS = ("m1", "m'2", "m3")
LIMIT, LOCKS = "share.delivery.count.limit", "share.partition.max.record.locks"
LOCK_MS, RENEWAL = "share.record.lock.duration.ms", "share.renew.acknowledge.enable"
ISOLATION, DLQ = "share.isolation.level", "errors.deadletterqueue.topic.name"
KINDS = (1, 1, 1, 2, 2, 2, 3, 0, 4)


class Different(AssertionError):
    """The two engines do not agree."""


@dataclass
class Tally:
    """What a run of histories has done, over all of them."""

    steps: int = 0
    found_at: int | None = None
    found: Exception | None = None
    """The first difference, and at which step."""
    histories: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    transitions: set[tuple[str, str]] = field(default_factory=set)


@dataclass(frozen=True)
class Held:
    """A lease as both engines gave it."""

    at: SharePartition
    member: str
    lease: Lease
    token: str


class History:
    """One history so far."""

    def __init__(self, sql: SqlSide, roll: int, number: int, tally: Tally) -> None:
        self.sql, self.tally, self.random = sql, tally, Random(roll)  # noqa: S311
        self.memory = InMemoryShareGroups(sql.start)
        self.number, self.group, self.requests = number, f"g{number}", 0
        self.names = [SharePartition(self.group, "t", partition) for partition in range(2)]
        self.seconds = 0.0
        self.last: list[tuple[str, tuple[object, ...]]] = []
        self.leases: list[Held] = []
        self.tokens: dict[str, UUID] = {}
        self.sent: list[tuple[Callable[[], object], object]] = []
        pick = self.random.choice
        configs = {LIMIT: str(pick((2, 3, 4, 5, 5, 7))), LOCKS: str(pick((8, 15, 30, 60)))}
        configs |= {
            DLQ: pick(("", "dlq.t", "dlq.t")),
            ISOLATION: pick(("read_committed", "read_uncommitted")),
        }
        sql.begin(self.names, configs)
        self.memory.configure(self.group, configs)
        self.known = pick((True, False))
        self.logs: dict[SharePartition, list[LogBatch]] = {}
        self.ends: dict[SharePartition, int] = {}
        self.starts: dict[SharePartition, int] = {}
        self.aborted: dict[SharePartition, OffsetSet] = {}
        for at in self.names:
            self.memory.initialize(at, "id", 0, 1)
            self.logs[at], self.ends[at], self.starts[at], self.aborted[at] = [], 0, 0, EMPTY
            self._produce(at, self.random.randint(1, 8))

    # Calls on both

    def both(
        self, call: str, memory: Callable[[], object], sql: Callable[[], object], *about: object
    ) -> object:
        """What both answer, a refusal by its name; different answers end the history."""
        self.tally.calls[call] += 1
        self.last = [*self.last[-4:], (call, about)]
        expected, got = said(memory), said(sql)
        if isinstance(expected, str):
            self.tally.refusals[expected] += 1
        if expected != got:
            states = [f"{at}: {drawn(self.memory.describe(at))}" for at in self._there()]
            raise Different(
                f"{call} {about}: in memory {expected}, in Postgres {got}; in memory now: {states}"
            )
        return expected

    # After every step

    def compare(self) -> None:
        """Epochs, SPSO, SPEO, counts, and every offset's state, count, part, cause, lease and expiry."""
        got: dict[SharePartition, tuple[Any, ...]] = {}
        offsets: dict[SharePartition, dict[int, tuple[Any, ...]]] = {}
        for row in self.sql.rows("snapshot", self.group):
            at = SharePartition(self.group, row[0], row[1])
            got[at] = row[2:8]
            seen = offsets.setdefault(at, {})
            state, count, isolate, cause, token, expires_at, text = row[8:]
            if state is None:
                continue
            until = self.sql.seconds(expires_at) if expires_at else None
            entry = (state, count, isolate, cause if state == 3 else None, self.tokens.get(token), until)
            for first, last in ranges_of(text):
                for offset in range(first, last + 1):
                    if offset in seen:
                        raise Different(f"{at}: offset {offset} is in two states at once")
                    if offset >= row[3] or state in (1, 3):
                        seen[offset] = entry
        there = self._there()
        if sorted(got) != there:
            raise Different(f"initialised in Postgres: {sorted(got)}, in memory: {there}")
        for at in there:
            share_partition = self.memory.share_partition(at)
            self.tally.transitions |= {(a.name, b.name) for a, b in share_partition.transitions}
            figures = (
                share_partition.state_epoch, share_partition.spso, share_partition.speo,
                share_partition.delivery_complete_count, share_partition.lost_records, share_partition.log_end,
            )  # fmt: skip
            if figures != got[at]:
                raise Different(
                    f"{at}: epoch, SPSO, SPEO, complete, lost, end: in memory {figures}, not {got[at]};"
                    f" in memory {drawn(self.memory.describe(at))}; in Postgres {offsets[at]};"
                    f" the last calls: {self.last}"
                )
            expected = {
                offset: (
                    int(r.state),
                    r.delivery_count,
                    r.part if r.state is RecordState.AVAILABLE else None,
                    r.cause if r.state is RecordState.ARCHIVING else None,
                    None if r.lease_id is None else share_partition.leases[r.lease_id].token,
                    r.expires_at,
                )
                for offset, r in share_partition.records.items()
                if offset >= share_partition.spso or r.state in (1, 3)
            }
            if expected != offsets[at]:
                odd = {
                    o: (expected.get(o), offsets[at].get(o))
                    for o in sorted(expected.keys() | offsets[at].keys())
                    if expected.get(o) != offsets[at].get(o)
                }
                raise Different(f"{at}, in memory and in Postgres: {odd}; the last calls: {self.last}")

    def compare_at_leisure(self) -> None:
        """What takes longer: the invariants of both, and how many records have ended how."""
        broken = [*self.memory.verify(), *(row[0] for row in self.sql.rows("verify", self.group))]
        if broken:
            raise Different(f"invariants that do not hold: {broken}")
        got = {row[:3]: row[3] for row in self.sql.rows("outcomes", self.group)}
        expected = {
            (at.partition, outcome, count): records
            for at in self._there()
            for (outcome, count), records in self.memory.share_partition(at).outcomes.items()
        }
        if got != expected:
            raise Different(f"outcomes by delivery count: in memory {expected}, in Postgres {got}")

    # What a call is made of

    def settle(self) -> None:
        """Lapsed locks are settled."""
        self.both(
            "sweep", lambda: self.memory.sweep().records, lambda: self.sql.call("sweep", 1000)[0]["records"]
        )

    def _send(
        self, name: str, memory: Callable[[], object], sql: Callable[[], object], *about: object
    ) -> None:
        def call() -> Any:
            return self.both(name, memory, sql, *about)

        answer = call()
        refused = isinstance(answer, str) or answer == () or (answer[1:] == ((),) and answer[0] is not None)
        if not refused:
            if self.random.random() < 0.15 and call() != answer:
                raise Different(f"{name}, repeated at once, has another answer than {answer}")
            self.sent = [*self.sent[-4:], (call, answer)]

    def _acquired(
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
        until = self.sql.seconds(rows[0]["expires_at"])
        return (until, *joined(runs)) if fan_out else (until, *runs)

    def _both_rows(
        self,
        at: SharePartition,
        member: str,
        rows: list[dict[str, Any]],
        given: list[Acquired],
        fan_out: bool,
    ) -> object:
        first = rows[0]
        refused = refusal(first["acknowledge_error_code"], first["acknowledge_error_message"])
        acquired = self._acquired(at, member, rows, given, fan_out)
        return acquired if isinstance(acquired, str) else (refused, acquired)

    def _there(self) -> list[SharePartition]:
        return self.memory.share_partitions(self.group)

    def _archiving(self, at: SharePartition) -> bool:
        records = self.memory.share_partition(at).records.values()
        return any(record.state is RecordState.ARCHIVING for record in records)

    def _at(self) -> SharePartition:
        return self.names[self.random.random() < 0.2]

    def _member(self) -> str:
        return self.random.choice(MEMBERS)

    def _request(self) -> UUID:
        self.requests += 1
        return UUID(int=(self.number << 64) + self.requests)

    def _epoch(self, at: SharePartition) -> int | None:
        known = self.memory.describe(at).state_epoch if at in self._there() else 1
        return self.random.choice((None,) * 6 + (known,) * 4 + (known - 1,))

    def _lease(self, at: SharePartition | None) -> Held | None:
        leases = [held for held in self.leases[-8:] if at in (None, held.at)]
        return self.random.choice(leases) if leases else None

    def _fetch(self, at: SharePartition) -> dict[str, Any]:
        if self.random.random() < 0.4:
            return {"redelivery": "fan_out"}
        return {
            "redelivery": "kafka",
            "mode": self.random.choice(("batch_optimized", "record_limit")),
            "batch_size": self.random.choice((None, 3, 8)),
            "log_batches": [b for b in self.logs[at] if b.last >= self.starts[at]] if self.known else None,
            "aborted": self.aborted[at] if self.known else EMPTY,
        }

    def _runs(
        self, at: SharePartition, member: str, lease: Held | None, renews: bool
    ) -> list[AcknowledgementBatch]:
        roll = self.random
        kinds = KINDS if renews else KINDS[:-1]
        there = self.memory.share_partition(at) if at in self._there() else None
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

    def _produce(self, at: SharePartition, batches: int) -> None:
        end = self.ends[at]
        for _ in range(batches):
            end += self.random.choice((0, 0, 0, 2)) if self.known else 0
            size = self.random.randint(1, 9)
            if self.random.random() < 0.15:
                self.aborted[at] |= OffsetSet.of((end, end + size))
            self.logs[at].append(LogBatch(end, end + size - 1))
            end += size
        self.ends[at] = end
        self._observe(at)

    def _observe(self, at: SharePartition) -> None:
        if at in self._there():
            self.settle()
            stable = self.random.choice((self.ends[at], self.ends[at], self.logs[at][-1].first))
            start, end = self.starts[at], self.ends[at]
            self.memory.observe(at, "id", start, end, stable)
            self.sql.rows("observe", *place(at), start, end, stable)

    def _ranges(self, got: Acquired, fan_out: bool) -> tuple[Any, ...]:
        if got.lease is None:
            return ()
        runs = [(run.first, run.last, run.delivery_count) for run in got.ranges]
        until = self.sql.seconds(got.lease.expires_at)
        return (until, *joined(runs)) if fan_out else (until, *runs)


def said(call: Callable[[], object]) -> object:
    """What a call answers, a refusal by its name."""
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
