-- Who holds what, since when, and for how long still. Parts of a lease that were renewed apart are one row each.
create or replace view sharequeue.held_leases as
select
    l.lease_id, sp.group_id, sp.topic, sp.partition, l.member_id, l.acquired_at, l.expires_at,
    extract(epoch from l.expires_at - sharequeue.clock())::double precision as seconds_left,
    (select coalesce(sum(sharequeue.records(sharequeue.offsets_of(f.first_offset, f.last_offset, f.offsets))), 0)::bigint
        from sharequeue.in_flight_batches f where f.lease_id = l.lease_id) as records
from sharequeue.leases l join sharequeue.share_partitions sp using (share_partition_id);
