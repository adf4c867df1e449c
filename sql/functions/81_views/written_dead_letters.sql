-- Every run of dead letters that has reached its topic, or was dropped.
create or replace view sharequeue.written_dead_letters as
select sp.group_id, sp.topic, sp.partition, r.sequence, r.cause, r.delivery_count, r.offsets, b.written_at, b.dropped
from sharequeue.dead_letter_runs r
join sharequeue.dead_letter_batches b using (share_partition_id, sequence)
join sharequeue.share_partitions sp using (share_partition_id)
where b.written_at is not null;
