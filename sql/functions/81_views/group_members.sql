-- Who is in which group, until when its session goes on by itself, by which client id it is known, and as whom it joined.
create or replace view sharequeue.group_members as
select group_id, member_id, rack_id, member_epoch, client_id, client_host, subscribed_topic_names, joined_at,
    session_expires_at, principal
from sharequeue.members;
