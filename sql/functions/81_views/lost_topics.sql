-- Topics that were deleted, and perhaps created again with the same name, since a group began to process them.
-- Nothing is leased from them. topic_id is the topic that the group began with; reason gives the cause and what to
-- do.
create or replace view sharequeue.lost_topics as
select l.group_id, l.topic, l.topic_id,
    overlay(sharequeue_internal.lost_topic(l.group_id, l.topic, l.there) placing 'T' from 1 for 1)
        || '. After deleted.topics.retention.ms the service removes the group''s state of the old topic.' as reason
from (
    select sp.group_id, sp.topic, sp.topic_id, bool_or(t.partitions is null or t.partitions > 0) as there
    from sharequeue.share_partitions sp left join sharequeue.topics t using (topic)
    where sp.status <> 'active' or t.partitions = 0 or t.topic_id <> sp.topic_id
    group by sp.group_id, sp.topic, sp.topic_id
) as l;
