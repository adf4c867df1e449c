-- The figures of share-partitions over time, as recorded by record_report; for readers and BI tools.
create or replace view sharequeue.share_partition_reports as
select h.reported_at, sp.group_id, sp.topic, sp.partition, h.spso, h.speo, h.log_start, h.log_end, h.lag, h.acquired,
    h.available, h.archiving, h.delivery_complete_count
from sharequeue.share_partition_history h join sharequeue.share_partitions sp using (share_partition_id);
