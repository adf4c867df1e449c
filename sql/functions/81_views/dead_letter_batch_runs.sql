-- Every offset range of every batch of dead letters, with the identity of the batch. Those with written_at have been
-- written to their topic, or were dropped; the others are being written.
create or replace view sharequeue.dead_letter_batch_runs as
select sp.group_id, sp.topic, sp.partition, sp.topic_id, r.sequence, b.opened_at, b.written_at, b.dropped, r.cause,
    r.delivery_count, r.offsets
from sharequeue.dead_letter_runs r
join sharequeue.dead_letter_batches b using (share_partition_id, sequence)
join sharequeue.share_partitions sp using (share_partition_id);
