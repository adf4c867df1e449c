-- Share-partitions without state: a member of the group subscribes to the topic, or the group has state of other partitions
-- of it, and the service knows its partitions, but they are not initialised yet, for example because they have had no leader.
-- So they have no start offset and no lag.
create or replace view sharequeue.awaited_share_partitions as
select w.group_id, t.topic, p.partition
from (
    select m.group_id, s.topic from sharequeue.members m cross join lateral unnest(m.subscribed_topic_names) as s (topic)
    union
    select sp.group_id, sp.topic from sharequeue.share_partitions sp join sharequeue.topics t using (topic, topic_id)
) as w
join sharequeue.topics t on t.topic = w.topic
cross join lateral generate_series(0, t.partitions - 1) as p (partition)
where not exists (select from sharequeue.share_partitions sp
    where sp.group_id = w.group_id and sp.topic = t.topic and sp.partition = p.partition);
