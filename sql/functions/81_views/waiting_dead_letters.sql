-- Share-partitions with dead letters that are not written yet, and how many records each has.
create or replace view sharequeue.waiting_dead_letters as
select sp.group_id, sp.topic, sp.partition, w.records
from sharequeue.share_partitions sp
cross join lateral (
    select sum(sharequeue.records(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets)))::bigint as records
    from sharequeue.in_flight_batches b where b.share_partition_id = sp.share_partition_id and b.state = 3
) as w
where exists (
    select from sharequeue.in_flight_batches b where b.share_partition_id = sp.share_partition_id and b.state = 3);
