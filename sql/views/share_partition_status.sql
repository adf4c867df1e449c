-- Every figure of a share-partition that people ask for, as of now. Lag is KIP-1226's: log end − SPSO − delivery
-- complete count, and 0 where the log was cut below SPSO.
create or replace view sharequeue.share_partition_status as
select
    sp.share_partition_id, sp.group_id, sp.topic, sp.partition, sp.topic_id, sp.status, sp.state_epoch,
    sp.spso, sp.speo, sp.log_start, sp.log_end, sp.last_stable_offset, sp.observed_at, sp.delivery_complete_count,
    greatest(0, sp.log_end - sp.spso - sp.delivery_complete_count) as lag,
    sp.speo - sp.spso as in_flight,
    f.available, f.acquired, f.archiving, sp.lost_records,
    f.highest_delivery_count, l.leases, l.next_expiry, f.waiting,
    coalesce(sp.paused_reason, g.paused_reason) as paused_reason,
    case when sp.observed_at is not null and sp.log_end < sp.spso + sp.delivery_complete_count
        then 'the log ends at ' || sp.log_end || ', below what was delivered: it was truncated' end as fault
from sharequeue.share_partitions sp
join sharequeue.group_settings g using (group_id)
cross join lateral (
    select
        coalesce(sum(n) filter (where state = 0), 0)::bigint as available,
        coalesce(sum(n) filter (where state = 1), 0)::bigint as acquired,
        coalesce(sum(n) filter (where state = 3), 0)::bigint as archiving,
        coalesce(sum(n) filter (where state = 0 and not_before > sharequeue.clock()), 0)::bigint as waiting,
        coalesce(max(delivery_count) filter (where state in (0, 1, 3)), 0) as highest_delivery_count
    from sharequeue.in_flight_batches b,
        sharequeue.records(sharequeue.offsets_of(b.first_offset, b.last_offset, b.offsets)) as n
    where b.share_partition_id = sp.share_partition_id
) as f
cross join lateral (
    select count(distinct token) as leases, min(expires_at) as next_expiry
    from sharequeue.leases where share_partition_id = sp.share_partition_id
) as l;
