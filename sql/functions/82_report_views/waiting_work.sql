-- The work that a run would find now in each share-partition. ready_records are those that it could lease: fresh
-- ones up to the limit of records in flight, released ones whose back-off has passed, and those whose lock has
-- lapsed. unwritten_letters are dead letters that no service writes and that are not held. waiting_records still
-- wait for their back-off. blocked_by, blocked_reason, blocked_until and blocked_offset are those of
-- share_partition_status: the reason why nothing can be leased.
create or replace view sharequeue.waiting_work as
select s.group_id, s.topic, s.partition, s.lag,
    case when s.blocked_by is null then s.available - s.waiting + f.fresh + l.lapsed else 0 end as ready_records,
    case when k.reason is null and not sharequeue.service_writes_letters() then s.archiving else 0 end as unwritten_letters,
    case when k.reason is not null then s.archiving else 0 end as held_letters,
    s.waiting as waiting_records, s.waiting_until, s.acquired - l.lapsed as acquired_records, s.blocked_reason,
    s.spso, s.speo, s.log_end, s.delivery_complete_count, s.highest_delivery_count, s.observed_at, d.letters_written_at,
    s.blocked_by, s.blocked_until, s.blocked_offset
from sharequeue.share_partition_status s
join sharequeue.share_partitions sp using (share_partition_id)
join sharequeue.group_settings g on g.group_id = sp.group_id
left join sharequeue.held_dead_letters k on k.share_partition_id = sp.share_partition_id
cross join lateral (
    select greatest(0, least(
        sharequeue_internal.read_end(sp, g) - sp.speo,
        sharequeue_internal.window_room(
            sp, g, case when sp.advance_due then least(s.oldest_offset, sp.speo) else sp.spso end, s.waiting))) as fresh
) as f
cross join lateral (
    select coalesce(sum(sharequeue.records(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets))), 0)::bigint
        as lapsed
    from sharequeue.in_flight_batches b join sharequeue.leases a using (share_partition_id, lease_id)
    where b.share_partition_id = sp.share_partition_id and b.state = 1 and a.expires_at <= sharequeue.clock()
) as l
left join lateral (
    select w.written_at as letters_written_at from sharequeue.dead_letter_batches w
    where w.share_partition_id = sp.share_partition_id and w.written_at is not null order by w.sequence desc limit 1
) as d on true;
