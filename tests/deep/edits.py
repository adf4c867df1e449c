"""The rules, and the change to a function that switches each one off.

Each edit is applied to a copy of the functions, in a database of its own, never to the files. The first table is of
what the random histories must find; the second breaks one rule of each family, for the marked tests to find. An edit
whose text is no longer in the function fails an ordinary test, so that the tables cannot rot.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from sharequeue.database import Database


@dataclass(frozen=True, slots=True)
class Edit:
    """In the source of one function of schema ``sharequeue``, ``old`` (there exactly once) becomes ``new``."""

    name: str
    function: str
    old: str
    new: str

    def edited(self, source: str) -> str:
        """The function's new source. Raises LookupError when the text is not there, or more than once."""
        if source.count(self.old) != 1:
            raise LookupError(f"{self.name}: {source.count(self.old)} times in {self.function}: {self.old!r}")
        return source.replace(self.old, self.new)


def source_of(database: Database, function: str) -> str:
    """A function as `create or replace` takes it."""
    rows = database.rows(
        sa.text(
            "select pg_get_functiondef(p.oid) as source from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
            " where n.nspname in ('sharequeue', 'sharequeue_internal') and p.proname = :function"
        ),
        function=function,
    )
    (row,) = rows
    return str(row["source"])


def apply(database: Database, edit: Edit) -> None:
    """Break the rule, in this database."""
    changed = edit.edited(source_of(database, edit.function))
    raw = database.engine.raw_connection()
    try:
        raw.cursor().execute(changed)
        raw.commit()
    finally:
        raw.close()


HISTORY_EDITS = (
    Edit(
        "fencing by lease token",
        "leases_between",
        "member_id = p_member_id and (p_token is null or token = p_token)",
        "member_id = p_member_id",
    ),
    Edit(
        "fencing by member",
        "leases_between",
        "member_id = p_member_id and (p_token is null or token = p_token)",
        "p_token is null or token = p_token",
    ),
    Edit(
        "fencing by state epoch",
        "share_partition_fault",
        "p_state_epoch <> p_sp.state_epoch",
        "p_state_epoch > p_sp.state_epoch + 1000",
    ),
    Edit(
        "all or nothing",
        "acknowledge_under_lock",
        "v_result.error_message := v_failed.error_message;",
        "v_result := sharequeue_internal.apply_acknowledgements(v_sp, p_settings, p_holder, v_acknowledgements,"
        " v_held, row(p_not_before, false, '{}', '{}', null), p_at);"
        " v_result.error_code := v_failed.error_code;",
    ),
    Edit(
        "the delivery limit at a release",
        "acknowledge_parts",
        "v_limit integer := p_settings.delivery_count_limit;",
        "v_limit integer := 1000000;",
    ),
    Edit(
        "the delivery limit at a lapse",
        "end_leases_at",
        "p.together > 1) as again",
        "p.together > 1) or true as again",
    ),
    Edit(
        "SPSO waits for the dead letter",
        "advance_spso",
        "last_offset >= v_sp.spso and state not in (2, 4)",
        "last_offset >= v_sp.spso and state not in (2, 3, 4)",
    ),
    Edit(
        "SPSO stops at unfinished records",
        "advance_spso",
        "order by share_partition_id, first_offset, part limit 1;",
        "order by share_partition_id, first_offset desc, part limit 1;",
    ),
    Edit(
        "a lock lapses",
        "settle_lapsed",
        "l.expires_at <= p_at",
        "l.expires_at <= p_at - interval '5 seconds'",
    ),
    Edit(
        "a lock lapses exactly at its expiry",
        "settle_lapsed",
        "l.expires_at <= p_at",
        "l.expires_at < p_at",
    ),
    Edit(
        "the throttle",
        "throttle_from",
        "greatest(2, (p_limit + 1) / 2)",
        "1000",
    ),
    Edit(
        "the last attempt goes alone",
        "choose_offsets",
        "if (p_limit > 2 and v_run.delivery_count = p_limit - 1) or v_run.delivery = v_run.delivery_count then",
        "if v_run.delivery = v_run.delivery_count then",
    ),
    Edit(
        "suspects are divided",
        "end_leases_at",
        "then greatest(1, ceil(p.suspects",
        "and false then greatest(1, ceil(p.suspects",
    ),
    Edit(
        "a repeated request returns its first result",
        "remember",
        "if p_request_key is not null then",
        "if false then",
    ),
    Edit(
        "a time on release",
        "apply_acknowledgements",
        "v_times.not_before := sharequeue_internal.whole_second(v_times.not_before);",
        "v_times.not_before := null;",
    ),
    Edit(
        "waiting records leave the window",
        "waiting_in_window",
        "if not p_sp.redeliverable then",
        "if true then",
    ),
    Edit(
        "a pause of a share-partition",
        "acquire_in_turn",
        "v_sp.paused_reason is not null or p_settings.paused_reason is not null",
        "p_settings.paused_reason is not null",
    ),
    Edit(
        "a pause of a group",
        "acquire_in_turn",
        "v_sp.paused_reason is not null or p_settings.paused_reason is not null",
        "v_sp.paused_reason is not null",
    ),
    Edit(
        "finished records cannot be moved by hand",
        "forced_plan",
        "if p_state in (2, 4) then",
        "if p_state = 2 then",
    ),
    Edit(
        "a forced release gives the last delivery back",
        "force_part",
        "least(p_delivery_count, p_limit - 1)::smallint",
        "p_delivery_count",
    ),
    Edit(
        "a cancelled run is refunded",
        "end_cancelled",
        "v_part.delivery_count - v_refund::integer",
        "v_part.delivery_count",
    ),
    Edit(
        "cancelled records are not suspects",
        "release_of",
        "if p_cancelled or p_refund then",
        "if false then",
    ),
    Edit(
        "the circuit breaker opens",
        "circuit_counts",
        "and v_failed > v_share * v_acknowledged then",
        "and false then",
    ),
    Edit(
        "a failed probe opens it again",
        "circuit_counts",
        "if v_probed > v_share * v_circuit.probe_records then",
        "if false then",
    ),
    Edit(
        "a probe costs no delivery",
        "circuit_counts",
        "perform sharequeue_internal.refund(p_id, p_returning * v_circuit.probe);",
        "",
    ),
    Edit(
        "extended locks last longer",
        "extend_locks",
        "update sharequeue.leases set expires_at = expires_at + p_amount where",
        "update sharequeue.leases set expires_at = expires_at where",
    ),
    Edit(
        "a member's run in another group goes on",
        "release_held",
        "where group_id = p_group_id and next_expiry is not null",
        "where next_expiry is not null",
    ),
)
"""What the issue names, and what else would be silent: each found by the random histories within one ordinary run."""

ORDER_EDITS = (
    Edit(
        "one lease at a time",
        "in_order",
        "elsif exists (select from sharequeue.leases where share_partition_id = v_id) then",
        "elsif false then",
    ),
    Edit(
        "nothing behind a record of unknown key",
        "left_out_in_order",
        "if not p_sp.keys_unknown then",
        "if true then",
    ),
    Edit(
        "what lapses has a key that nobody has reported",
        "lose_keys",
        "set keys_unknown = true where",
        "set keys_unknown = keys_unknown where",
    ),
    Edit(
        "what is released without a key is unknown",
        "keep_order",
        "update sharequeue.share_partitions set keys_unknown = true",
        "update sharequeue.share_partitions set keys_unknown = false",
    ),
    Edit(
        "held records wait for the first of their key",
        "wait_behind",
        ") as b;",
        ") as b where false;",
    ),
    Edit(
        "a released record stops its key",
        "stops",
        "p_record.released or",
        "",
    ),
    Edit(
        "what waits for a finished record is freed",
        "finish_open_keys",
        "if v_keys is not null then",
        "if false then",
    ),
    Edit(
        "a finished record holds its key no longer",
        "keep_order",
        "v_id, v_finished + ",
        "v_id, ",
    ),
    Edit(
        "the key that was reported last counts",
        "other_keys",
        "where r.key_hash is distinct from k.key",
        "where false",
    ),
    Edit(
        "a dead letter holds its key",
        "keep_letters",
        "if v_settings.ordered and v_settings.hold_dead_letters and not p_dropped then",
        "if false then",
    ),
    Edit(
        "nothing fresh while too many keys are open",
        "too_many_keys",
        "p_sp.open_keys >= p_settings.max_open_keys or",
        "",
    ),
    Edit(
        "a lease does not block itself",
        "blocked_behind",
        'and not p_leased @> o."offset"',
        "",
    ),
    Edit(
        "off again, nothing is held",
        "in_order",
        "perform sharequeue_internal.forget_order(v_id, p_at);",
        "null;",
    ),
    Edit(
        "the log start takes keys along",
        "keys_below",
        'and "offset" < p_log_start and',
        "and false and",
    ),
)
"""Each rule of order by key: found by the random histories that have it, within three ordinary runs."""

RULE_EDITS = {
    "R-ST": Edit(
        "exhausted records are given up",
        "acknowledge_parts",
        "v_limit integer := p_settings.delivery_count_limit;",
        "v_limit integer := 1000000;",
    ),
    "R-IN": Edit(
        "a second initialisation changes nothing",
        "initialize",
        "on conflict on constraint share_partitions_name do nothing",
        "on conflict on constraint share_partitions_name do update set spso = excluded.spso, speo = excluded.spso",
    ),
    "R-NF": Edit(
        "in flight is a span",
        "window_room",
        "case when p_settings.ordered",
        "case when true",
    ),
    "R-AQ": Edit(
        "batch_optimized takes the last log batch whole",
        "take_fresh",
        "where b.first <= v_last and b.last >= v_last",
        "where false",
    ),
    "R-TH": Edit(
        "the threshold of the throttle",
        "throttle_from",
        "greatest(2, (p_limit + 1) / 2)",
        "greatest(2, p_limit / 2)",
    ),
    "R-AK": Edit(
        "only the holder may acknowledge",
        "leases_between",
        "member_id = p_member_id and (p_token is null or token = p_token)",
        "p_token is null or token = p_token",
    ),
    "R-RN": Edit(
        "a renewal restarts the lock",
        "renew_offsets",
        "p_at + case when",
        "p_at - interval '10 seconds' + case when",
    ),
    "R-LT": Edit(
        "a lapsed lock at the limit gives up",
        "end_leases_at",
        "p.together > 1) as again",
        "p.together > 1) or true as again",
    ),
    "R-RL": Edit(
        "a released record keeps its count",
        "end_leases_at",
        "set state = t.state, lease_id = null,",
        "set state = t.state, delivery_count = f.delivery_count - 1, lease_id = null,",
    ),
    "R-SO": Edit(
        "SPSO waits for the dead letter",
        "advance_spso",
        "last_offset >= v_sp.spso and state not in (2, 4)",
        "last_offset >= v_sp.spso and state not in (2, 3, 4)",
    ),
    "R-LS": Edit(
        "held records stay held",
        "advance_log_start",
        "if v_part.state = 1 then",
        "if false then",
    ),
    "R-EP": Edit(
        "every alter raises the state epoch",
        "alter_offsets",
        "p_topic, p_partition, p_group_id), v_sp.state_epoch), p_state_epoch)",
        "p_topic, p_partition, p_group_id), v_sp.state_epoch - 1), p_state_epoch)",
    ),
    "R-DL": Edit(
        "rejected records wait for their dead letter",
        "acknowledge_parts",
        "case when p_settings.dead_letters then 3 else 4 end",
        "4",
    ),
    "R-OR": Edit(
        "the reset policy's offset is taken",
        "initialize",
        "p_topic_id, p_state_epoch, p_start_offset, p_start_offset,",
        "p_topic_id, p_state_epoch, 0, 0,",
    ),
    "R-IL": Edit(
        "committed reads end at the last stable offset",
        "read_end",
        "case when p_settings.read_committed then p_sp.last_stable_offset else p_sp.log_end end",
        "p_sp.log_end",
    ),
}
"""By family: what is broken, for at least one marked test to fail."""
