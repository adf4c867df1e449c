-- The figures of each share-partition on each past day; for readers and BI tools.
create or replace view sharequeue.daily_rollups as
select day, group_id, topic, partition, updates, snapshots, leases, entered, accepted_first, lost_records,
    highest_delivery_count, spso, speo, delivery_complete_count, state_epoch
from sharequeue.journal_daily;
