"""How the fuzzer's clients send their calls: plainly, in transactions left open, cut off, killed, taken back.

At once, a call is cut off or killed at any moment of it. In turn, one call runs at a time, and is cut off or killed
before or after its commit, so that the same seed does the same every time.

Each call writes a row into a table of the fuzzer in its own transaction, with a number drawn while the call holds
its locks. So it is known of every call, a killed one too, whether it counts, what it returned, and in which order.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg2
import sqlalchemy as sa

from tests.conformance.reasons import NOT_LIVE_FUNCTION
from tests.fuzzer.records import At, Call

SETUP = f"""
{NOT_LIVE_FUNCTION}
create sequence public.fuzz_order;
create table public.fuzz_calls (call integer primary key, seq bigint not null, result jsonb not null,
    at timestamptz not null);
"""
CALLS = {
    "acknowledge_in_order": "sharequeue.acknowledge_many(%(p_group_id)s, array[%(p_topic)s], array[%(p_partition)s],"
    " array[%(p_state_epoch)s]::integer[], %(p_member_id)s, %(p_member_epoch)s, array[%(p_token)s]::uuid[],"
    " %(p_request_id)s, array[%(p_accept)s]::int8multirange[], array[%(p_release)s]::int8multirange[],"
    " array[%(p_reject)s]::int8multirange[], array[%(p_gap)s]::int8multirange[], '[[]]',"
    " array[%(p_not_before)s]::timestamptz[], p_holds => array[%(p_hold)s]::int8multirange[],"
    " p_keys => jsonb_build_array(%(p_keys)s::jsonb))",
    "acknowledge_and_keep": "sharequeue.acknowledge_many(%(p_group_id)s, array[%(p_topic)s], array[%(p_partition)s],"
    " array[%(p_state_epoch)s]::integer[], %(p_member_id)s, %(p_member_epoch)s, array[%(p_token)s]::uuid[],"
    " %(p_request_id)s, array[%(p_accept)s]::int8multirange[], array[%(p_release)s]::int8multirange[],"
    " array[%(p_reject)s]::int8multirange[], array[%(p_gap)s]::int8multirange[], '[[]]',"
    " array[%(p_not_before)s]::timestamptz[], p_kept => jsonb_build_array(jsonb_build_object("
    "'location', %(p_token)s, 'offsets', %(p_kept)s)))",
    "sweep_kept": "(select r.lease_id, sp.topic, sp.partition, r.offsets::text as offsets"
    " from sharequeue.removable_kept(%(p_group_id)s) as r left join sharequeue.kept_records k using (lease_id)"
    " left join sharequeue.share_partitions sp using (share_partition_id)"
    " where sharequeue.drop_kept(%(p_group_id)s, array[r.lease_id]) = 1)",
    "close_letters": "sharequeue.close_letters((select sp.share_partition_id from sharequeue.share_partitions sp"
    " where (sp.group_id, sp.topic, sp.partition) = (%(p_group_id)s, %(p_topic)s, %(p_partition)s)),"
    " array[%(p_sequence)s]::bigint[], array[%(p_offsets)s]::int8multirange[])",
}
"""Operations whose function has another name, or other arguments."""
READS = ("verify", "verify_journal")
CUT_OFF = ("57014", "57P01", None)
"""A statement that took too long, a terminated backend, and a connection that is gone before it could say so."""


@dataclass
class Shared:
    """What the clients know of each other."""

    partitions: list[At]
    in_turn: bool = False
    """Whether one call runs at a time, and real time decides nothing."""
    ordered: bool = False
    """Whether the groups are in order by key, and the workers obey."""
    calls: dict[int, Call] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    recent: deque[Call] = field(default_factory=lambda: deque(maxlen=40))
    leases: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=60))
    epochs: dict[At, int] = field(default_factory=dict)
    ids: dict[At, int] = field(default_factory=dict)
    logs: dict[At, tuple[int, int]] = field(default_factory=dict)
    letters: dict[At, int] = field(default_factory=dict)
    phase: int = 0
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    ticks: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def second(self) -> int:
        """A second of the clients: in turn so long that locks lapse only where the clock is moved."""
        return 120 if self.in_turn else 1


def connect(url: str) -> Any:
    """A connection at autocommit."""
    parts = sa.make_url(url)
    connection = psycopg2.connect(
        host=parts.host,
        port=parts.port,
        user=parts.username,
        password=parts.password,
        dbname=parts.database,
        options="-c timezone=UTC -c statement_timeout=60000 -c deadlock_timeout=50ms",
    )
    connection.autocommit = True
    return connection


class Client:
    """One connection and its dice."""

    def __init__(self, url: str, shared: Shared, seed: int) -> None:
        self.url, self.shared, self.roll = url, shared, random.Random(seed)  # noqa: S311
        self.connection = connect(url)
        self.unfinished: list[Call] = []
        self.quiet = False
        """Whether every call is sent plainly."""

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def check_reasons(self) -> None:
        """Where there is lag, something can be leased now, or one named reason says why not.

        Time passes while this is asked: only what is so three times is a fault.
        """
        wrong: list[str] = []
        for _ in range(3):
            with self.connection.cursor() as cursor:
                cursor.execute("select * from public.not_live(null)")
                wrong = [line for (line,) in cursor.fetchall()]
            if not wrong:
                return
        with self.shared.lock:
            self.shared.faults.append(f"after a step: {wrong[0]}")

    def send(self, operation: str, source: str | None = None, **args: Any) -> Any:
        """Make one call, in a way that is drawn. Return its result where it counts, else None."""
        call = self.number(operation, args)
        if "p_request_id" in args:
            self.shared.recent.append(call)
        return self._send(call, source)

    def again(self, call: Call) -> Any:
        """The same call once more, by whoever it was."""
        return self._send(self.number(call.operation, call.args), None)

    def number(self, operation: str, args: dict[str, Any]) -> Call:
        """A call with its number."""
        shared = self.shared
        call = Call(next(shared.numbers), operation, args, next(shared.ticks), shared.phase)
        shared.calls[call.number] = call
        self.unfinished.append(call)
        return call

    def _send(self, call: Call, source: str | None) -> Any:
        ways: list[Callable[[Call, str | None], Any]] = [
            self.plainly,
            self._left_open,
            self._taken_back,
            self._too_slow,
            self._killed,
            self._at_another_level,
            self._as_ann,
        ]
        weights = [70, 8, 4, 4, 3, 2, 4]
        plain = self.quiet or source is not None or call.operation in READS
        way = self.plainly if plain else self.roll.choices(ways, weights)[0]
        result = way(call, source)
        for done in self.unfinished:
            done.finished = next(self.shared.ticks)
        self.unfinished.clear()
        return result

    def execute(self, call: Call, source: str | None) -> Any:
        """The statement itself."""
        named = {name: value for name, value in call.args.items() if name.startswith("p_")}
        written = ", ".join(f"{name} => %({name})s" for name in named)
        plain = CALLS.get(call.operation, f"sharequeue.{call.operation}({written})")
        with_, from_ = (f"with c as ({source})", "c") if source else ("", plain)
        with self.connection.cursor() as cursor:
            cursor.execute(  # names of functions only; values go as arguments
                f"{with_} insert into public.fuzz_calls select {call.number}, nextval('public.fuzz_order'), a,"  # noqa: S608
                f" sharequeue.clock() from (select coalesce(jsonb_agg(to_jsonb(r)), '[]') as a from {from_} as r)"
                " as x returning result",
                call.args if source else named,
            )
            (result,) = cursor.fetchone()
        return result

    def plainly(self, call: Call, source: str | None) -> Any:
        """In a transaction of its own."""
        try:
            return self.execute(call, source)
        except psycopg2.Error as error:
            return self._met(call, error)

    def _met(self, call: Call, error: psycopg2.Error, allowed: tuple[str | None, ...] = ()) -> None:
        code = error.pgcode
        with self.shared.lock:
            self.shared.tally[f"{call.operation} {code}"] += 1
            if not (code or "").startswith("SQ") and code not in allowed:
                self.shared.faults.append(f"{code}: {error}\n  at {call}")

    def _run(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def _left_open(self, call: Call, source: str | None) -> Any:
        self._run("begin")
        result = self.plainly(call, source)
        if not self.shared.in_turn:
            time.sleep(self.roll.random() * 0.03)
        self._run("commit")
        return result

    def _taken_back(self, call: Call, source: str | None) -> Any:
        self._run("begin")
        self._run("savepoint before_it")
        self.plainly(call, source)
        self._run("rollback to savepoint before_it")
        result = None
        if self.roll.random() < 0.6:
            result = self.plainly(self.number(call.operation, call.args), source)
        self._run("commit")
        return result

    def _too_slow(self, call: Call, source: str | None) -> Any:
        if self.shared.in_turn:
            return self._cut_off_in_turn(call, source)
        self._run(f"set statement_timeout = {self.roll.randint(1, 12)}")
        result = None
        try:
            result = self.execute(call, source)
        except psycopg2.Error as error:
            self._met(call, error, CUT_OFF)
        while True:
            try:
                self._run("set statement_timeout = 60000")
                break
            except psycopg2.errors.QueryCanceled:
                continue
        return result or self.plainly(self.number(call.operation, call.args), source)

    def _cut_off_in_turn(self, call: Call, source: str | None) -> Any:
        """What came after the call in its transaction took too long, so the call is undone; it is asked for again."""
        self._run("begin")
        self.plainly(call, source)
        try:
            self._run("set local statement_timeout = 1; select pg_sleep(60)")
        except psycopg2.Error as error:
            self._met(call, error, CUT_OFF)
        self._run("rollback")
        return self.plainly(self.number(call.operation, call.args), source)

    def _killed_in_turn(self, call: Call, source: str | None) -> Any:
        """Killed before its commit or after it, and asked for again by a client that does not know which."""
        self._run("begin")
        self.plainly(call, source)
        if self.roll.random() < 0.5:
            self._run("commit")
        killer = connect(self.url)
        with killer.cursor() as cursor:
            cursor.execute("select pg_terminate_backend(%s, 20000)", (self.connection.info.backend_pid,))
        killer.close()
        self.connection.close()
        self.connection = connect(self.url)
        return self.plainly(self.number(call.operation, call.args), source)

    def _killed(self, call: Call, source: str | None) -> Any:
        if self.shared.in_turn:
            return self._killed_in_turn(call, source)
        pid = self.connection.info.backend_pid
        killer = connect(self.url)
        pause = self.roll.random() * 0.012

        def kill() -> None:
            time.sleep(pause)
            with killer.cursor() as cursor:
                cursor.execute("select pg_terminate_backend(%s, 20000)", (pid,))

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            self.execute(call, source)
        except psycopg2.Error as error:
            self._met(call, error, CUT_OFF)
        thread.join()
        killer.close()
        self.connection.close()
        self.connection = connect(self.url)
        # The client does not know what came of it. It asks again, under the same request id.
        return self.plainly(self.number(call.operation, call.args), source)

    def _at_another_level(self, call: Call, source: str | None) -> Any:
        self._run(f"begin isolation level {self.roll.choice(['repeatable read', 'serializable'])}")
        try:
            result = self.execute(call, source)
        except psycopg2.Error as error:
            if error.pgcode != "SQ042":
                self._met(call, error)
        else:
            if call.operation not in ("add_acl", "remove_acls"):
                self.shared.faults.append(f"not refused at another level: {call}, {result}")
        self._run("rollback")

    def _as_ann(self, call: Call, source: str | None) -> Any:
        if call.operation in ("add_acl", "remove_acls", "sweep", "extend_locks"):
            return self.plainly(call, source)
        self._run("begin")
        self._run("select set_config('sharequeue.principal', 'User:ann', true)")
        result = self.plainly(call, source)
        self._run("commit")
        return result
