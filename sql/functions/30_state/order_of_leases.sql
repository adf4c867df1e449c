-- Leasing under order by key (order_by_key.sql). A share-partition has one open lease. Nothing is leased at or above the lowest
-- open record whose key was not reported, unless the lease takes this record too: so what lapses or is given back without
-- keys is safe.

-- Returns a locked share-partition as it is to be leased from; null if nothing may be leased under order by key, because a lease
-- is open. Where the group is not ordered (any more), held records are freed, and nothing is known of keys.
create or replace function sharequeue_internal.in_order(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_at timestamptz
) returns sharequeue.share_partitions
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_id bigint := p_sp.share_partition_id;
    v_sp sharequeue.share_partitions := p_sp;
begin
    if not p_settings.ordered then
        perform sharequeue_internal.forget_order(v_id, p_at);
    elsif exists (select from sharequeue.leases where share_partition_id = v_id) then
        return null;
    else
        if p_sp.open_key_records > 0 and not p_settings.hold_dead_letters then
            perform sharequeue_internal.finish_open_keys(v_id, (
                select coalesce(range_agg(int8range("offset", "offset" + 1)), '{}') from sharequeue.open_key_records
                where share_partition_id = v_id and letter is not null), p_at, true);
        end if;
        if not p_sp.keys_unknown or not isempty(sharequeue_internal.unknown_keys(v_id)) then
            return v_sp;
        end if;
        update sharequeue.share_partitions set keys_unknown = false where share_partition_id = v_id;
    end if;
    select * into v_sp from sharequeue.share_partitions where share_partition_id = v_id;
    return v_sp;
end
$$;

-- Forgets all keys, and frees held records. Records that were released keep their own times.
create or replace function sharequeue_internal.forget_order(p_id bigint, p_at timestamptz) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_freed record;
begin
    for v_freed in
        select case when until > p_at then until end as until, range_agg(int8range("offset", "offset" + 1)) as offsets
        from sharequeue.open_key_records where share_partition_id = p_id and key_hash is not null group by 1
    loop
        perform sharequeue_internal.set_wait(p_id, v_freed.offsets, v_freed.until);
    end loop;
    delete from sharequeue.open_key_records where share_partition_id = p_id;
    update sharequeue.share_partitions set keys_unknown = true where share_partition_id = p_id;
end
$$;

-- Returns the available and archiving records whose keys are not known.
create or replace function sharequeue_internal.unknown_keys(p_id bigint) returns int8multirange
language sql stable as $$
    select coalesce(range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)), '{}') - (
        select coalesce(range_agg(int8range("offset", "offset" + 1)), '{}') from sharequeue.open_key_records
        where share_partition_id = p_id)
    from sharequeue.in_flight_batches where share_partition_id = p_id and state in (0, 3)
$$;

-- Returns the available records that may be delivered now.
create or replace function sharequeue_internal.deliverable(p_id bigint, p_at timestamptz) returns int8multirange
language sql stable as $$
    select coalesce(range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)), '{}')
    from sharequeue.in_flight_batches
    where share_partition_id = p_id and state = 0 and (not_before is null or not_before <= p_at)
$$;

-- Returns the offsets that a lease leaves out: those of the caller, and under order by key also the records behind them with the
-- same keys, and everything from the first record on whose key is not known and which the lease does not take. A lease takes the
-- records of one kind (take_fan_out), in the order of their offsets.
create or replace function sharequeue_internal.left_out_in_order(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_leave_out int8multirange, p_at timestamptz
) returns int8multirange
language plpgsql stable as $$
declare
    v_id bigint := p_sp.share_partition_id;
    v_leave_out int8multirange := p_leave_out;
    v_unknown int8multirange;
    v_next record;
    v_kind int8multirange;
begin
    if not p_settings.ordered then
        return p_leave_out;
    end if;
    if p_sp.open_key_records > 0 and not isempty(p_leave_out) then
        v_leave_out := v_leave_out + sharequeue_internal.held_behind(v_id, p_leave_out);
    end if;
    if not p_sp.keys_unknown then
        return v_leave_out;
    end if;
    v_unknown := sharequeue_internal.unknown_keys(v_id);
    v_leave_out := v_leave_out + sharequeue_internal.from_first(
        v_unknown - (sharequeue_internal.deliverable(v_id, p_at) - v_leave_out));
    select * into v_next from sharequeue_internal.next_part(
        v_id, p_at, sharequeue_internal.left_out(p_sp, p_settings, v_leave_out));
    if v_next.first_offset is null then
        return v_leave_out;
    end if;
    select coalesce(range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)), '{}') into v_kind
    from sharequeue.in_flight_batches
    where share_partition_id = v_id and state = 0 and isolate is not distinct from v_next.isolate
        and (isolate is null or delivery_count = v_next.delivery_count);
    return v_leave_out + sharequeue_internal.from_first(v_unknown - v_kind);
end
$$;

-- Returns everything from the first offset of a set on; empty for an empty set.
create or replace function sharequeue_internal.from_first(p_offsets int8multirange) returns int8multirange
language sql immutable parallel safe as $$
    select case when isempty(p_offsets) then '{}' else int8multirange(int8range(lower(p_offsets), null)) end
$$;

-- Returns the records behind those of a set that have the same keys. (Behind a record that stops its key all wait already.)
create or replace function sharequeue_internal.held_behind(p_id bigint, p_offsets int8multirange) returns int8multirange
language sql stable set enable_seqscan = off as $$
    select coalesce(range_agg(int8range(b."offset", b."offset" + 1)), '{}')
    from (
        -- The first of each key once: looked for by every record, a key of n records could be read n times.
        select o.key_hash, min(o."offset") as first from sharequeue_internal.open_records_at(p_id, p_offsets) as o
        where not sharequeue_internal.stops(o) and o.key_hash is not null
        group by o.key_hash
    ) as a
    cross join lateral (
        select o."offset" from sharequeue.open_key_records o
        where o.share_partition_id = p_id and o.key_hash = a.key_hash and o."offset" > a.first offset 0) as b
$$;

-- Returns how many fresh records a lease may have under order by key: none behind a record that is left out because of its key,
-- and none while too many keys are open.
create or replace function sharequeue_internal.fresh_in_order(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_leave_out int8multirange, p_wanted bigint,
    p_at timestamptz
) returns bigint
language sql stable as $$
    select case when upper_inf(p_leave_out) or sharequeue_internal.too_many_keys(p_sp, p_settings) then 0
        else sharequeue_internal.fresh_records(p_sp, p_settings, p_wanted, p_at) end
$$;

-- Returns whether so many keys are open that no fresh records are leased (sharequeue.order.max.open.keys), or ten times as many
-- records.
create or replace function sharequeue_internal.too_many_keys(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings
) returns boolean
language sql immutable parallel safe as $$
    select p_sp.open_keys >= p_settings.max_open_keys or p_sp.open_key_records >= 10 * p_settings.max_open_keys
$$;

-- Returns for each of these leases of an ordered group which keys are blocked: the first open record of the key that is not in
-- the lease, if it is below the last offset of the lease. Records of the key behind it must be held. With p_hashes, only those
-- of these keys, which is faster for a lease of few records. p_group_id's leases have no row if the group is not ordered. untils
-- is null where the record may be delivered now, and where its time is not known.
create or replace function sharequeue.blocked_keys(p_group_id text, p_tokens uuid[], p_hashes uuid[] default null)
returns table (token uuid, key_hashes uuid[], first_offsets bigint[], untils timestamptz[])
language plpgsql stable set search_path = pg_catalog set enable_seqscan = off as $$
declare
    v_lease record;
    v_offsets int8multirange;
    v_blocked sharequeue.open_key_records[];
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the tokens', p_tokens);
    if not coalesce((select s.ordered from sharequeue.group_settings s where s.group_id = p_group_id), false) then
        return;
    end if;
    for v_lease in
        select l.token, sp.share_partition_id, sp.open_key_records, array_agg(l.lease_id) as lease_ids
        from sharequeue.share_partitions sp
        join sharequeue.leases l using (share_partition_id)
        where sp.group_id = p_group_id and l.token = any (p_tokens)
        group by l.token, sp.share_partition_id
    loop
        v_blocked := null;
        if v_lease.open_key_records > 0 then
            select range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)) into v_offsets
            from sharequeue.in_flight_batches f where f.lease_id = any (v_lease.lease_ids);
            v_blocked := case when p_hashes is null
                then sharequeue_internal.blocked_behind(v_lease.share_partition_id, v_offsets)
                else sharequeue_internal.blocked_among(v_lease.share_partition_id, v_offsets, p_hashes) end;
        end if;
        token := v_lease.token;
        select coalesce(array_agg(b.key_hash), '{}'), coalesce(array_agg(b."offset"), '{}'),
            coalesce(array_agg(b.until), '{}')
        into key_hashes, first_offsets, untils from unnest(v_blocked) as b;
        return next;
    end loop;
end
$$;

-- Returns the first open record of every key that is below the end of a lease and not in it.
create or replace function sharequeue_internal.blocked_behind(p_id bigint, p_leased int8multirange)
returns sharequeue.open_key_records[]
language sql stable set enable_seqscan = off as $$
    select array(
        select row(f.*)::sharequeue.open_key_records from (
            select distinct on (o.key_hash) o.* from sharequeue.open_key_records o
            where o.share_partition_id = p_id and o.key_hash is not null and o."offset" < upper(p_leased)
                and not p_leased @> o."offset"
            order by o.key_hash, o."offset") as f)
$$;

-- The same for these keys.
create or replace function sharequeue_internal.blocked_among(p_id bigint, p_leased int8multirange, p_hashes uuid[])
returns sharequeue.open_key_records[]
language sql stable set enable_seqscan = off as $$
    select array(
        select row(f.*)::sharequeue.open_key_records
        from (select distinct h.key_hash from unnest(p_hashes) as h (key_hash)) as k
        cross join lateral (
            select o.* from sharequeue.open_key_records o
            where o.share_partition_id = p_id and o.key_hash = k.key_hash and o."offset" < upper(p_leased)
                and not p_leased @> o."offset"
            order by o.share_partition_id, o.key_hash, o."offset" limit 1) as f)
$$;
