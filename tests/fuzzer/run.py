"""One run of the fuzzer: phases of many clients, a look at the ledger between two, and all of it drained.

At once, until a moment, it finds rare things, and seldom the same twice. In turn, for so many phases, one seed makes
the same calls every time, with the same results but for ids and times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sharequeue.database import Database
from tests.fuzzer.clients import SETUP, Shared, connect
from tests.fuzzer.operators import Ledger
from tests.fuzzer.records import At, Call, offsets_of, seconds
from tests.fuzzer.steps import LOCK_DURATION, Worker, array

GROUPS, TOPICS, PARTITIONS = ("g0", "g1"), ("t0", "t1"), (0, 1)
CLIENTS, STEPS = 8, 25


class Run:
    """A seed, and what came of it."""

    def __init__(
        self,
        database: Database,
        seed: int,
        *,
        in_turn: bool = False,
        clients: int = CLIENTS,
        ordered: bool = False,
    ) -> None:
        url = database.engine.url.render_as_string(hide_password=False)
        self.seed, self.ledger = seed, Ledger(ordered=ordered)
        self.shared = Shared(
            [(g, t, p) for g in GROUPS for t in TOPICS for p in PARTITIONS], in_turn, ordered
        )
        self.connection = connect(url)
        self._rows(SETUP + "select 1")
        self.workers = [Worker(url, self.shared, seed * 1000 + n) for n in range(clients)]
        for worker in self.workers:
            worker.configs = seed % 3 != 0
        self.log: list[Call] = []
        self.dlq = seed % 2 == 0
        """Whether the groups have a dead-letter topic from the beginning."""

    def _rows(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, args or None)
            return list(cursor.fetchall())

    def at_once(self, until: float) -> list[str]:
        """Phases of all clients at once until `until` by the monotonic clock. Gives what was wrong."""
        with ThreadPoolExecutor(len(self.workers)) as pool:

            def phase() -> None:
                for done in [pool.submit(self._steps, w) for w in self.workers]:
                    done.result()

            return self._phases(phase, lambda: time.monotonic() < until)

    def in_turn(self, phases: int) -> list[str]:
        """So many phases, in each of which the clients take turns, step by step. Gives what was wrong."""

        def phase() -> None:
            for _ in range(STEPS):
                for worker in self.workers:
                    worker.step()

        return self._phases(phase, lambda: self.shared.phase < phases)

    def _phases(self, phase: Callable[[], None], goes_on: Callable[[], bool]) -> list[str]:
        first = self.workers[0]
        if self.shared.in_turn:
            for group in GROUPS:
                self._config(group, LOCK_DURATION, str(30_000 * self.shared.second))
        if self.shared.ordered:
            for group in GROUPS:
                self._config(group, "sharequeue.order", "key")
            self._config(GROUPS[1], "sharequeue.order.on.dead.letter", "hold")
            self.ledger.letters_hold = {GROUPS[1]}
        # One group begins at each level.
        self._config(GROUPS[1], "share.isolation.level", "read_committed")
        self._settings()
        for at in self.shared.partitions:
            self.shared.logs[at] = (0, 40)
        self._begin(first)
        for at in self.shared.partitions:
            self._observe(first, at)
        if self.dlq:
            for group in GROUPS:
                self._config(group, "errors.deadletterqueue.topic.name", "dlq.letters")
        self._check()
        while not self.faults() and goes_on():
            self.shared.phase += 1
            phase()
            self._check()
            if first.roll.random() < 0.1:
                back = first.roll.choice([1, 10, 60])
                self._pass_time(-back)
                self.ledger.set_back(back * self.shared.second)
        if not self.faults():
            self._drain(first)
        for worker in self.workers:
            worker.close()
        self.connection.close()
        return self.faults()

    def _pass_time(self, seconds: int) -> None:
        self._rows(
            "update sharequeue.clock_offset set amount = amount + %s * interval '1 second' returning 1",
            seconds * self.shared.second,
        )

    def faults(self) -> list[str]:
        """What was wrong so far."""
        return self.shared.faults + self.ledger.faults

    def told(self) -> str:
        """What was done."""
        calls, met = dict(self.ledger.tally), dict(self.shared.tally)
        return (
            f"fuzzer, seed {self.seed}: {self.shared.phase} phases, {len(self.log):,} calls, {calls}, {met}"
        )

    @staticmethod
    def _steps(worker: Worker) -> None:
        for _ in range(STEPS):
            worker.step()

    def _plain(self, worker: Worker, operation: str, **args: Any) -> Any:
        return worker.plainly(worker.number(operation, args), None)

    @staticmethod
    def _begin(worker: Worker) -> None:
        worker.quiet = True
        worker.begin(worker.shared.partitions)
        worker.quiet = False

    def _observe(self, worker: Worker, at: At) -> None:
        start, end = self.shared.logs[at]
        self._plain(
            worker,
            "observe",
            **worker.named(at),
            p_topic_id=worker.topic_id(at),
            p_log_start=start,
            p_log_end=end,
            p_last_stable_offset=end,
        )

    def _config(self, group: str, name: str, value: str) -> None:
        self._rows(
            "insert into sharequeue.group_configs (group_id, name, value) values (%s, %s, %s)"
            " on conflict (group_id, name) do update set value = excluded.value returning 1",
            group,
            name,
            value,
        )

    def _settings(self) -> None:
        for group in GROUPS:
            ((limit, topic, level),) = self._rows(
                "select sharequeue_internal.group_config(%s, 'share.delivery.count.limit'),"
                " sharequeue_internal.group_config(%s, 'errors.deadletterqueue.topic.name'),"
                " sharequeue_internal.group_config(%s, 'share.isolation.level')",
                *[group] * 3,
            )
            self.ledger.settle_settings(group, int(limit or 5), bool(topic), level == "read_committed")

    def _check(self) -> None:
        """Everybody is done: the calls go into the ledger, and the ledger is held against what is there."""
        calls = []
        for number, seq, returned, at in self._rows(
            "delete from public.fuzz_calls returning call, seq, result, at"
        ):
            call = self.shared.calls[number]
            call.seq, call.result, call.at = seq, returned, seconds(at)
            calls.append(call)
        self.shared.calls.clear()
        self.log += sorted(calls, key=lambda c: c.seq)
        self.ledger.take_phase(calls)
        self._settings()
        status = {
            (g, t, p): {"spso": spso, "delivery_complete_count": complete, "status": status}
            for g, t, p, spso, complete, status in self._rows(
                "select group_id, topic, partition, spso, delivery_complete_count, status"
                " from sharequeue.share_partition_status"
            )
        }
        kept: dict[At, dict[int, set[int]]] = {}
        for *at, lease, offsets in self._rows(
            "select sp.group_id, sp.topic, sp.partition, k.lease_id, k.offsets::text"
            " from sharequeue.kept_records k left join sharequeue.share_partitions sp using (share_partition_id)"
        ):
            kept.setdefault((at[0], at[1], at[2]), {})[lease] = set(offsets_of(offsets))
        counted = dict(self._rows("select lease_id, records from sharequeue.counted_outputs"))
        self.ledger.compare(status, counted, kept)
        for check in ("verify", "verify_journal"):
            rows = self._rows(f"select * from sharequeue.{check}()")  # noqa: S608
            self.shared.faults += [f"{check}: {row}" for row in rows]

    def _drain(self, worker: Worker) -> None:
        """Every record to its end."""
        for group in GROUPS:
            self._config(group, "errors.deadletterqueue.topic.name", "dlq.letters")
            self._config(group, "share.isolation.level", "read_uncommitted")
            self._plain(worker, "pause", p_group_id=group, p_reason=None)
        self._begin(worker)
        for at in self.shared.partitions:
            self._plain(worker, "pause", **worker.named(at), p_reason=None)
            self._observe(worker, at)
        self._check()
        for at, partition in self.ledger.partitions.items():
            if partition.status != "active":
                self._start_again(worker, at)
        epochs = self._rows(
            "select group_id, topic, partition, state_epoch from sharequeue.share_partition_status order by 1, 2, 3"
        )
        for _ in range(100):
            self.shared.phase += 1
            self._pass_time(120)
            more = 0
            for g, t, p, epoch in epochs:
                more += self._drain_one(worker, (g, t, p), epoch)
            self._check()
            left = self._lagging()
            if self.faults() or not (more or any(until for *_, until in left)):
                break
        self.shared.faults += [f"not drained: {row}" for row in left if not self.faults()]
        if not self.faults():
            self.ledger.drained(letters_everywhere=False)

    def _start_again(self, worker: Worker, at: At) -> None:
        """Reset a share-partition whose topic has another id. An id that the topic had before is refused: then the
        offsets of the topic are deleted first, as the refusal says."""
        epochs = self._plain(
            worker,
            "alter_offsets",
            **worker.named(at),
            p_topic_id=worker.topic_id(at),
            p_start_offset=self.shared.logs[at][0],
        )
        if epochs is not None:
            self.shared.epochs[at] = epochs[0]
            self._observe(worker, at)
            return
        self._plain(worker, "delete_offsets", p_group_id=at[0], p_topic=at[1])
        self._begin(worker)
        for each in self.shared.partitions:
            if each[:2] == at[:2]:
                self._observe(worker, each)

    def _lagging(self) -> list[tuple[Any, ...]]:
        """What has lag, why nothing of it can be leased, and until when."""
        return self._rows(
            "select group_id, topic, partition, lag, spso, speo, blocked_by, blocked_reason, blocked_until"
            " from sharequeue.share_partition_status where lag > 0 order by 1, 2, 3"
        )

    def _drain_one(self, worker: Worker, at: At, epoch: int) -> int:
        who = worker.holder(at, "drain", epoch)
        rows = self._plain(worker, "acquire", **who, p_max_records=500, p_redelivery="fan_out")
        lease = worker.keep(at, epoch, "drain", rows)
        if lease is not None and self.shared.ordered:
            self._plain(
                worker, "acknowledge_in_order", **worker.in_order(lease, dict.fromkeys(lease["offsets"], 1))
            )
        elif lease is not None:
            self._plain(
                worker,
                "acknowledge_batches",
                **who,
                p_token=lease["token"],
                p_request_id=worker.uuid(),
                **worker.batches(lease["offsets"], 1),
            )
        opened = self._plain(worker, "open_dead_letters", **worker.named(at), p_max_records=500)
        if opened:
            self._plain(worker, "close_dead_letters", **worker.named(at), p_sequence=opened[0]["sequence"])
        return bool(lease) + bool(opened) + self._let_keys_go(worker, at)

    def _let_keys_go(self, worker: Worker, at: At) -> int:
        """Free what letters hold; return how many keys go on."""
        holding = self._rows(
            "select sequence, offsets::text from sharequeue.holding_letters"
            " where (group_id, topic, partition) = (%s, %s, %s) order by 1",
            *at,
        )
        freed = 0
        for sequence, offsets in holding:
            named = worker.named(at)
            (row,) = self._plain(worker, "close_letters", **named, p_sequence=sequence, p_offsets=offsets)
            freed += row["keys"]
        return freed


__all__ = ["Run", "array"]
