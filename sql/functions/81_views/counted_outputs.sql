-- The outputs that count, because their lease has been acknowledged: the manifest for the readers of a sink. They
-- stay when the share-partition, the topic or the group is deleted.
create or replace view sharequeue.counted_outputs as
select lease_id, group_id, topic, partition, sink, location, records, acknowledged_at, topic_id
from sharequeue.lease_outputs;
