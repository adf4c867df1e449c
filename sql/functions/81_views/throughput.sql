-- How fast records ended, between each report and the one before it: so many in so many seconds. What a reset of offsets
-- moves does not count. The first report of a share-partition has nothing before it, and no row.
create or replace view sharequeue.throughput as
select sp.group_id, sp.topic, sp.partition, b.reported_at as since, h.reported_at,
    extract(epoch from h.reported_at - b.reported_at)::double precision as seconds,
    (e.ended - b.ended)::bigint as finished_records,
    ((e.ended - b.ended) / extract(epoch from h.reported_at - b.reported_at))::double precision as records_per_second
from sharequeue.share_partition_history h
join sharequeue.share_partitions sp using (share_partition_id)
cross join lateral (
    select coalesce(sum(c.records), 0) as ended from sharequeue.delivery_count_history c
    where c.share_partition_id = h.share_partition_id and c.reported_at = h.reported_at
) as e
cross join lateral (
    select p.reported_at, (
        select coalesce(sum(c.records), 0) from sharequeue.delivery_count_history c
        where c.share_partition_id = p.share_partition_id and c.reported_at = p.reported_at) as ended
    from sharequeue.share_partition_history p
    where p.share_partition_id = h.share_partition_id and p.reported_at < h.reported_at
    order by p.reported_at desc limit 1
) as b;
