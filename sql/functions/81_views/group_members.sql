-- The members of each group, with the end of their session, their client id, and the principal that joined.
create or replace view sharequeue.group_members as
select group_id, member_id, rack_id, member_epoch, client_id, client_host, subscribed_topic_names, joined_at,
    session_expires_at, principal
from sharequeue.members;
