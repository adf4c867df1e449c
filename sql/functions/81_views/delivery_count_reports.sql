-- The histogram of delivery counts over time, as recorded by record_report: the number of finished records by
-- outcome and delivery count.
create or replace view sharequeue.delivery_count_reports as
select h.reported_at, sp.group_id, sp.topic, sp.partition, h.outcome, h.delivery_count, h.records
from sharequeue.delivery_count_history h join sharequeue.share_partitions sp using (share_partition_id);
