"""Operations on a share-partition, on both engines at once.

Every operation there is, in both redelivery modes: each method draws one call, makes it on `tests.oracle` and
on the SQL functions, and compares the results. Which method comes next is chosen by ``histories``; what a person may
do is in ``operator_steps``, the comparison of states in ``comparison``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.offsets import EMPTY, OffsetSet
from sharequeue.domain.values import DeadLetterBatch, SharePartition
from tests.conformance.history import (
    DID,
    DLQ,
    ISOLATION,
    LIMIT,
    LOCK_MS,
    LOCKS,
    ORDER,
    ORDERS,
    PERCENT,
    REFUND,
    RENEWAL,
    History,
    did,
    error,
    said,
)
from tests.conformance.operator_steps import OperatorSteps
from tests.conformance.sql_side import json_of, place, ranges_of, refusal
from tests.conformance.tally import Different, Held
from tests.oracle import AcknowledgementBatch, Acquired, RecordState, Redelivery
from tests.oracle.acknowledging import validate
from tests.oracle.kept import kept_of, removable
from tests.ordered import REJECT, reported

REDELIVERIES: tuple[Redelivery, ...] = ("kafka", "fan_out")
SET_BACK = 7200.0
"""By how many seconds the clock is set back: more than any lock lasts."""


class MemberSteps:
    """The operations of members and of the service."""

    def __init__(self, history: History, operators: OperatorSteps) -> None:
        self.history, self.random, self.tally = history, history.random, history.tally
        self.memory, self.sql, self.operators = history.memory, history.sql, operators

    def acquire(self, at: SharePartition | None = None) -> None:
        """A fetch, by Kafka's rules or as fan_out, with or without the log's batches, some of them again; of any
        share-partition, unless one is given."""
        at, member, request = at or self.history.at(), self.history.member(), self.history.request()
        most, duration = (
            self.random.randint(0, 20),
            self.random.choice((None, None, None, 5000, 60000, 999)),
        )
        fetch = self.history.fetch(at)
        epoch = self.history.epoch(at)
        fan_out = fetch["redelivery"] == "fan_out"
        spared = self._spared(at) if fan_out and self.random.random() < 0.3 else EMPTY
        # In order by key suspects come one part at a time, though more are asked for.
        ordered = self.history.ordered and self.memory.config(at.group_id, ORDER) == "key"
        call = "acquire_parts" if ordered else "acquire"
        fan_out = fan_out or ordered
        given: list[Acquired] = []

        def memory() -> object:
            got = self.memory.acquire(
                at,
                member,
                most,
                state_epoch=epoch,
                lock_duration_ms=duration,
                request_id=request,
                leave_out=spared,
                **fetch,
            )
            given.append(got)
            return self.history.ranges(got, fan_out)

        def sql() -> object:
            asked = (*place(at), epoch, member, most, duration, str(request), *_sql_fetch(fetch), str(spared))
            return self.history.acquired(at, member, self.sql.call(call, *asked), given[-1:], fan_out)

        if at in self.history.there() and self.memory.paused_by_hand(at) is not None:
            self.tally.met["a pause"] += 1
        self.history.send("acquire", memory, sql, at, member, most, fetch)

    def _spared(self, at: SharePartition) -> OffsetSet:
        """Some of what may come again, for an acquire to leave out."""
        if at not in self.history.there():
            return EMPTY
        available = [
            offset
            for offset, record in self.memory.share_partition(at).records.items()
            if record.state is RecordState.AVAILABLE and self.random.random() < 0.5
        ]
        self.tally.met["something left out"] += bool(available)
        return OffsetSet.from_offsets(available)

    def acknowledge(self) -> None:
        """Kafka's runs of types, bare or under a lease, of what is held or of anything."""
        at, member, request = self.history.at(), self.history.member(), self.history.request()
        lease = self.history.lease(at) if self.random.random() < 0.4 else None
        if lease and self.random.random() < 0.9:
            member = lease.member
        renews = self.random.random() < 0.6
        batches = self.history.runs(at, member, lease, renews)
        epoch = lease.lease.state_epoch if lease else self.history.epoch(at)
        try:
            validate(batches, renew_allowed=renews)
        except InvalidRequest:
            # Two faults at once: Kafka looks at the form first, the functions at the epoch.
            epoch, lease = None, None
        wait = self.history.wait()

        def memory() -> object:
            return did(
                self.memory.acknowledge(
                    at,
                    member,
                    batches,
                    state_epoch=epoch,
                    lease=lease.lease if lease else None,
                    renew_allowed=renews,
                    not_before=wait,
                    request_id=request,
                )
            )

        def sql() -> object:
            token = lease.token if lease else None
            rows = self.sql.call(
                "batches", *place(at), epoch, member, token, str(request), *_sql_runs(batches), renews, wait
            )
            return refusal(*error(rows[0])) or tuple(rows[0][name] for name in DID)

        self.history.send("acknowledge", memory, sql, at, member, epoch, batches, lease, wait)

    def acknowledge_lease(self, lease: Held | None = None) -> None:
        """A lease acknowledged by sets of offsets, as a Spark run does; any lease, unless one is given."""
        lease = lease or self.history.lease(None)
        if lease is None:
            return
        at, request = lease.at, self.history.request()
        offsets = list(lease.lease.offsets.iter_offsets())
        if self.random.random() < 0.1:
            offsets.append(offsets[-1] + self.random.randint(1, 30))
        results = self.random.choices(range(5), (6, 4, 1, 1, 2), k=len(offsets))
        if self.random.random() < 0.4:
            results = [results[0]] * len(offsets)
        by_kind: dict[int, list[int]] = {1: [], 2: [], 3: [], 0: [], 9: []}  # 9: not acknowledged yet
        for offset, result in zip(offsets, results, strict=True):
            by_kind[(1, 2, 3, 0, 9)[result]].append(offset)
        del by_kind[9]
        sets = {kind: OffsetSet.from_offsets(chosen) for kind, chosen in by_kind.items()}
        runs = sorted((f, last, kind) for kind, chosen in sets.items() for f, last in chosen.runs())
        wait = self.history.wait()
        kept = self._kept(sets)

        def memory() -> object:
            batches = [AcknowledgementBatch.of(*run) for run in runs]
            return did(
                self.memory.acknowledge(
                    at,
                    lease.member,
                    batches,
                    lease=lease.lease,
                    not_before=wait,
                    request_id=request,
                    kept=kept,
                )
            )

        def sql() -> object:
            told = (str(sets[kind]) for kind in (1, 2, 3, 0))
            call, more = ("sets", ()) if kept is None else ("sets_kept", (str(kept),))
            asked = (lease.lease.state_epoch, lease.member, lease.token, str(request), *told, wait, *more)
            row = self.sql.call(call, *place(at), *asked)[0]
            return refusal(*error(row)) or tuple(row[name] for name in DID)

        def by_state() -> object:
            # Sets cannot be malformed, but for what is kept: past what was acquired is not held.
            result = said(memory)
            malformed = kept is not None and (not kept or bool(kept - sets[2]))
            return "INVALID_RECORD_STATE" if result == "INVALID_REQUEST" and not malformed else result

        self.history.send("acknowledge a lease", by_state, sql, at, runs, wait, kept)

    def _kept(self, sets: Mapping[int, OffsetSet]) -> OffsetSet | None:
        """Some of what is released, mostly; None if nothing is kept."""
        if self.random.random() < (0.2 if sets[2] else 0.95):
            return None
        some = OffsetSet.from_offsets([o for o in sets[2].iter_offsets() if self.random.random() < 0.7])
        wrong = sets[1] if self.random.random() < 0.05 else EMPTY
        return some | wrong

    def work(self) -> None:
        """Rounds of a worker, which looks where the records of its leases are kept, and keeps what it releases; now
        and then a sweep has removed before what nobody needs."""
        if self.random.random() < 0.3:
            self._drop_kept(self.random.choice(self.history.groups))
        at = self.history.at()
        if (lease := self.history.lease(at)) is not None and at in self.history.there():
            self._read_kept(lease)
        for _ in range(self.random.randint(1, 5)):
            before = len(self.history.leases)
            self.acquire(at)
            if self.random.random() < 0.1:
                self.move_log(at)
            if self.random.random() < 0.1:
                self.history.configure(
                    at.group_id, {ISOLATION: self.random.choice(("read_committed", "read_uncommitted"))}
                )
            for lease in self.history.leases[before:]:
                self._read_kept(lease)
                self.acknowledge_lease(lease)

    def _read_kept(self, lease: Held) -> None:
        found = kept_of(self.memory.share_partition(lease.at), lease.lease.token)
        self.tally.met["a kept record"] += bool(found)
        self.tally.met["records kept by two leases"] += len(set(found.values())) > 1
        got = {
            offset: self.history.tokens[row["location"]]
            for row in self.sql.call("kept_of", lease.at.group_id, lease.token)
            for first, last in ranges_of(row["offsets"])
            for offset in range(first, last + 1)
        }
        if got != found:
            raise Different(
                f"{lease.at}: kept in memory {found}, in Postgres {got}; last: {self.history.last}"
            )

    def _drop_kept(self, group: str) -> None:
        gone = self.sql.call("removable_kept", group)
        self.tally.met["kept records that nobody needs"] += bool(gone)
        self.sql.rows("drop_kept", group, [row["lease_id"] for row in gone])
        for at in self.memory.share_partitions(group):
            found = self.memory.share_partition(at)
            nobodys = removable(found)
            found.kept = [row for row in found.kept if row not in nobodys]

    def retry(self) -> None:
        """A call whose reply was lost is made again, with its request id, whatever has happened since."""
        if self.history.sent:
            call, result = self.random.choice(self.history.sent)
            again = call()
            if again != result:
                raise Different(f"a repeated call returns {again}, not {result} as at first")

    def renew(self) -> None:
        """A lease kept, by its holder or by one who is none."""
        lease = self.history.lease(None)
        if lease is None:
            return
        member = lease.member if self.random.random() < 0.9 else self.history.member()

        def sql() -> object:
            row = self.sql.call("renew", *place(lease.at), lease.lease.state_epoch, member, lease.token)[0]
            return refusal(*error(row)) or self.sql.seconds(row["expires_at"])

        def memory() -> object:
            lapses = self.memory.renew(lease.at, member, lease.lease)
            return self.sql.seconds(lapses)

        self.history.both("renew", memory, sql)

    def pass_time(self) -> None:
        """The clock moves on; who notices first differs. Or it is set back by two hours, and later on again."""
        step = self.random.choice((1.0, 4.0, 10.0, 15.0, 30.0, 31.0))
        if self.random.random() < (0.3 if self.history.set_back else 0.06):
            step = SET_BACK if self.history.set_back else -SET_BACK
            self.history.set_back = not self.history.set_back
            self.tally.met["a clock that was set back"] += self.history.set_back
            # Results are kept for an hour, and calls are repeated later.
            self.sql.run("update sharequeue.requests set finished_at = finished_at + interval '2 hours'")
        self.history.seconds += step
        self.memory.advance(self.history.seconds - (self.memory.now() - self.sql.start).total_seconds())
        self.sql.move_clock(self.history.seconds)
        self.operators.resume_some()
        if step < 0 or self.random.random() < 0.4:
            self.history.settle()

    def move_log(self, at: SharePartition | None = None) -> None:
        """Records are produced, removed by retention, compacted away."""
        at, what = at or self.history.at(), self.random.random()
        if what < 0.5:
            self.history.produce(at, self.random.randint(1, 4))
        elif what < 0.8:
            self.history.settle()
            spso = self.memory.describe(at).spso if at in self.history.there() else 0
            self.history.starts[at] = min(
                self.history.ends[at],
                max(self.history.starts[at], spso + self.random.randint(-3, 12)),
            )
            self.history.observe(at)
        elif len(self.history.logs[at]) > 1:
            self.history.logs[at].pop(self.random.randrange(len(self.history.logs[at]) - 1))

    def dead_letters(self) -> None:
        """A batch is opened; written, or not yet; its number closed once more changes nothing."""
        self.history.settle()
        waiting = [at for at in self.history.there() if self.history.archiving(at)] or self.history.there()
        if not waiting:
            return  # there is no share-partition just now
        at, most = self.random.choice(waiting), self.random.randint(1, 10)
        batch = self.memory.open_dead_letters(at, most)
        expected = (
            sorted((r.cause, r.delivery_count, r.offsets.runs()) for r in batch.letters) if batch else []
        )
        rows = self.sql.call("open_letters", *place(at), most)
        got = sorted((r["cause"], r["delivery_count"], ranges_of(r["offsets"])) for r in rows)
        self.history.both("open dead letters", lambda: expected, lambda: got)
        if batch and self.history.ordered:
            self._close_keyed(at, batch, rows[0]["sequence"])
        elif batch and self.random.random() < 0.7:
            for _ in range(self.random.randint(1, 2)):
                self.history.both(
                    "close dead letters",
                    lambda: self.memory.close_dead_letters(at, batch.sequence),
                    lambda: self.sql.call("close_letters", *place(at), rows[0]["sequence"])[0]["closed"],
                )

    def _close_keyed(self, at: SharePartition, batch: DeadLetterBatch, sequence: int) -> None:
        """The writer has read the records, all or some, and reports their keys; or it has written nothing."""
        dropped = self.random.random() < 0.1
        read = {o: REJECT for o in batch.offsets.iter_offsets() if self.random.random() < 0.9}
        key, (mistakes, other) = self.history.key_of(at), self.history.mistakes(read)
        told = reported(read, lambda offset: other if offset in mistakes else key(offset))
        keys = told if self.random.random() < 0.8 else {}
        self.history.mistaken.setdefault(at, set()).update(mistakes)
        sets = {key: OffsetSet.from_offsets(offsets) for key, offsets in keys.items()}
        self.history.both(
            "close dead letters",
            lambda: self.memory.close_dead_letters(at, batch.sequence, keys=sets, dropped=dropped),
            lambda: self.sql.call("close_keyed_letters", *place(at), sequence, dropped, json_of(sets))[0][
                "closed"
            ],
            at,
            batch.offsets,
            sets,
            dropped,
        )

    def administer(self) -> None:
        """Configurations change; offsets are reset, or forgotten and begun anew."""
        at, what = self.history.at(), self.random.random()
        if what < 0.55:
            name, values = self.random.choice(
                (
                    (LIMIT, ("2", "3", "5", "7")),
                    (DLQ, ("", "dlq.t")),
                    (RENEWAL, ("true", "true", "false")),
                    (ISOLATION, ("read_committed", "read_uncommitted")),
                    (LOCK_MS, ("30000", "15000", "45000")),
                    (LOCKS, ("8", "20", "60")),
                    (REFUND, ("true", "false")),
                    (PERCENT, ("0", "0", "0", "40")),
                    *(ORDERS * 3 if self.history.ordered else ()),
                )
            )
            self.history.configure(at.group_id, {name: self.random.choice(values)})
        elif what < 0.75:
            start = self.random.randint(self.history.starts[at], self.history.ends[at])
            self.memory.alter_offsets(at.group_id, {(at.topic, at.partition): start})
            self.history.both(
                "alter offsets",
                lambda: self.memory.describe(at).state_epoch,
                lambda: self.sql.call("reset_to", *place(at), start)[0]["state_epoch"],
            )
            self.history.observe(at)
        elif what < 0.8:
            self.memory.delete_offsets(at.group_id, ["t"])
            self.sql.rows("forget", at.group_id, "t")
            self.tally.calls["delete offsets"] += 1
            self.history.sent = []  # what was returned goes with its share-partition
        if what > 0.75:
            for gone in self.history.names:
                if gone not in self.history.there() and self.random.random() < 0.7:
                    self.memory.initialize(gone, "id", self.history.starts[gone], 1)
                    self.sql.rows("initialize", *place(gone), self.history.starts[gone])
                    self.history.observe(gone)


def _sql_runs(
    batches: list[AcknowledgementBatch],
) -> tuple[list[int], list[int], list[int], list[int]]:
    types = [kind for batch in batches for kind in batch.types]
    return [b.first for b in batches], [b.last for b in batches], types, [len(b.types) for b in batches]


def _sql_fetch(fetch: dict[str, Any]) -> tuple[object, ...]:
    log = fetch.get("log_batches")
    return (
        fetch["redelivery"],
        fetch.get("mode", "batch_optimized"),
        fetch.get("batch_size"),
        None if log is None else [batch.first for batch in log],
        None if log is None else [batch.last for batch in log],
        str(fetch.get("aborted", "{}")),
    )
