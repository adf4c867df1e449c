-- The leases and records that each member holds, and the age of its oldest lease. For monitoring: computed for all
-- members at once.
create or replace view sharequeue.monitored_members as
select sp.group_id, l.member_id, count(distinct l.lease_id) as leases, coalesce(sum(b.records), 0)::bigint as records,
    sharequeue_internal.seconds_since(min(l.acquired_at), c.now) as oldest_lock_seconds
from (select sharequeue.clock() as now) as c
cross join sharequeue.leases l
join sharequeue.share_partitions sp using (share_partition_id)
left join (
    select share_partition_id, lease_id, sum(case when offsets is null then last_offset - first_offset + 1
        when offsets = int8multirange(range_merge(offsets)) then upper(offsets) - lower(offsets)
        else sharequeue.records(offsets) end) as records
    from sharequeue.in_flight_batches where state = 1 group by share_partition_id, lease_id
) as b on b.share_partition_id = l.share_partition_id and b.lease_id = l.lease_id
group by sp.group_id, l.member_id, c.now;
