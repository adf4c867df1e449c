-- The figures of each share-partition for monitoring, computed for all at once. Columns with the names of
-- share_partition_status are the same figures. in_flight_batches counts batches; released, renewed and lapsed are
-- records that an acknowledgement released or renewed, or whose lock lapsed; letters and letter_batches have been
-- written to the dead-letter topic. oldest_waits_seconds is the least time that the oldest unfinished record has
-- waited: since its state last changed, or since the report of an hour or 25 hours ago, if that had it in the log;
-- null if neither is known. condition is one word.
create or replace view sharequeue.monitored_share_partitions as
select sp.share_partition_id, sp.group_id, sp.topic, sp.partition, sp.spso, sp.speo, sp.log_start, sp.log_end,
    greatest(0, sp.log_end - sp.spso - sp.delivery_complete_count) as lag, sp.lost_records,
    coalesce(b.batches, 0)::bigint as in_flight_batches, coalesce(b.available, 0)::bigint as available,
    coalesce(b.acquired, 0)::bigint as acquired, coalesce(b.archiving, 0)::bigint as archiving,
    sp.accepted_first + coalesce(o.accepted, 0)::bigint as accepted, coalesce(o.rejected, 0)::bigint as rejected,
    coalesce(o.exhausted, 0)::bigint as exhausted, coalesce(o.gap, 0)::bigint as gap,
    coalesce(v.released, 0)::bigint as released, coalesce(v.renewed, 0)::bigint as renewed,
    coalesce(v.lapsed, 0)::bigint as lapsed,
    coalesce(d.total_letters, 0) as letters, coalesce(d.total_dropped, 0) as dropped_letters,
    coalesce(d.batches, 0) as letter_batches,
    case when k.reason is not null and b.archiving > 0 then b.archiving else 0 end::bigint as held_letters,
    case when k.reason is not null and b.archiving > 0
        then sharequeue_internal.seconds_since(k.since, at.now) end as held_seconds,
    h.oldest_offset,
    sharequeue_internal.seconds_since(least(w.since, r.reported_at), at.now) as oldest_waits_seconds,
    sharequeue_internal.seconds_unheard(greatest(sp.observed_at, seen.observed_at), at.now) as observed_seconds,
    case when sp.status <> 'active' then 'topic_recreated' when t.topic is not null then 'topic_deleted'
        when coalesce(sp.paused_reason, g.paused_reason) is not null then 'paused'
        when c.state <> 'closed' and g.breaker_percent > 0 then 'breaker_open'
        when k.reason is not null and b.archiving > 0 then 'dead_letters_held'
        when cut.share_partition_id is not null
            or (sp.observed_at is not null and sp.log_end < sp.spso + sp.delivery_complete_count) then 'log_truncated'
        else 'active' end as condition,
    coalesce(y.held_records, 0)::bigint as held_records, coalesce(y.open_keys, 0)::bigint as open_keys,
    coalesce(y.letter_keys, 0)::bigint as letter_keys,
    sharequeue_internal.seconds_since(y.open_since, at.now) as open_seconds
from (select sharequeue.clock() as now) as at
cross join sharequeue.share_partitions sp
join sharequeue.group_settings g using (group_id)
left join sharequeue.observations seen using (group_id, topic)
left join sharequeue.gone_topics t on t.topic = sp.topic and t.topic_id = sp.topic_id
left join sharequeue.circuit_breakers c using (share_partition_id)
left join sharequeue.held_dead_letters k using (share_partition_id)
left join sharequeue.truncated_logs cut using (share_partition_id)
left join (
    select f.share_partition_id, count(distinct f.first_offset) as batches,
        sum(f.records) filter (where f.state = 0) as available, sum(f.records) filter (where f.state = 1) as acquired,
        sum(f.records) filter (where f.state = 3) as archiving,
        -- Compared by the offset alone, which is the first element and differs between any two of them.
        min(array[f.lowest, f.state, f.lease_id]) filter (where f.lowest is not null and f.state in (0, 1, 3))
            as oldest
    from (
        select b.share_partition_id, b.first_offset, b.state, b.lease_id,
            -- One range is counted in C; records() is for sets of several.
            case when b.offsets is null then b.last_offset - b.first_offset + 1
                when b.offsets = int8multirange(range_merge(b.offsets)) then upper(b.offsets) - lower(b.offsets)
                else sharequeue.records(b.offsets) end as records,
            case when b.offsets is null then case when b.last_offset >= p.spso then greatest(b.first_offset, p.spso) end
                when b.state in (0, 1, 3) then lower(sharequeue_internal.offsets_from(b.offsets, p.spso)) end as lowest
        from sharequeue.in_flight_batches b join sharequeue.share_partitions p using (share_partition_id)
    ) as f
    group by f.share_partition_id
) as b using (share_partition_id)
left join (
    select share_partition_id, sum(records) filter (where outcome = 'accepted') as accepted,
        sum(records) filter (where outcome = 'rejected') as rejected,
        sum(records) filter (where outcome = 'exhausted') as exhausted, sum(records) filter (where outcome = 'gap') as gap
    from sharequeue.delivery_counts group by share_partition_id
) as o using (share_partition_id)
left join (
    select share_partition_id, sum(records) filter (where event = 'released') as released,
        sum(records) filter (where event = 'renewed') as renewed, sum(records) filter (where event = 'lapsed') as lapsed
    from sharequeue.record_events group by share_partition_id
) as v using (share_partition_id)
left join lateral (
    select l.total_letters, l.total_dropped, l.sequence as batches from sharequeue.dead_letter_batches l
    where l.share_partition_id = sp.share_partition_id and l.written_at is not null order by l.sequence desc limit 1
) as d on sp.dead_letter_sequence > 0
cross join lateral (
    select coalesce(b.oldest[1], case when sp.speo < sp.log_end then sp.speo end) as oldest_offset,
        case when b.oldest[1] is not null then b.oldest[2] end as state
) as h
left join lateral (
    select case h.state
        when 1 then (select a.acquired_at from sharequeue.leases a
            where a.share_partition_id = sp.share_partition_id and a.lease_id = b.oldest[3] limit 1)
        when 3 then (select e.opened_at from sharequeue.dead_letter_batches e
            where e.share_partition_id = sp.share_partition_id and e.written_at is null) end as since
) as w on h.state in (1, 3)
left join lateral (
    select min(n.reported_at) as reported_at
    -- More than a day, so that an age of more than a day is seen although reports are up to an hour apart.
    from (values (interval '1 hour'), (interval '25 hours')) as a (ago)
    cross join lateral (
        select y.reported_at, y.log_end from sharequeue.share_partition_history y
        where y.share_partition_id = sp.share_partition_id and y.reported_at >= at.now - a.ago
        order by y.reported_at limit 1
    ) as n
    where n.log_end > h.oldest_offset
) as r on h.oldest_offset is not null
left join lateral (
    select sum(o.held_records) as held_records, count(*) as open_keys, count(*) filter (where o.is_letter) as letter_keys,
        min(o.since) as open_since
    from sharequeue_internal.open_keys_of(sp.share_partition_id) as o
) as y on sp.open_keys > 0;
