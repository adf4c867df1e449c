-- The records of each share-partition on each past day, by outcome and delivery count; without those accepted at
-- their first delivery, which daily_rollups has as accepted_first.
create or replace view sharequeue.daily_outcomes as
select o.day, d.group_id, d.topic, d.partition, o.outcome, o.delivery_count, o.records
from sharequeue.journal_daily_outcomes o join sharequeue.journal_daily d using (day, share_partition_id);
