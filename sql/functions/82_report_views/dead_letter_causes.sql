-- Dead letters by day (UTC) and cause: the numbers of written ones, and of those that were dropped because they
-- could not be written.
create or replace view sharequeue.dead_letter_causes as
select (w.written_at at time zone 'UTC')::date as day, w.group_id, w.topic, w.partition, w.cause, w.delivery_count,
    coalesce(sum(sharequeue.records(w.offsets)) filter (where not w.dropped), 0)::bigint as written_records,
    coalesce(sum(sharequeue.records(w.offsets)) filter (where w.dropped), 0)::bigint as dropped_records
from sharequeue.dead_letter_batch_runs w
where w.written_at is not null
group by 1, 2, 3, 4, 5, 6;
