-- Topics that were deleted, and perhaps made again under their names, since a group began on them. Nothing of them is leased.
-- topic_id is the topic that the group has begun on; reason says what has happened and what to do.
create or replace view sharequeue.lost_topics as
select l.group_id, l.topic, l.topic_id,
    format(case when l.there
        then 'Topic %1$s was deleted and made again. What group %2$s has done is of the old topic, and nothing of the new one '
            'is leased. To begin with the new one, stop the members of the group and run `sharequeue offsets reset --group '
            '%2$s --topic %1$s --to-earliest --execute`.'
        else 'Topic %1$s was deleted: nothing of it is left for group %2$s. Create it again, or subscribe to it no more.' end
        || ' After deleted.topics.retention.ms the service removes what the group has of the old topic.',
        l.topic, l.group_id) as reason
from (
    select sp.group_id, sp.topic, sp.topic_id, bool_or(t.partitions is null or t.partitions > 0) as there
    from sharequeue.share_partitions sp left join sharequeue.topics t using (topic)
    where sp.status <> 'active' or t.partitions = 0 or t.topic_id <> sp.topic_id
    group by sp.group_id, sp.topic, sp.topic_id
) as l;
