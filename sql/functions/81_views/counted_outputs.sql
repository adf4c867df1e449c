-- The outputs that count: each one's lease has been acknowledged. The manifest that a sink's readers go by.
create or replace view sharequeue.counted_outputs as
select o.lease_id, sp.group_id, sp.topic, sp.partition, o.sink, o.location, o.records, o.acknowledged_at
from sharequeue.lease_outputs o join sharequeue.share_partitions sp using (share_partition_id);
