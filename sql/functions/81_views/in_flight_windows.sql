-- The in-flight window of each share-partition, [SPSO, SPEO), by state: the number of records, and the offsets. A
-- state without offsets has no row.
create or replace view sharequeue.in_flight_windows as
select sp.group_id, sp.topic, sp.partition, sp.spso, sp.speo,
    (array['available', 'acquired', 'acknowledged', 'archiving', 'archived'])[b.state + 1] as state,
    sum(sharequeue.records(b.inside))::bigint as records, range_agg(b.inside) as offsets
from sharequeue.share_partitions sp
join lateral (
    select f.state, sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)
        * int8multirange(int8range(sp.spso, sp.speo)) as inside
    from sharequeue.in_flight_batches f where f.share_partition_id = sp.share_partition_id
) as b on not isempty(b.inside)
group by sp.group_id, sp.topic, sp.partition, sp.spso, sp.speo, b.state;
