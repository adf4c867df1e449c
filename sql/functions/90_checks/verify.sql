-- Checks the invariants of the live state: one row per violation, none if there is no fault. Violations that concern all groups
-- have no group, topic and partition.
create or replace function sharequeue.verify(p_group_id text default null)
returns table (group_id text, topic text, partition integer, violation text)
language sql stable set search_path = pg_catalog as $$
    with checked as (
        select * from sharequeue.share_partitions sp where p_group_id is null or sp.group_id = p_group_id
    ), parts as (
        select sp.share_partition_id, sp.spso, sp.speo, f.first_offset, f.last_offset, f.part, f.state,
            f.delivery_count, f.lease_id, f.isolate, f.not_before, f.cause,
            sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) as offsets,
            row(f.state, f.delivery_count, f.lease_id, f.isolate, f.not_before, f.cause)::text as kind
        from checked sp join sharequeue.in_flight_batches f using (share_partition_id)
    ), batches as (
        select share_partition_id, spso, speo, first_offset, max(last_offset) as last_offset,
            min(last_offset) <> max(last_offset) as torn,
            sum(sharequeue.records(offsets)) as added, range_agg(offsets) as together,
            count(*) <> count(distinct kind) as doubled,
            bool_or(state = 0 and lower(offsets) < spso) as below,
            bool_and(state in (2, 4)) as terminal,
            bool_or(state in (2, 4) and offsets @> spso) as head_is_terminal,
            coalesce(sum(sharequeue.records(offsets * int8multirange(int8range(spso, null))))
                filter (where state in (2, 4)), 0) as complete
        from parts group by share_partition_id, spso, speo, first_offset
    ), ordered as (
        select *, lag(last_offset) over (partition by share_partition_id order by first_offset) as before from batches
    ), violations as (
        select share_partition_id, 'an offset is in two states at once' as violation from ordered
        where added <> sharequeue.records(together) or before >= first_offset
        union all
        select share_partition_id, 'a batch has two rows of one state' from ordered where doubled
        union all
        select share_partition_id, 'the states of a batch do not fill it' from ordered
        where torn or together * int8multirange(int8range(spso, null))
            <> int8multirange(int8range(first_offset, last_offset + 1)) * int8multirange(int8range(spso, null))
            or not together <@ int8multirange(int8range(first_offset, last_offset + 1))
        union all
        select share_partition_id, 'a batch lies at or past SPEO' from ordered where last_offset >= speo
        union all
        select share_partition_id, 'an offset below SPSO is still available, or a finished batch still exists'
        from ordered where below or (terminal and last_offset < spso)
        union all
        select o.share_partition_id, 'the record at SPSO is terminal' from ordered o
        join checked sp using (share_partition_id) where o.head_is_terminal and not sp.advance_due
        union all
        select sp.share_partition_id, 'no batch is in flight between SPSO and SPEO' from checked sp
        where sp.spso < sp.speo and not exists (select from parts p where p.share_partition_id = sp.share_partition_id
            and p.last_offset >= sp.spso)
        union all
        select sp.share_partition_id, 'the delivery-complete count does not match the terminal records in flight'
        from checked sp
        where sp.delivery_complete_count <> coalesce((
            select sum(o.complete) from ordered o where o.share_partition_id = sp.share_partition_id), 0)
        union all
        select share_partition_id, 'a leased record has delivery count 0' from parts
        where state = 1 and delivery_count < 1
        union all
        select share_partition_id, 'a row of a batch has impossible values' from parts
        where state not between 0 and 4 or delivery_count < 0 or first_offset < 0 or isempty(offsets)
            or (state = 1) <> (lease_id is not null) or (isolate is not null and (isolate < 1 or state <> 0))
            or (not_before is not null and state <> 0)
            or (state = 3 and cause is distinct from 'rejected' and cause is distinct from 'exhausted')
            or cause not in ('rejected', 'exhausted', 'gap')
        union all
        select sp.share_partition_id, 'a share-partition has impossible values' from checked sp
        where not (0 <= sp.spso and sp.spso <= sp.speo and sp.delivery_complete_count >= 0 and sp.partition >= 0)
            or sp.status not in ('active', 'topic_recreated')
        union all
        select sp.share_partition_id, 'a record is redeliverable, but the share-partition is not marked so' from checked sp
        where not sp.redeliverable and exists (
            select from parts p where p.share_partition_id = sp.share_partition_id and p.state = 0)
        union all
        select c.share_partition_id, 'a circuit breaker has impossible values' from sharequeue.circuit_breakers c
        join checked using (share_partition_id)
        -- A probe of gaps and held records only is over, and waits for the next one.
        where c.state not in ('closed', 'open', 'probing')
            or isempty(c.probe) <> (c.state <> 'probing' or c.probe_records = 0)
            or (c.state <> 'closed') <> (c.retry_at is not null) or c.failed > c.records or c.failed < 0
        union all
        select l.share_partition_id, 'a lease holds no record' from sharequeue.leases l
        join checked using (share_partition_id)
        where not exists (select from sharequeue.in_flight_batches f where f.lease_id = l.lease_id)
        union all
        select l.share_partition_id, 'a lock lapses before the next expiry of its share-partition' from sharequeue.leases l
        join checked sp using (share_partition_id) where sp.next_expiry is null or l.expires_at < sp.next_expiry
        union all
        select k.share_partition_id, 'kept records were never delivered, or have impossible values'
        from sharequeue.kept_records k join checked sp using (share_partition_id)
        where k.past > sp.speo or isempty(k.offsets)
            or (k.first_offset, k.past) is distinct from (lower(k.offsets), upper(k.offsets))
        union all
        select s.share_partition_id, 'there is lag, nothing can be leased, and the reason is unknown'
        from sharequeue.share_partition_status s join checked using (share_partition_id) where s.blocked_by = 'unknown'
        union all
        select v.share_partition_id, v.violation from sharequeue_internal.violations_of_order(p_group_id) as v
        union all
        select p.share_partition_id, 'a record is held under a lease of another share-partition, or one that does not exist' from parts p
        where p.state = 1 and not exists (select from sharequeue.leases l
            where l.lease_id = p.lease_id and l.share_partition_id = p.share_partition_id)
    )
    select sp.group_id, sp.topic, sp.partition, v.violation
    from violations v join checked sp using (share_partition_id)
    union all
    select null, null, null, format('sequence %s is behind: its next value is %s, and %s is used already. Run '
        '`sharequeue state raise-epochs --execute`, which sets it', b.sequence, b.next, b.used)
    from sharequeue.sequences_behind() as b
$$;

-- The same for order by key.
create or replace function sharequeue_internal.violations_of_order(p_group_id text)
returns table (share_partition_id bigint, violation text)
language sql stable as $$
    with checked as (
        select sp.*, o.offsets as open from sharequeue.share_partitions sp
        cross join lateral (
            select coalesce(range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)), '{}') as offsets
            from sharequeue.in_flight_batches f where f.share_partition_id = sp.share_partition_id and f.state in (0, 1, 3)) as o
        where (p_group_id is null or sp.group_id = p_group_id) and (sp.open_key_records > 0 or not sp.keys_unknown or exists (
            select from sharequeue.open_key_records r where r.share_partition_id = sp.share_partition_id))
    )
    select c.share_partition_id, 'the key of a record is open, but the record is finished' from checked c
    where exists (select from sharequeue.open_key_records r
        where r.share_partition_id = c.share_partition_id and r.letter is null and not c.open @> r."offset")
    union all
    select c.share_partition_id, 'the numbers of open keys and of their records are wrong' from checked c
    cross join lateral (
        select count(*) as records, count(distinct r.key_hash) as keys from sharequeue.open_key_records r
        where r.share_partition_id = c.share_partition_id) as n
    where c.open_key_records <> n.records or c.open_keys <> n.keys
    union all
    select c.share_partition_id, 'the key of an open record is not known, but the share-partition is not marked so' from checked c
    where not c.keys_unknown and not isempty(sharequeue_internal.unknown_keys(c.share_partition_id))
    union all
    select c.share_partition_id, 'a record is held, but no earlier record of its key is open' from checked c
    where exists (
        select from sharequeue.in_flight_batches f
        where f.share_partition_id = c.share_partition_id and f.state = 0 and f.not_before = sharequeue_internal.no_time()
            and not sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) <@ (
                select coalesce(range_agg(int8range(r."offset", r."offset" + 1)), '{}') from sharequeue.open_key_records r
                where r.share_partition_id = c.share_partition_id and sharequeue_internal.is_stopped(r)))
$$;
