-- The current figures of each share group. finished_records are those that ended in the last window_seconds: since the oldest
-- report of the last hour, or since a share-partition was created in that hour. throughput is their number per second, and
-- time_to_drain_seconds the time for the lag at that rate. They are null if they are not known: without either, and the last
-- two also if no record ended. The time is also null while records are held behind dead letters, because they wait for an operator.
-- Without lag it is 0. oldest_age_seconds is that of oldest_records.
create or replace view sharequeue.group_figures as
select f.group_id, f.share_partitions, f.lag, f.in_flight, f.available, f.acquired, f.archiving, f.waiting,
    f.delivery_complete_count, f.lost_records, f.accepted, f.rejected, f.exhausted, f.gap, f.leases, f.stuck_leases,
    f.oldest_age_seconds, f.finished_records, f.window_seconds,
    case when f.finished_records > 0 then f.finished_records / f.window_seconds end as throughput,
    case when f.lag = 0 then 0 when f.held_by_letters then null
        when f.finished_records > 0 then f.lag * f.window_seconds / f.finished_records end as time_to_drain_seconds,
    f.suspects, f.held_records, f.open_keys, f.letter_keys, f.open_seconds,
    f.results_waiting, f.results_oldest_seconds, f.results_held
from (
    select g.group_id, count(s.share_partition_id) as share_partitions, coalesce(sum(s.lag), 0)::bigint as lag,
        coalesce(sum(s.in_flight), 0)::bigint as in_flight, coalesce(sum(s.available), 0)::bigint as available,
        coalesce(sum(s.acquired), 0)::bigint as acquired, coalesce(sum(s.archiving), 0)::bigint as archiving,
        coalesce(sum(s.waiting), 0)::bigint as waiting, coalesce(sum(s.suspects), 0)::bigint as suspects,
        coalesce(sum(s.delivery_complete_count), 0)::bigint as delivery_complete_count,
        coalesce(sum(s.lost_records), 0)::bigint as lost_records, coalesce(sum(s.accepted), 0)::bigint as accepted,
        coalesce(sum(s.rejected), 0)::bigint as rejected, coalesce(sum(s.exhausted), 0)::bigint as exhausted,
        coalesce(sum(s.gap), 0)::bigint as gap, coalesce(sum(s.leases), 0)::bigint as leases,
        coalesce(sum(s.held_records), 0)::bigint as held_records, coalesce(sum(s.open_keys), 0)::bigint as open_keys,
        coalesce(sum(s.letter_keys), 0)::bigint as letter_keys,
        coalesce(bool_or(s.letter_keys > 0 and exists (
            select from sharequeue_internal.open_keys_of(s.share_partition_id) as k
            where k.is_letter and k.held_records > 0)), false) as held_by_letters,
        extract(epoch from sharequeue.clock() - min(s.open_since))::double precision as open_seconds,
        (select count(l.stuck_reason) from sharequeue.held_leases l where l.group_id = g.group_id) as stuck_leases,
        (select coalesce(sum(w.rows), 0)::bigint from sharequeue.waiting_results w where w.group_id = g.group_id)
            as results_waiting,
        (select extract(epoch from sharequeue.clock() - min(w.oldest_at))::double precision
            from sharequeue.waiting_results w where w.group_id = g.group_id) as results_oldest_seconds,
        (select count(w.held_reason) from sharequeue.waiting_results w where w.group_id = g.group_id) as results_held,
        (select max(o.age_seconds) from sharequeue.oldest_records o where o.group_id = g.group_id)
            as oldest_age_seconds,
        sum(s.accepted + s.rejected + s.exhausted + s.gap - b.ended)::bigint as finished_records,
        extract(epoch from sharequeue.clock() - min(b.reported_at))::double precision as window_seconds
    from sharequeue.share_groups g
    left join sharequeue.share_partition_status s using (group_id)
    left join lateral (
        select e.reported_at, e.ended from (
            select h.reported_at, (
                select coalesce(sum(c.records), 0) from sharequeue.delivery_count_history c
                where c.share_partition_id = h.share_partition_id and c.reported_at = h.reported_at) as ended
            from sharequeue.share_partition_history h
            where h.share_partition_id = s.share_partition_id
                and h.reported_at between sharequeue.clock() - interval '1 hour'
                    and sharequeue.clock() - interval '1 second'
            union all
            select j.at, 0
            from sharequeue.journal_snapshots n join sharequeue.journal j using (share_partition_id, journal_id)
            where n.share_partition_id = s.share_partition_id and j.kind = 'initialized'
                and n.taken_at between sharequeue.clock() - interval '1 hour' and sharequeue.clock() - interval '1 second'
        ) as e
        order by e.reported_at limit 1
    ) as b on true
    group by g.group_id
) as f;
