"""Check what the SQL says of each share-partition that has lag: it can be leased now, or why not.

One statement, cheap enough to ask after every step: it works out from the rows whether something can be leased, by
the rules of an acquire, and returns what differs from `leasing_blocked`. Nothing is acquired; `liveness` does that.
"""

from __future__ import annotations

NOT_LIVE = """
select format('%s %s-%s: blocked by %s (%s) until %s, at %s; it can %sbe leased from', sp.group_id, sp.topic,
    sp.partition, coalesce(b.blocked_by, 'nothing'), b.blocked_reason, b.blocked_until, seen.at,
    case when can.lease then '' else 'not ' end)
from (select sharequeue.clock() as at, sharequeue_internal.no_time() as no_time) as seen
cross join sharequeue.share_partitions sp
join sharequeue.group_settings g using (group_id)
left join sharequeue.circuit_breakers c using (share_partition_id)
left join sharequeue.gone_topics t on t.topic = sp.topic and t.topic_id = sp.topic_id
cross join lateral sharequeue_internal.leasing_blocked(sp, g, c, t.topic is not null, null) as b
cross join lateral (
    select case when g.read_committed then sp.last_stable_offset else sp.log_end end as past
) as readable
cross join lateral (
    select
        coalesce(bool_or(p.state = 0 and p.free
            and p.offsets && int8multirange(int8range(null, readable.past))), false) as again,
        coalesce(bool_or(p.state = 1 and p.whole && c.probe), false) as probed,
        coalesce(min(lower(p.offsets)) filter (where p.state in (0, 1, 3)), sp.speo) as unfinished,
        coalesce(sum(sharequeue.records(p.offsets)) filter (where p.state = 0 and not p.free), 0) as waiting,
        min(lower(p.offsets * int8multirange(int8range(null, readable.past))))
            filter (where p.state = 0 and p.free) as first,
        min(lower(p.whole - known.offsets)) filter (where p.state in (0, 3)) as unknown,
        coalesce(bool_or(p.state = 1), false) as leased,
        coalesce(sum(sharequeue.records(p.offsets)) filter (where p.state in (0, 1, 3)), 0) as open
    from (select coalesce(range_agg(int8range(k."offset", k."offset" + 1)), '{}') as offsets
        from sharequeue.open_key_records k where k.share_partition_id = sp.share_partition_id) as known
    cross join (
        select f.state, coalesce(own.until <= seen.at, true) as free, own.whole,
            own.whole * int8multirange(int8range(sp.spso, null)) as offsets
        from sharequeue.in_flight_batches f
        cross join lateral (
            select sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) as whole
        ) as b
        -- Held records have their own times again when order by key is off.
        cross join lateral (
            select f.not_before, b.whole where g.ordered or f.not_before is distinct from seen.no_time
            union all
            select k.until, int8multirange(int8range(k."offset", k."offset" + 1)) from sharequeue.open_key_records k
            where not g.ordered and f.not_before = seen.no_time
                and k.share_partition_id = sp.share_partition_id and b.whole @> k."offset"
        ) as own (until, whole)
        where f.share_partition_id = sp.share_partition_id
    ) as p
) as w
cross join lateral (
    select sp.status = 'active' and t.topic is null and coalesce(sp.paused_reason, g.paused_reason) is null
        and (g.breaker_percent = 0 or c.state is null or c.state = 'closed'
            or c.state = 'open' and (c.retry_at <= seen.at
                or c.retry_at > seen.at + g.breaker_open_ms * interval '1 millisecond')
            or c.state = 'probing' and not w.probed)
        and (w.again or readable.past > sp.speo and g.max_record_locks
            > case when g.ordered then w.open else sp.speo - case when sp.advance_due then w.unfinished
                else sp.spso end end - w.waiting)
        -- In order by key: one lease at a time, and nothing behind a record of unknown key.
        and (not g.ordered or not w.leased and case when w.again then coalesce(w.first <= w.unknown, true)
            else w.unknown is null and sp.open_keys < g.max_open_keys
                and sp.open_key_records < 10 * g.max_open_keys end) as lease
) as can
where sp.log_end > sp.spso + sp.delivery_complete_count and sp.group_id = any (coalesce($1, array[sp.group_id]))
    -- What a lock that has lapsed comes to is known when it is settled.
    and not exists (select from sharequeue.leases l
        where l.share_partition_id = sp.share_partition_id and l.expires_at <= seen.at)
    and (can.lease <> (b.blocked_by is null) or b.blocked_by = 'unknown' or b.blocked_until <= seen.at
        or (b.blocked_by is null) <> (b.blocked_reason is null))
"""
"""One line of text for each share-partition whose reason is not true; $1 are the groups, null is all."""

NOT_LIVE_FUNCTION = f"""
create function public.not_live(text[]) returns setof text language plpgsql stable as $$
begin
    return query {NOT_LIVE};
end
$$;
"""
"""The same as a function, whose plan is kept; all of a call is of one moment."""
