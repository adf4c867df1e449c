-- The oldest unfinished record of each share-partition that has one, and how long it has waited: since the first report
-- that had it in the log, or since its state last changed, whichever is earlier. Both are null if no report has it
-- yet. Its timestamp in the topic is not known here.
create or replace view sharequeue.oldest_records as
select s.group_id, s.topic, s.partition, s.oldest_offset, s.oldest_state, w.waits_since,
    sharequeue_internal.seconds_since(w.waits_since, sharequeue.clock()) as age_seconds
from sharequeue.share_partition_status s
left join lateral (
    select h.reported_at from sharequeue.share_partition_history h
    where h.share_partition_id = s.share_partition_id and h.log_end <= s.oldest_offset
    order by h.reported_at desc limit 1
) as before on true
left join lateral (
    select h.reported_at from sharequeue.share_partition_history h
    where h.share_partition_id = s.share_partition_id and h.log_end > s.oldest_offset
        and h.reported_at > coalesce(before.reported_at, '-infinity')
    order by h.reported_at limit 1
) as seen on true
cross join lateral (select least(seen.reported_at, s.oldest_since) as waits_since) as w
where s.oldest_offset is not null;
