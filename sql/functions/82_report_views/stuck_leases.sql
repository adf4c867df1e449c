-- Leases that nobody brings to an end, and why: the lock lapsed ten minutes ago and nothing has settled it, or its member
-- has left the group, or its session has ended, while the lock goes on.
create or replace view sharequeue.stuck_leases as
select l.lease_id, sp.group_id, sp.topic, sp.partition, l.member_id, l.acquired_at, l.expires_at,
    coalesce(f.records, 0)::bigint as records,
    extract(epoch from c.now - l.acquired_at)::double precision as held_seconds,
    case when l.expires_at < c.now - interval '10 minutes' then 'its lock lapsed, and nothing has settled it'
        else 'its member is gone' end as reason
from (select sharequeue.clock() as now) as c
cross join sharequeue.all_leases l
join sharequeue.share_partitions sp using (share_partition_id)
left join sharequeue.members m on m.group_id = sp.group_id and m.member_id = l.member_id
left join lateral (
    select sum(sharequeue.records(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets))) as records
    from sharequeue.all_batches b
    where b.share_partition_id = l.share_partition_id and b.lease_id = l.lease_id
) as f on true
where l.expires_at < c.now - interval '10 minutes'
    or (l.expires_at > c.now and l.member_epoch > 0
        and (m.member_id is null or m.session_expires_at <= c.now));
