-- The invariants of the design, checked on the live state: one row per violation, none when all is well.
create or replace function sharequeue.verify(p_group_id text default null)
returns table (group_id text, topic text, partition integer, violation text)
language sql stable set search_path = pg_catalog as $$
    with checked as (
        select * from sharequeue.share_partitions sp where p_group_id is null or sp.group_id = p_group_id
    ), sums as (
        select sp.share_partition_id, sum(sharequeue.records(f.offsets)) as added,
            sharequeue.records(range_agg(f.offsets)) as together,
            range_agg(f.offsets) * int8multirange(int8range(sp.spso, null)) as held,
            coalesce(sum(sharequeue.records(f.offsets)) filter (where f.state in (2, 4)), 0) as complete,
            bool_or(f.state in (2, 4) and f.offsets @> sp.spso) as head_is_terminal,
            coalesce(bool_or(f.state in (0, 2, 4) and lower(f.offsets) < sp.spso), false) as below
        from checked sp join sharequeue.in_flight f using (share_partition_id)
        group by sp.share_partition_id, sp.spso
    ), violations as (
        select share_partition_id, 'an offset is in two states at once' as violation from sums where added <> together
        union all
        select sp.share_partition_id, 'the states in flight do not fill [SPSO, SPEO)' from checked sp
        left join sums s using (share_partition_id)
        where coalesce(s.held, '{}') <> case when sp.spso = sp.speo then '{}'::int8multirange
            else int8multirange(int8range(sp.spso, sp.speo)) end
        union all
        select share_partition_id, 'an offset below SPSO is still available or terminal' from sums where below
        union all
        select share_partition_id, 'the record at SPSO is terminal' from sums where head_is_terminal
        union all
        select sp.share_partition_id, 'the delivery-complete count does not match the terminal records in flight'
        from checked sp left join sums s using (share_partition_id)
        where sp.delivery_complete_count <> coalesce(s.complete, 0)
        union all
        select f.share_partition_id, 'a leased record has delivery count 0'
        from sharequeue.in_flight f join checked using (share_partition_id) where f.state = 1 and f.delivery_count < 1
        union all
        select l.share_partition_id, 'a lease holds nothing' from sharequeue.leases l
        join checked using (share_partition_id)
        where not exists (select from sharequeue.in_flight f where f.lease_id = l.lease_id)
        union all
        select f.share_partition_id, 'a record is held under a lease of another share-partition'
        from sharequeue.in_flight f join checked using (share_partition_id) join sharequeue.leases l using (lease_id)
        where l.share_partition_id <> f.share_partition_id
        union all
        select sp.share_partition_id, 'SPSO is past the log end: the log was truncated' from checked sp
        where sp.spso > sp.log_end and sp.observed_at is not null
    )
    select sp.group_id, sp.topic, sp.partition, v.violation
    from violations v join checked sp using (share_partition_id)
$$;
