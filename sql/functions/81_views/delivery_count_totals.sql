-- The histogram of delivery counts: the number of all finished records by outcome and delivery count.
create or replace view sharequeue.delivery_count_totals as
select d.share_partition_id, d.outcome, d.delivery_count, d.records, sp.group_id, sp.topic, sp.partition
from sharequeue.delivery_counts d join sharequeue.share_partitions sp using (share_partition_id)
union all
select share_partition_id, 'accepted', 1::smallint, accepted_first, group_id, topic, partition
from sharequeue.share_partitions where accepted_first > 0;
