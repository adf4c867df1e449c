-- Order by key (sharequeue.order = key): a record is accepted only when no record of its share-partition with the same key and
-- a lower offset is open, that is available, acquired or archiving. Only workers know keys. So a share-partition has one open
-- lease at a time, and the table open_key_records has the keys that workers have reported, of records that they did not accept.
-- acknowledge_many keeps them (keep_order), acquire_many leases by them (order_of_leases.sql), and whatever finishes a record
-- removes its row (finish_open_keys). The caller has locked the share-partition.

-- Returns whether the later records of its key are held until this open record is finished: a worker has released it, its dead
-- letter is being written, or its dead letter holds the key. Behind a record that was only held itself nothing waits: all of
-- them are leased together. So a try of a record that fails again and again costs no more than that record, however many are
-- held behind it. (With 10^5 held records that were leased with each try, a try took Postgres 10 s.)
create or replace function sharequeue_internal.stops(p_record sharequeue.open_key_records) returns boolean
language sql immutable parallel safe as $$
    select p_record.released or p_record.archiving or p_record.letter is not null
$$;

-- Returns the rows of these records. Range by range: from the first to the last offset, there may be 10^5 other open records.
create or replace function sharequeue_internal.open_records_at(p_id bigint, p_offsets int8multirange)
returns setof sharequeue.open_key_records
language sql stable set enable_seqscan = off as $$
    select r.* from unnest(p_offsets) as run
    cross join lateral (
        select o.* from sharequeue.open_key_records o
        where o.share_partition_id = p_id and o."offset" >= coalesce(lower(run), 0)
            and o."offset" < coalesce(upper(run), 9223372036854775807) offset 0) as r
$$;

-- Returns the reported keys of a lease.
create or replace function sharequeue_internal.keys_of(p_keys jsonb) returns sharequeue_internal.key_offsets[]
language plpgsql stable as $$
begin
    if p_keys is null or p_keys = '[]' then
        return '{}';
    elsif jsonb_path_exists(p_keys, '$[*] ? (@.type() != "object" || !exists(@.key) || !exists(@.offsets))') then
        raise exception 'a key is not valid: expected "key", a UUID or null, and "offsets", an int8multirange'
            using errcode = 'SQ042';
    end if;
    -- Only here: a block with an exception is a subtransaction.
    begin
        return array(
            select row((k->>'key')::uuid, (k->>'offsets')::int8multirange)::sharequeue_internal.key_offsets
            from jsonb_array_elements(p_keys) as k);
    exception when data_exception then
        raise exception 'a key is not valid: expected "key", a UUID or null, and "offsets", an int8multirange: %', sqlerrm
            using errcode = 'SQ042';
    end;
end
$$;

-- Returns what is wrong with the reported keys of an acknowledgement; null if nothing is.
create or replace function sharequeue_internal.keys_fault(
    p_acknowledgements sharequeue.acknowledgements, p_keys sharequeue_internal.key_offsets[]
) returns text
language plpgsql immutable as $$
declare
    v_hold int8multirange := (p_acknowledgements).hold;
    v_keyed int8multirange;
    v_together int8multirange;
    v_records bigint;
begin
    if p_keys = '{}' and isempty(v_hold) then
        return null;
    end if;
    select coalesce(range_agg(k.offsets) filter (where k.key is not null), '{}'), coalesce(range_agg(k.offsets), '{}'),
        coalesce(sum(sharequeue.records(k.offsets)), 0)
    into v_keyed, v_together, v_records from unnest(p_keys) as k;
    if not v_hold <@ v_keyed then
        return format('held offset %s has no key: give the key of every held record in p_keys. Records without a key are not held',
            lower(v_hold - v_keyed));
    elsif exists (select from unnest(p_keys) as k where k.offsets is null) then
        return 'a key has no offsets: expected an int8multirange';
    elsif not v_together <@ ((p_acknowledgements).release + (p_acknowledgements).reject + v_hold) then
        return format('offset %s has a key, but is not released, rejected or held: give only the keys of these',
            lower(v_together - (p_acknowledgements).release - (p_acknowledgements).reject - v_hold));
    elsif sharequeue.records(v_together) <> v_records then
        return 'an offset has two keys: give every offset once in p_keys';
    end if;
    return null;
end
$$;

-- Keeps the open keys after an acknowledgement, whose changes have been made. p_from and p_last are the batches that it named.
create or replace function sharequeue_internal.keep_order(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_acknowledgements sharequeue.acknowledgements,
    p_keys sharequeue_internal.key_offsets[], p_from bigint, p_last bigint, p_at timestamptz
) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_id bigint := p_sp.share_partition_id;
    v_finished int8multirange := (p_acknowledgements).accept + (p_acknowledgements).gap;
    v_named int8multirange := (p_acknowledgements).release + (p_acknowledgements).reject + (p_acknowledgements).hold;
    v_open int8multirange := v_named;
    v_keys sharequeue_internal.key_offsets[] := case when p_settings.ordered then p_keys else '{}' end;
    v_unknown int8multirange;
begin
    if not isempty(v_named) and not p_settings.dead_letters then
        select coalesce(range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)), '{}') * v_named into v_open
        from sharequeue.in_flight_batches
        where share_partition_id = v_id and first_offset between p_from and p_last and state = 0;
        v_finished := v_finished + (v_named - v_open);
    end if;
    if p_sp.open_key_records > 0 then
        perform sharequeue_internal.finish_open_keys(
            v_id, v_finished + sharequeue_internal.other_keys(v_id, v_keys), p_at);
        v_keys := v_keys || sharequeue_internal.known_keys(v_id, v_open, v_keys);
    end if;
    if v_keys <> '{}' then
        perform sharequeue_internal.wait_behind(v_id, sharequeue_internal.add_open_keys(v_id, v_keys, v_open,
            (p_acknowledgements).release + (p_acknowledgements).reject, p_from, p_last, p_at), v_keys);
    end if;
    if not p_sp.keys_unknown and not isempty(v_open) then
        select v_open - coalesce(range_agg(int8range(r."offset", r."offset" + 1)), '{}') into v_unknown
        from sharequeue_internal.open_records_at(v_id, v_open) as r;
        update sharequeue.share_partitions set keys_unknown = true
        where share_partition_id = v_id and not isempty(v_unknown);
    end if;
end
$$;

-- Returns the records of which another key was reported earlier. Only a handler that has returned a wrong hash does so: the last
-- word counts, and what was held behind them under the other key is freed.
create or replace function sharequeue_internal.other_keys(p_id bigint, p_keys sharequeue_internal.key_offsets[])
returns int8multirange
language sql stable set enable_seqscan = off as $$
    select coalesce(range_agg(int8range(r."offset", r."offset" + 1)), '{}')
    from unnest(p_keys) as k
    cross join lateral sharequeue_internal.open_records_at(p_id, k.offsets) as r
    where r.key_hash is distinct from k.key
$$;

-- Returns the keys of open records that were reported earlier and not now: their rows change as if they were named.
create or replace function sharequeue_internal.known_keys(
    p_id bigint, p_open int8multirange, p_keys sharequeue_internal.key_offsets[]
) returns sharequeue_internal.key_offsets[]
language sql stable set enable_seqscan = off as $$
    select array(
        select row(r.key_hash, range_agg(int8range(r."offset", r."offset" + 1)))::sharequeue_internal.key_offsets
        from sharequeue_internal.open_records_at(
            p_id, p_open - (select coalesce(range_agg(k.offsets), '{}') from unnest(p_keys) as k)) as r
        where r.letter is null group by r.key_hash)
$$;

-- Adds rows for open records with their keys, or updates them. p_failed were released or rejected: that stays so until they are
-- finished, also if they are held later. Returns the keys with a record that stops them now and did not before.
create or replace function sharequeue_internal.add_open_keys(
    p_id bigint, p_keys sharequeue_internal.key_offsets[], p_open int8multirange, p_failed int8multirange, p_from bigint,
    p_last bigint, p_at timestamptz
) returns uuid[]
language sql volatile set enable_seqscan = off as $$
    with parts as materialized (
        select state = 3 as archiving, not_before,
            range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)) * p_open as offsets
        from sharequeue.in_flight_batches
        where share_partition_id = p_id and first_offset between p_from and p_last and state in (0, 3)
        group by state = 3, not_before
    ), named as materialized (
        select k.key, generate_series(lower(run), upper(run) - 1) as at_offset
        from unnest(p_keys) as k cross join lateral unnest(k.offsets) as run
    ), before as materialized (
        select n.at_offset from named n cross join lateral (
            select sharequeue_internal.stops(o) as stops from sharequeue.open_key_records o
            where o.share_partition_id = p_id and o."offset" = n.at_offset offset 0) as r
        where p_failed @> n.at_offset and r.stops
    ), added as (
        insert into sharequeue.open_key_records as o (share_partition_id, "offset", key_hash, since, until, archiving, released)
        select p_id, n.at_offset, n.key, p_at, p.not_before, p.archiving, p_failed @> n.at_offset
        from named n join parts p on p.offsets @> n.at_offset
        order by n.at_offset
        on conflict on constraint open_key_records_pkey do update
        set until = excluded.until, archiving = excluded.archiving, released = o.released or excluded.released
        where (o.until, o.archiving) is distinct from (excluded.until, excluded.archiving) or excluded.released > o.released
        returning o.key_hash, o."offset" as at_offset
    )
    select array(
        select distinct a.key_hash from added a left join before b using (at_offset)
        where p_failed @> a.at_offset and b.at_offset is null and a.key_hash is not null)
$$;

-- Lets available records wait for the first record that stops their key: of these keys all behind it, of the named ones those
-- that are named.
create or replace function sharequeue_internal.wait_behind(
    p_id bigint, p_keys uuid[], p_named sharequeue_internal.key_offsets[] default '{}'
) returns void
language plpgsql volatile set enable_seqscan = off as $$
begin
    perform sharequeue_internal.set_wait(p_id, coalesce(range_agg(b.offsets), '{}'), sharequeue_internal.no_time())
    from (
        select n.key, n.offsets from unnest(p_named) as n
        union all
        select k.key, null from unnest(p_keys) as k (key)
    ) as k
    cross join lateral (
        select o."offset" from sharequeue.open_key_records o
        where o.share_partition_id = p_id and o.key_hash = k.key and sharequeue_internal.stops(o)
        order by o."offset" limit 1) as first
    cross join lateral (
        select coalesce(k.offsets * int8multirange(int8range(first."offset", null, '()')), (
            select range_agg(int8range(o."offset", o."offset" + 1)) from sharequeue.open_key_records o
            where o.share_partition_id = p_id and o.key_hash = k.key and o."offset" > first."offset")) as offsets
    ) as b;
end
$$;

-- Returns the records that are held.
create or replace function sharequeue_internal.held_by_keys(p_id bigint) returns int8multirange
language sql stable as $$
    select coalesce(range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)), '{}')
    from sharequeue.in_flight_batches
    where share_partition_id = p_id and state = 0 and not_before = sharequeue_internal.no_time()
$$;

-- Returns whether an earlier record stops the key of a record.
create or replace function sharequeue_internal.is_stopped(p_record sharequeue.open_key_records) returns boolean
language sql stable as $$
    select exists (
        select from sharequeue.open_key_records o
        where o.share_partition_id = p_record.share_partition_id and o.key_hash = p_record.key_hash
            and o."offset" < p_record."offset" and sharequeue_internal.stops(o))
$$;

-- Lets available records wait without a time, or held ones until a time (null: at once).
create or replace function sharequeue_internal.set_wait(p_id bigint, p_offsets int8multirange, p_until timestamptz) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_part record;
    v_held boolean := coalesce(p_until = sharequeue_internal.no_time(), false);
begin
    for v_part in
        select first_offset, last_offset, part, delivery_count, isolate,
            sharequeue_internal.offsets_of(first_offset, last_offset, offsets) * p_offsets as offsets
        from sharequeue.in_flight_batches
        where share_partition_id = p_id and state = 0 and first_offset < upper(p_offsets) and last_offset >= lower(p_offsets)
            and (not_before is distinct from sharequeue_internal.no_time()) = v_held
            and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) && p_offsets
    loop
        perform sharequeue_internal.take(p_id, v_part.first_offset, v_part.part, v_part.offsets);
        perform sharequeue_internal.place(p_id, v_part.first_offset, v_part.last_offset, 0::smallint, v_part.delivery_count,
            v_part.offsets, p_isolate => v_part.isolate, p_not_before => p_until);
    end loop;
end
$$;

-- Removes the rows of records that are finished, and frees what waits for them. Those of dead letters that hold their keys stay;
-- with p_letters, only they are removed.
create or replace function sharequeue_internal.finish_open_keys(
    p_id bigint, p_offsets int8multirange, p_at timestamptz, p_letters boolean default false
) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_keys uuid[];
begin
    if isempty(p_offsets) then
        return;
    end if;
    with gone as (
        delete from sharequeue.open_key_records o
        where share_partition_id = p_id and "offset" = any (array(
            select r."offset" from sharequeue_internal.open_records_at(p_id, p_offsets) as r
            where (r.letter is not null) = p_letters))
        returning o.key_hash, sharequeue_internal.stops(o) as stops
    )
    select array_agg(distinct g.key_hash) into v_keys from gone g where g.stops and g.key_hash is not null;
    if v_keys is not null then
        perform sharequeue_internal.free_held(p_id, v_keys, p_at);
    end if;
end
$$;

-- Frees held records of these keys up to the first one that stops its key now. Records that were released keep their own times.
create or replace function sharequeue_internal.free_held(p_id bigint, p_keys uuid[], p_at timestamptz) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_freed record;
begin
    for v_freed in
        select case when r.until > p_at then r.until end as until, range_agg(int8range(r."offset", r."offset" + 1)) as offsets
        from unnest(p_keys) as k (key)
        left join lateral (
            select o."offset" from sharequeue.open_key_records o
            where o.share_partition_id = p_id and o.key_hash = k.key and sharequeue_internal.stops(o)
            order by o."offset" limit 1) as first on true
        cross join lateral (
            select o."offset", o.until from sharequeue.open_key_records o
            where o.share_partition_id = p_id and o.key_hash = k.key
                and o."offset" <= coalesce(first."offset", 9223372036854775807) offset 0) as r
        group by 1
    loop
        perform sharequeue_internal.set_wait(p_id, v_freed.offsets, v_freed.until);
    end loop;
end
$$;

-- After a change with which no keys were reported: leases that ended without an acknowledgement, or an operator's act. Rows of
-- records that are archiving now are marked so, those of finished ones removed, and what is available behind a record that stops
-- its key waits for it.
create or replace function sharequeue_internal.lose_keys(p_id bigint, p_at timestamptz) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_archiving int8multirange;
    v_open int8multirange;
    v_free int8multirange;
    v_finished int8multirange;
    v_keys uuid[];
begin
    update sharequeue.share_partitions set keys_unknown = true where share_partition_id = p_id and not keys_unknown;
    if (select open_key_records = 0 from sharequeue.share_partitions where share_partition_id = p_id) then
        return;
    end if;
    select coalesce(range_agg(o.offsets) filter (where f.state = 3), '{}'), coalesce(range_agg(o.offsets), '{}'),
        coalesce(range_agg(o.offsets) filter (
            where f.state = 0 and f.not_before is distinct from sharequeue_internal.no_time()), '{}')
    into v_archiving, v_open, v_free
    from sharequeue.in_flight_batches f
    cross join lateral (select sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) as offsets) as o
    where f.share_partition_id = p_id and f.state in (0, 1, 3);
    update sharequeue.open_key_records set archiving = true, until = null
    where share_partition_id = p_id and not archiving and letter is null and v_archiving @> "offset";
    select array_agg(distinct r.key_hash) into v_keys from sharequeue.open_key_records r
    where r.share_partition_id = p_id and v_free @> r."offset" and sharequeue_internal.is_stopped(r);
    perform sharequeue_internal.wait_behind(p_id, v_keys);
    select coalesce(range_agg(int8range("offset", "offset" + 1)), '{}') into v_finished from sharequeue.open_key_records
    where share_partition_id = p_id and letter is null and not v_open @> "offset";
    perform sharequeue_internal.finish_open_keys(p_id, v_finished, p_at);
end
$$;

-- After the log start has passed records: removes the rows of those that are not archiving.
create or replace function sharequeue_internal.keys_below(p_id bigint, p_log_start bigint, p_at timestamptz) returns void
language plpgsql volatile set enable_seqscan = off as $$
begin
    perform sharequeue_internal.finish_open_keys(p_id, (
        select coalesce(range_agg(int8range("offset", "offset" + 1)), '{}') from sharequeue.open_key_records
        where share_partition_id = p_id and "offset" < p_log_start and not archiving and letter is null), p_at);
end
$$;

-- After an operator has released records: they have no time of their own. Held ones stay held.
create or replace function sharequeue_internal.stop_waiting(p_id bigint, p_offsets int8multirange) returns void
language sql volatile set enable_seqscan = off as $$
    update sharequeue.open_key_records set until = null
    where share_partition_id = p_id and "offset" = any (array(
        select r."offset" from sharequeue_internal.open_records_at(p_id, p_offsets) as r where r.until is not null))
$$;
