-- Dead letters that could not be written, with the reason and the time: an operator must act.
create or replace view sharequeue.dead_letters_held as
select sp.group_id, sp.topic, sp.partition, w.records, h.reason, h.since
from sharequeue.held_dead_letters h
join sharequeue.share_partitions sp using (share_partition_id)
cross join lateral (
    select coalesce(sum(sharequeue.records(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets))), 0)::bigint
        as records
    from sharequeue.in_flight_batches b where b.share_partition_id = h.share_partition_id and b.state = 3
) as w
where w.records > 0;
