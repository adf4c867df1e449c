-- How many records have left each share-partition by way of its dead letters, and whether anybody is there to write them.

-- Records of all batches up to this one, closed with a letter each, or without one where the group drops what cannot be
-- written. Null while the batch is open.
alter table sharequeue.dead_letter_batches
    add column total_letters bigint,
    add column total_dropped bigint;
update sharequeue.dead_letter_batches b set total_letters = t.letters, total_dropped = t.dropped
from (
    select share_partition_id, sequence, sum(records) filter (where not dropped) over o as letters,
        sum(records) filter (where dropped) over o as dropped
    from (
        select c.share_partition_id, c.sequence, c.dropped, coalesce((
            select sum(upper(r) - lower(r)) from sharequeue.dead_letter_runs d, unnest(d.offsets) as r
            where (d.share_partition_id, d.sequence) = (c.share_partition_id, c.sequence)), 0) as records
        from sharequeue.dead_letter_batches c where c.written_at is not null
    ) as c window o as (partition by share_partition_id order by sequence)
) as t
where (b.share_partition_id, b.sequence) = (t.share_partition_id, t.sequence);
update sharequeue.dead_letter_batches set total_letters = coalesce(total_letters, 0), total_dropped = coalesce(total_dropped, 0)
where written_at is not null;

-- Whether the replica writes dead letters by itself.
alter table sharequeue.service_replicas add column drains boolean not null default false;
drop function if exists sharequeue.hear_replica(text, interval);
