-- The open keys of groups that are ordered by key. state is that of the first open record: available, waiting, leased, archiving,
-- or dead_letter, whose letter was neither redriven nor discarded. held_records wait behind it. Order by since and limit the rows:
-- the state is only read of the rows that are returned.
create or replace view sharequeue.open_keys as
select sp.group_id, sp.topic, sp.partition, k.key_hash, k.first_offset,
    case when k.is_letter then 'dead_letter' else (
        select case f.state when 1 then 'leased' when 3 then 'archiving' when 0 then
            case when f.not_before > sharequeue.clock() then 'waiting' else 'available' end end
        from sharequeue.in_flight_batches f
        where f.share_partition_id = sp.share_partition_id and f.first_offset = (
                select max(b.first_offset) from sharequeue.in_flight_batches b
                where b.share_partition_id = sp.share_partition_id and b.first_offset <= k.first_offset)
            and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) @> k.first_offset
    ) end as state,
    k.since, k.until, k.held_records
from sharequeue.share_partitions sp
cross join lateral (select o.* from sharequeue_internal.open_keys_of(sp.share_partition_id) as o where sp.open_keys > 0) as k;

-- The dead letters that hold their keys (sharequeue.order.on.dead.letter = hold), by the batch that wrote them: the offsets of
-- their source records. dead_letter_batch_runs has the rest of the batch.
create or replace view sharequeue.holding_letters as
select sp.share_partition_id, sp.group_id, sp.topic, sp.partition, r.letter as sequence,
    range_agg(int8range(r."offset", r."offset" + 1)) as offsets
from sharequeue.open_key_records r join sharequeue.share_partitions sp using (share_partition_id)
where r.letter is not null
group by sp.share_partition_id, r.letter;
