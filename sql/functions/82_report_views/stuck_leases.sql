-- Leases that nobody brings to an end, and why: the lock lapsed ten minutes ago and nothing has settled it, or its member
-- has left the group, or its session has ended, while the lock goes on.
create or replace view sharequeue.stuck_leases as
select h.lease_id, h.group_id, h.topic, h.partition, h.member_id, h.acquired_at, h.expires_at, h.records,
    extract(epoch from sharequeue.clock() - h.acquired_at)::double precision as held_seconds,
    case when h.seconds_left < -600 then 'its lock lapsed, and nothing has settled it'
        else 'its member is gone' end as reason
from sharequeue.held_leases h
where h.seconds_left < -600
    or (h.seconds_left > 0
        and exists (select from sharequeue.all_leases l where l.lease_id = h.lease_id and l.member_epoch > 0)
        and not exists (select from sharequeue.members m where m.group_id = h.group_id and m.member_id = h.member_id
            and m.session_expires_at > sharequeue.clock()));
