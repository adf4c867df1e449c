-- The members of each group, with the end of their session, their client id, and the principal that joined.
-- A heartbeat in the future, from before the clock was set back, counts as one of now.
create or replace view sharequeue.group_members as
select group_id, member_id, rack_id, member_epoch, client_id, client_host, subscribed_topic_names, joined_at,
    session_expires_at - (greatest(heartbeat_at, c.now) - c.now) as session_expires_at, principal
from (select sharequeue.clock() as now) as c
cross join sharequeue.members;
