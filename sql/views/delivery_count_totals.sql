-- The histogram of delivery counts: how many records ended how, after how many deliveries; ever.
create or replace view sharequeue.delivery_count_totals as
select share_partition_id, outcome, delivery_count, records from sharequeue.delivery_counts
union all
select share_partition_id, 'accepted', 1::smallint, accepted_first from sharequeue.share_partitions
where accepted_first > 0;
