"""Call SQL functions, and read their state, cheaply enough for many thousand steps.

One connection, every call prepared, and a database whose clock stands still: `sharequeue.clock()` is put at a
fixed moment plus the offset that tests move, so that both engines agree on every expiry to the microsecond. What
is called is in ``two_engines`` and ``operator_steps``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

import psycopg2
import sqlalchemy as sa

from sharequeue.domain.errors import error_for
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import SharePartition
from tests.conformance.reasons import NOT_LIVE
from tests.fixtures.stack import LOCK_BOUNDS

_RANGE = re.compile(r"\[(\d+),(\d+)\)")

FAR_YEAR = 9999
"""From this year on a time is none: what waits for a dead letter of its key waits without one."""

_SHORT = {
    # Group, topic, partition, state epoch, member: what every call begins with.
    "@name": "text, text, integer, integer, text",
    "@fetch": "text, text, bigint, bigint[], bigint[], int8multirange",
    "@acquired": "error_code, error_message, lease_id, token::text as token, expires_at, delivery_count,"
    " offsets::text as offsets, isolation_level",
    # The id of the share-partition that a statement names first.
    "@id": "(select sp.share_partition_id from sharequeue.share_partitions sp"
    " where (sp.group_id, sp.topic, sp.partition) = ($1, $2, $3))",
}
_PREPARED = {
    "acquire": (
        "@name, bigint, integer, uuid, @fetch, int8multirange",
        "select @acquired from sharequeue.acquire($1, $2, $3, $4, $5, null, $6, $7, $8, $9, $10, $11, $12, $13,"
        " $14, $15)",
    ),
    "batches": (
        "@name, uuid, uuid, bigint[], bigint[], smallint[], integer[], boolean, timestamptz",
        "select * from sharequeue.acknowledge_batches($1, $2, $3, $4, $5, null, $6, $7, $8, $9, $10, $11, $12, $13)",
    ),
    "sets": (
        "@name, uuid, uuid, int8multirange, int8multirange, int8multirange, int8multirange, timestamptz",
        "select * from sharequeue.acknowledge($1, $2, $3, $4, $5, null, $6, $7, $8, $9, $10, $11, '[]', $12)",
    ),
    "sets_kept": (
        "@name, uuid, uuid, int8multirange, int8multirange, int8multirange, int8multirange, timestamptz, text",
        "select * from sharequeue.acknowledge_many($1, array[$2], array[$3], array[$4], $5, null, array[$6], $7,"
        " array[$8], array[$9], array[$10], array[$11], '[[]]', array[$12], p_kept => jsonb_build_array("
        "jsonb_build_object('location', $6::text, 'offsets', $13)))",
    ),
    "kept_of": (
        "text, uuid",
        "select location, offsets::text as offsets from sharequeue.kept_of($1,"
        " (select coalesce(array_agg(lease_id), '{}') from sharequeue.leases where token = $2))",
    ),
    "removable_kept": ("text", "select lease_id, location from sharequeue.removable_kept($1)"),
    "drop_kept": ("text, bigint[]", "select sharequeue.drop_kept($1, $2) as dropped"),
    "renew": (
        "@name, uuid",
        "select * from sharequeue.renew($1, $2, $3, $4, $5, null, $6)",
    ),
    "release": (
        "text, text, uuid, boolean, boolean",
        "select sharequeue.release($1, $2, $3, $4, $5) as released",
    ),
    "pause": ("text, text, text, integer", "select sharequeue.pause($1, $2, $3, $4) as paused"),
    "force": (
        "text, text, integer, int8multirange, text, boolean",
        "select error_code, error_message, act, state, delivery_count, member_id, reason, offsets::text as offsets"
        " from sharequeue.force($1, $2, $3, $4, $5, $6)",
    ),
    "extend": ("interval", "select sharequeue.extend_locks($1) as extended"),
    "raise_epochs": ("", "select sharequeue.raise_state_epochs() as raised"),
    "sweep": ("integer", "select * from sharequeue.sweep($1)"),
    "observe": (
        "text, text, integer, bigint, bigint, bigint",
        "select sharequeue.observe($1, $2, $3, 'id', $4, $5, $6) as status",
    ),
    "initialize": (
        "text, text, integer, bigint",
        "select sharequeue.initialize($1, $2, $3, 'id', $4, 1) as created",
    ),
    "reset_to": (
        "text, text, integer, bigint",
        "select sharequeue.alter_offsets($1, $2, $3, 'id', $4, null) as state_epoch",
    ),
    "forget": ("text, text", "select sharequeue.delete_offsets($1, $2) as deleted"),
    "open_letters": (
        "text, text, integer, bigint",
        "select sequence, cause, delivery_count, offsets::text as offsets"
        " from sharequeue.open_dead_letters($1, $2, $3, $4)",
    ),
    "close_letters": (
        "text, text, integer, bigint",
        "select sharequeue.close_dead_letters($1, $2, $3, $4) as closed",
    ),
    "clock": ("interval", "select sharequeue.set_clock_offset($1)"),
    "snapshot": (
        "text[]",
        "select sp.group_id, sp.topic, sp.partition, sp.state_epoch, sp.spso, sp.speo, sp.delivery_complete_count,"
        " sp.lost_records, sp.log_end, coalesce(sp.paused_reason, g.paused_reason), c.state, c.records, c.failed,"
        " c.retry_at, c.reason, c.probe::text, c.probe_records, c.probe_failed,"
        " f.state, f.delivery_count, f.isolate, f.cause, l.token::text, l.expires_at, f.not_before, f.offsets::text"
        " from sharequeue.share_partitions sp join sharequeue.group_settings g using (group_id)"
        " left join sharequeue.circuit_breakers c using (share_partition_id)"
        " left join sharequeue.in_flight_offsets f using (share_partition_id)"
        " left join sharequeue.leases l using (lease_id) where sp.group_id = any ($1)",
    ),
    "blocked": (
        "text[]",
        "select group_id, topic, partition, lag, spso, speo, log_end, last_stable_offset, blocked_by, blocked_reason,"
        " blocked_until, blocked_offset from sharequeue.share_partition_status where group_id = any ($1) and lag > 0",
    ),
    "outcomes": (
        "text[]",
        "select sp.group_id, sp.partition, d.outcome, d.delivery_count, d.records"
        " from sharequeue.delivery_count_totals d join sharequeue.share_partitions sp using (share_partition_id)"
        " where sp.group_id = any ($1)",
    ),
    "not_live": ("text[]", NOT_LIVE),
    "verify": ("text[]", "select v.violation from unnest($1) as g, sharequeue.verify(g) as v"),
}
_ORDERED = {
    "acquire_parts": (
        "@name, bigint, integer, uuid, @fetch, int8multirange",
        "select @acquired from sharequeue.acquire_many($1, array[$2], array[$3], $5, null, $6, $7, $8, $9, $10, null,"
        " null, array[$15], 3, true, $4, row($11, $12, $13, $14))",
    ),
    "in_order": (
        "@name, uuid, uuid, int8multirange, int8multirange, int8multirange, int8multirange, timestamptz,"
        " int8multirange, jsonb",
        "select * from sharequeue.acknowledge_many($1, array[$2], array[$3], array[$4], $5, null, array[$6], $7,"
        " array[$8], array[$9], array[$10], array[$11], '[[]]', array[$12], false, null, array[$13],"
        " jsonb_build_array($14))",
    ),
    "blocked_keys": (
        "text, uuid",
        "select key_hashes::text[] as keys, first_offsets, untils from sharequeue.blocked_keys($1, array[$2])",
    ),
    "known_keys": (
        "text[]",
        "select sp.group_id, sp.topic, sp.partition, sp.keys_unknown, sp.open_key_records, sp.open_keys,"
        ' k."offset", k.key_hash::text, k.letter'
        " from sharequeue.share_partitions sp left join sharequeue.open_key_records k using (share_partition_id)"
        " where sp.group_id = any ($1)",
    ),
    "close_keyed_letters": (
        "text, text, integer, bigint, boolean, jsonb",
        "select sharequeue.close_dead_letters($1, $2, $3, $4, $5, $6) as closed",
    ),
    "letters_held": (
        "text, text, integer, bigint[], text[]",
        "select keys, held_records from sharequeue.letters_held(@id, $4, $5::int8multirange[])",
    ),
    "let_keys_go": (
        "text, text, integer, bigint[], text[]",
        "select keys, held_records from sharequeue.close_letters(@id, $4, $5::int8multirange[])",
    ),
}
"""What only those call who know of order by key."""


def ranges_of(text: str) -> list[tuple[int, int]]:
    """First and last offset, both inclusive, of each range of an `int8multirange`."""
    return [(int(first), int(past) - 1) for first, past in _RANGE.findall(text)]


def freeze_clock(cursor: Any) -> datetime:
    """Make the database's clock stand still, at the second that is now; only its offset moves it from here on."""
    cursor.execute("select date_trunc('second', clock_timestamp())")
    moment = cast("datetime", cursor.fetchone()[0])
    cursor.execute(
        "create or replace function public.frozen_moment() returns timestamptz language sql stable as $$"
        " select timestamptz @moment $$".replace("@moment", f"'{moment.isoformat()}'")
    )
    cursor.execute("select pg_get_functiondef(cast('sharequeue.clock' as regproc))")
    text = cursor.fetchone()[0].replace("pg_catalog.clock_timestamp()", "clock_timestamp()")
    frozen = text.replace("clock_timestamp()", "public.frozen_moment()")
    assert "public.frozen_moment()" in frozen
    cursor.execute(frozen)
    return moment


class SqlSide:
    """One connection to a database of its own. Rows come back as dictionaries."""

    def __init__(self, url: str, *, ordered: bool = False) -> None:
        parts = sa.make_url(url)
        self.connection = psycopg2.connect(
            host=parts.host,
            port=parts.port,
            user=parts.username,
            password=parts.password,
            dbname=parts.database,
            options="-c timezone=UTC -c statement_timeout=60000",
        )
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()
        self.cursor.execute("set synchronous_commit = off")
        self.cursor.execute("select sharequeue.set_service_configs(%s)", (json.dumps(LOCK_BOUNDS),))
        self.start = freeze_clock(self.cursor)
        for name, (types, statement) in (_PREPARED | (_ORDERED if ordered else {})).items():
            text = f"prepare {name}{f' ({types})' if types else ''} as {statement}"
            for short, long in _SHORT.items():
                text = text.replace(short, long)
            self.cursor.execute(text)

    def close(self) -> None:
        """End the connection."""
        self.connection.close()

    def rows(self, prepared: str, *values: object) -> list[tuple[Any, ...]]:
        """What a prepared statement returns. Raises Kafka's errors that functions raise, by their number."""
        marks = f" ({', '.join(['%s'] * len(values))})" if values else ""
        try:
            self.cursor.execute(f"execute {prepared}{marks}", values)  # a name from the table above
        except psycopg2.Error as error:
            if error.pgcode and error.pgcode.startswith("SQ"):
                raise error_for(int(error.pgcode[2:]), str(error)) from None
            raise
        return self.cursor.fetchall()

    def call(self, prepared: str, *values: object) -> list[dict[str, Any]]:
        """The same, by column name."""
        rows = self.rows(prepared, *values)
        names = [column.name for column in self.cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def run(self, statement: str, values: Sequence[object] = ()) -> None:
        """A statement that is not worth preparing."""
        self.cursor.execute(statement, values)

    def move_clock(self, seconds: float) -> None:
        """So many seconds after the moment at which the clock stands."""
        self.rows("clock", timedelta(seconds=seconds))

    def seconds(self, moment: datetime) -> float:
        """How long after that moment something is."""
        return (moment - self.start).total_seconds()

    def wait(self, not_before: datetime | None) -> float | None:
        """How long after it something is not delivered; infinite for what waits for a dead letter of its key."""
        if not_before is None:
            return None
        return math.inf if not_before.year >= FAR_YEAR else self.seconds(not_before)

    def begin(self, at: Sequence[SharePartition], configs: dict[str, dict[str, str]]) -> None:
        """Groups with nothing in them but their configurations, at the beginning of time."""
        self.move_clock(0)
        for group_id, chosen in configs.items():
            self.run("insert into sharequeue.share_groups (group_id) values (%s)", [group_id])
            self.configure(group_id, chosen)
        for name in at:
            self.rows("initialize", *place(name), 0)

    def configure(self, group_id: str, configs: dict[str, str]) -> None:
        """Sets group configurations."""
        for name, value in configs.items():
            self.run(
                "insert into sharequeue.group_configs values (%s, %s, %s)"
                " on conflict (group_id, name) do update set value = excluded.value",
                [group_id, name, value],
            )

    def end(self, group_ids: Sequence[str]) -> None:
        """The groups are gone, so that the next history meets small tables."""
        self.run("delete from sharequeue.share_groups where group_id = any (%s)", [list(group_ids)])
        self.run("delete from sharequeue.group_configs where group_id = any (%s)", [list(group_ids)])
        self.run("delete from sharequeue.requests")


def place(at: SharePartition) -> tuple[str, str, int]:
    """A share-partition as the functions name it."""
    return at.group_id, at.topic, at.partition


def json_of(keys: Mapping[UUID | None, OffsetSet]) -> str:
    """Reported keys as the functions take them."""
    return json.dumps([{"key": None if k is None else str(k), "offsets": str(o)} for k, o in keys.items()])


def refusal(code: int | None, message: str | None) -> str | None:
    """A refusal by Kafka's name; None when there was none."""
    return error_for(code, message).name if code else None
