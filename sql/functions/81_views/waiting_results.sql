-- Accepted rows that are not in the table or topic of their sink yet, by group and sink: how many, when the first of them were
-- acknowledged, the number of the transfer that was begun for some of them (null without one), and why its last attempt could not
-- be finished, and since when.
create or replace view sharequeue.waiting_results as
select o.group_id, o.sink, o.rows, o.oldest_at, case when cardinality(t.locations) > 0 then t.number end as number,
    t.held_reason, t.held_since
from (
    select group_id, sink, sum(records)::bigint as rows, min(acknowledged_at) as oldest_at
    from sharequeue.lease_outputs where starts_with(location, 'sink:pending:') group by group_id, sink
) as o
left join sharequeue.transfers t using (group_id, sink);
