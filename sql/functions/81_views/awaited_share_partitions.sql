-- Share-partitions without state: a member of the group subscribes to the topic, and the service knows its
-- partitions, but they are not initialised yet. So they have no start offset and no lag.
create or replace view sharequeue.awaited_share_partitions as
select distinct m.group_id, t.topic, p.partition
from sharequeue.members m
cross join lateral unnest(m.subscribed_topic_names) as s (topic)
join sharequeue.topics t on t.topic = s.topic
cross join lateral generate_series(0, t.partitions - 1) as p (partition)
where not exists (select from sharequeue.share_partitions sp
    where sp.group_id = m.group_id and sp.topic = t.topic and sp.partition = p.partition);
