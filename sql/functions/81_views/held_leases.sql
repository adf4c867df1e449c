-- The leases, with their holder, start, remaining time, and the isolation level at which they are read. Parts of a
-- lease that were renewed separately have one row each. client_id is null if the member is gone. stuck_reason is the
-- reason why a lease is stuck: its lock lapsed at least ten minutes ago and it was not swept, or its member has left
-- the group or its session has ended while the lock continues; null for other leases. A lock that was taken in the future, before
-- the clock was set back, counts as taken now.
create or replace view sharequeue.held_leases as
select
    l.lease_id, sp.group_id, sp.topic, sp.partition, l.member_id, least(l.acquired_at, c.now) as acquired_at,
    l.expires_at - (greatest(l.locked_at, c.now) - c.now) as expires_at,
    extract(epoch from l.expires_at - greatest(l.locked_at, c.now))::double precision as seconds_left,
    coalesce(f.records, 0)::bigint as records, f.offsets, f.highest_delivery_count,
    sharequeue_internal.isolation_level(l.read_committed) as isolation_level, m.client_id,
    sharequeue_internal.seconds_since(l.acquired_at, c.now) as held_seconds,
    case when l.expires_at < c.now - interval '10 minutes' then 'its lock lapsed, and it was not swept'
        when l.expires_at > c.now and l.member_epoch > 0 and (m.member_id is null or m.session_expires_at <= c.now)
            then 'its member is gone' end as stuck_reason
from (select sharequeue.clock() as now) as c
cross join sharequeue.leases l
join sharequeue.share_partitions sp using (share_partition_id)
left join sharequeue.members m on m.group_id = sp.group_id and m.member_id = l.member_id
-- A left join: Postgres omits it if the query does not use the records.
left join lateral (
    select sum(sharequeue.records(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets))) as records,
        range_agg(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets)) as offsets,
        max(b.delivery_count) as highest_delivery_count
    from sharequeue.in_flight_batches b
    where b.share_partition_id = l.share_partition_id and b.lease_id = l.lease_id
) as f on true;
