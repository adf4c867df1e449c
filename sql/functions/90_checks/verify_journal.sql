-- Checks that a replay gives exactly the current state: one row per share-partition, snapshot and table if it does
-- not. p_snapshots is the number of latest snapshots of each to replay from. One statement reads all
-- share-partitions, so each is seen at one point in time.
create or replace function sharequeue.verify_journal(p_group_id text default null, p_snapshots integer default 1)
returns table (group_id text, topic text, partition integer, journal_id bigint, differs text)
language sql stable set search_path = pg_catalog as $$
    with starts as (
        select sp.share_partition_id as id, sp.group_id, sp.topic, sp.partition, s.journal_id
        from sharequeue.share_partitions sp
        left join lateral (
            select s.journal_id from sharequeue.journal_snapshots s where s.share_partition_id = sp.share_partition_id
            order by s.journal_id desc
            limit sharequeue_internal.check_between('the number of snapshots', p_snapshots, 1, 2147483647)) as s on true
        where p_group_id is null or sp.group_id = p_group_id
    )
    select s.group_id, s.topic, s.partition, s.journal_id, d.differs
    from starts s cross join lateral (
        select 'there is no snapshot' as differs where s.journal_id is null
        union all
        select 'share_partitions' where s.journal_id is not null and (
            select row(sp.spso, sp.speo, sp.delivery_complete_count, sp.accepted_first, sp.lost_records,
                sp.dead_letter_sequence, sp.next_expiry, sp.state_epoch, sp.redeliverable, sp.advance_due, sp.keys_unknown, sp.status,
                sp.paused_reason, sp.topic_id)
            from sharequeue.share_partitions sp where sp.share_partition_id = s.id
        ) is distinct from (
            select row(r.spso, r.speo, r.delivery_complete_count, r.accepted_first, r.lost_records,
                r.dead_letter_sequence, r.next_expiry, r.state_epoch, r.redeliverable, r.advance_due, r.keys_unknown, r.status,
                r.paused_reason, r.topic_id)
            from sharequeue.replay_share_partition(s.id, s.journal_id) as r)
        union all
        select 'in_flight_batches' where s.journal_id is not null and exists (
            select from (
                select f.first_offset, f.last_offset, f.part, f.state, f.delivery_count, f.lease_id, f.isolate,
                    f.not_before, f.cause, f.offsets
                from sharequeue.in_flight_batches f where f.share_partition_id = s.id
            ) as f full join sharequeue.replay_batches(s.id, s.journal_id) as r
                on r.first_offset = f.first_offset and r.part = f.part
            where f is distinct from r)
        union all
        select 'leases' where s.journal_id is not null and exists (
            select from (
                select l.lease_id, l.member_id, l.member_epoch, l.token, l.lock_duration_ms, l.acquired_at, l.locked_at,
                    l.expires_at, l.fan_out, l.own_lock_duration, l.read_committed
                from sharequeue.leases l where l.share_partition_id = s.id
            ) as l full join sharequeue.replay_leases(s.id, s.journal_id) as r on r.lease_id = l.lease_id
            where l is distinct from r)
        union all
        select 'open_key_records' where s.journal_id is not null and exists (
            select from (
                select o."offset", o.key_hash, o.since, o.until, o.archiving, o.letter, o.released from sharequeue.open_key_records o
                where o.share_partition_id = s.id
            ) as o full join sharequeue.replay_open_keys(s.id, s.journal_id) as r on r."offset" = o."offset"
            where o is distinct from r)
        union all
        select 'delivery_counts' where s.journal_id is not null and exists (
            select from (
                select d.outcome, d.delivery_count, d.records from sharequeue.delivery_counts d
                where d.share_partition_id = s.id
            ) as d full join sharequeue.replay_outcomes(s.id, s.journal_id) as r
                on r.outcome = d.outcome and r.delivery_count = d.delivery_count
            where d is distinct from r)
    ) as d
$$;
