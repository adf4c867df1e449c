-- What was accepted stays when its share-partition goes: a deleted topic or group took the manifest of its output along, and
-- the next sweep of the files found leases that nobody knew. The topic id says of which life of a topic it is.
drop view if exists sharequeue.counted_outputs;
alter table sharequeue.lease_outputs
    add column group_id text, add column topic text, add column partition integer, add column topic_id text;
update sharequeue.lease_outputs o
set group_id = sp.group_id, topic = sp.topic, partition = sp.partition, topic_id = sp.topic_id
from sharequeue.share_partitions sp where sp.share_partition_id = o.share_partition_id;
alter table sharequeue.lease_outputs
    alter column group_id set not null, alter column topic set not null, alter column partition set not null,
    alter column topic_id set not null, drop column share_partition_id;
create index lease_outputs_by_sink on sharequeue.lease_outputs (group_id, sink);
