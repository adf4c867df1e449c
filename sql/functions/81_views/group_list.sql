-- The share groups, with their state and number of members, as kafka-share-groups.sh lists them, and the time of
-- their creation.
create or replace view sharequeue.group_list as
select g.group_id, case when count(m.member_id) > 0 then 'Stable' else 'Empty' end as state, count(m.member_id) as members,
    g.created_at
from sharequeue.share_groups g left join sharequeue.members m using (group_id) group by g.group_id;
