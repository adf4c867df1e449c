-- The current figures of each share-partition. Lag is that of KIP-1226: log end − SPSO − delivery-complete count, and 0 if
-- the log was truncated below SPSO. oldest_offset is the lowest offset that is neither acknowledged nor archived;
-- oldest_since, the time since which it has its state, is known while it is leased (since the acquire) or in an open
-- dead-letter batch (since that was opened). accepted, rejected, exhausted and gap add up to all records that ended. Of the
-- rejected and exhausted ones, no_dlq had no dead-letter topic, dropped_letters were dropped because their letters could not
-- be written, and the others are letters. Lost records did not end, and are counted separately. If there is lag and nothing
-- can be leased, blocked_by is the reason as one word, and blocked_reason as a sentence; blocked_until is when this may
-- change, if it is known, and blocked_offset is the blocking record. Suspects are available records whose last delivery ended
-- without an acknowledgement. truncated_to is where the log once ended below delivered records, until the offsets are reset.
create or replace view sharequeue.share_partition_status as
select
    sp.share_partition_id, sp.group_id, sp.topic, sp.partition, sp.topic_id, sp.status, sp.state_epoch,
    sp.spso, sp.speo, sp.log_start, sp.log_end, sp.last_stable_offset,
    case when sp.observed_at is not null then greatest(sp.observed_at, seen.observed_at) end as observed_at,
    sp.delivery_complete_count,
    greatest(0, sp.log_end - sp.spso - sp.delivery_complete_count) as lag,
    sp.speo - sp.spso as in_flight,
    f.available, f.acquired, f.archiving, sp.lost_records,
    f.highest_delivery_count, l.leases, l.next_expiry, f.waiting, o.oldest_offset, o.oldest_state, o.oldest_since,
    coalesce(sp.paused_reason, g.paused_reason, c.reason) as paused_reason,
    case when sp.status = 'topic_recreated' then sharequeue_internal.lost_topic(sp.group_id, sp.topic, true)
        when t.topic is not null then sharequeue_internal.lost_topic(sp.group_id, sp.topic, false) || '. Since '
            || to_char(t.gone_since at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ' the broker has no topic of the id '
            || sp.topic_id
        when sp.observed_at is null then null
        when sp.log_end >= sp.spso + sp.delivery_complete_count then sharequeue_internal.truncated_log(cut)
        when sp.speo = sp.spso then 'the group starts at ' || sp.spso || ', after the end of the log, ' || sp.log_end
            || ': the log was truncated, or the group was reset to it. Nothing before that offset is delivered'
        else 'the log ends at ' || sp.log_end || ', below delivered records: it was truncated' end as fault,
    sp.accepted_first + e.accepted as accepted, e.rejected, e.exhausted, e.gap,
    e.rejected + e.exhausted - coalesce(d.total_letters + d.total_dropped, 0) as no_dlq,
    coalesce(d.total_dropped, 0) as dropped_letters,
    held.reason as held_reason,
    f.waiting_until, b.blocked_by, b.blocked_reason, b.blocked_until, b.blocked_offset, f.suspects,
    cut.log_end as truncated_to,
    coalesce(keys.held_records, 0) as held_records, keys.open_keys, keys.letter_keys, keys.open_offset, keys.open_since
from sharequeue.share_partitions sp
join sharequeue.group_settings g using (group_id)
left join sharequeue.observations seen using (group_id, topic)
left join sharequeue.gone_topics t on t.topic = sp.topic and t.topic_id = sp.topic_id
left join sharequeue.truncated_logs cut using (share_partition_id)
cross join lateral (
    select
        coalesce(sum(n) filter (where state = 0), 0)::bigint as available,
        coalesce(sum(n) filter (where state = 1), 0)::bigint as acquired,
        coalesce(sum(n) filter (where state = 3), 0)::bigint as archiving,
        coalesce(sum(n) filter (where state = 0 and not_before > sharequeue.clock()), 0)::bigint as waiting,
        min(not_before) filter (where state = 0 and not_before > sharequeue.clock()
            and not_before < sharequeue_internal.no_time()) as waiting_until,
        coalesce(max(delivery_count) filter (where state in (0, 1, 3)), 0) as highest_delivery_count,
        coalesce(sum(n) filter (where state = 0 and isolate is not null), 0)::bigint as suspects
    from sharequeue.in_flight_batches b,
        sharequeue.records(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets)) as n
    where b.share_partition_id = sp.share_partition_id
) as f
cross join lateral (
    select count(distinct token) as leases, min(expires_at) as next_expiry
    from sharequeue.leases where share_partition_id = sp.share_partition_id
) as l
left join lateral (
    select
        h.at as oldest_offset,
        case h.state when 0 then 'available' when 1 then 'acquired' when 3 then 'archiving' else 'fresh' end
            as oldest_state,
        case h.state when 1 then (select acquired_at from sharequeue.leases
            where share_partition_id = sp.share_partition_id and lease_id = h.lease_id)
            when 3 then (select opened_at from sharequeue.dead_letter_batches d
                where d.share_partition_id = sp.share_partition_id and d.written_at is null) end as oldest_since
    from (
        select i.state, i.lease_id,
            lower(sharequeue_internal.offsets_of(i.first_offset, i.last_offset, i.offsets)
                * int8multirange(int8range(sp.spso, null))) as at
        from sharequeue.in_flight_batches i
        where i.share_partition_id = sp.share_partition_id and i.state in (0, 1, 3) and i.last_offset >= sp.spso
        union all
        select null, null, sp.speo where sp.speo < sp.log_end
    ) as h
    where h.at is not null order by h.at limit 1
) as o on true
left join lateral (
    select 'circuit breaker ' || c.state || ': ' || c.reason
        || case when c.state = 'open' then '; a probe is due from ' || to_char(c.retry_at at time zone 'UTC',
            'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ' on' else '' end as reason
    from sharequeue.circuit_breakers c
    where c.share_partition_id = sp.share_partition_id and g.breaker_percent > 0 and c.state <> 'closed'
) as c on true
cross join lateral (
    select coalesce(sum(records) filter (where outcome = 'accepted'), 0)::bigint as accepted,
        coalesce(sum(records) filter (where outcome = 'rejected'), 0)::bigint as rejected,
        coalesce(sum(records) filter (where outcome = 'exhausted'), 0)::bigint as exhausted,
        coalesce(sum(records) filter (where outcome = 'gap'), 0)::bigint as gap
    from sharequeue.delivery_counts where share_partition_id = sp.share_partition_id
) as e
left join lateral (
    select total_letters, total_dropped from sharequeue.dead_letter_batches
    where share_partition_id = sp.share_partition_id and written_at is not null order by sequence desc limit 1
) as d on true
cross join lateral (
    select sum(o.held_records)::bigint as held_records, count(*) as open_keys, count(*) filter (where o.is_letter) as letter_keys,
        (array_agg(o.first_offset order by o.since, o.first_offset))[1] as open_offset, min(o.since) as open_since
    from sharequeue_internal.open_keys_of(sp.share_partition_id) as o
    where sp.open_keys > 0
) as keys
left join sharequeue.held_dead_letters k on k.share_partition_id = sp.share_partition_id
left join sharequeue.circuit_breakers cb on cb.share_partition_id = sp.share_partition_id
cross join lateral (
    select case when f.archiving = 0 then null
        when k.reason is not null then 'dead letters are held: ' || k.reason
        when not (select sharequeue.service_writes_letters()) then 'no service writes the dead letters: the next run of a job writes them, or'
            ' `sharequeue serve`, or `sharequeue dlq write --group ' || sp.group_id || ' --execute`' end as reason
) as held
left join lateral (
    select w.* from sharequeue_internal.leasing_blocked(sp, g, cb, t.topic is not null, held.reason) as w
    where sp.log_end > sp.spso + sp.delivery_complete_count
) as b on true;
