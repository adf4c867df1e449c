-- Who holds what, since when, for how long still, and at which isolation level it is read. Parts of a lease that were renewed apart are one row each.
create or replace view sharequeue.held_leases as
select
    l.lease_id, sp.group_id, sp.topic, sp.partition, l.member_id, l.acquired_at, l.expires_at,
    extract(epoch from l.expires_at - sharequeue.clock())::double precision as seconds_left,
    coalesce(f.records, 0)::bigint as records, f.offsets, f.highest_delivery_count,
    sharequeue_internal.isolation_level(l.read_committed) as isolation_level
from sharequeue.all_leases l join sharequeue.share_partitions sp using (share_partition_id)
cross join lateral (
    select sum(sharequeue.records(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets))) as records,
        range_agg(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets)) as offsets,
        max(b.delivery_count) as highest_delivery_count
    from sharequeue.all_batches b
    where b.share_partition_id = l.share_partition_id and b.lease_id = l.lease_id
) as f;
