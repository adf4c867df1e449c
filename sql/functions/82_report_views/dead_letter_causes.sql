-- Dead letters by day (UTC) and cause: how many were written, and how many dropped because they could not be.
create or replace view sharequeue.dead_letter_causes as
select (w.written_at at time zone 'UTC')::date as day, w.group_id, w.topic, w.partition, w.cause, w.delivery_count,
    coalesce(sum(sharequeue.records(w.offsets)) filter (where not w.dropped), 0)::bigint as written_records,
    coalesce(sum(sharequeue.records(w.offsets)) filter (where w.dropped), 0)::bigint as dropped_records
from sharequeue.written_dead_letters w
group by 1, 2, 3, 4, 5, 6;
