-- Order by key (sharequeue.order = key): a record is accepted only when no record of its share-partition with the same key and
-- a lower offset is open, that is available, acquired or archiving. Only workers know keys. So a share-partition has one open
-- lease at a time, and the table open_key_records has the keys that workers have reported, of records that they did not accept.
-- acknowledge_many keeps them (keep_order), acquire_many leases by them (order_of_leases.sql), and whatever finishes a record
-- removes its row (finish_open_keys). The caller has locked the share-partition.

-- Returns the time of records that wait without one, until a dead letter is written, redriven or discarded.
create or replace function sharequeue_internal.no_time() returns timestamptz
language sql immutable parallel safe as $$ select timestamptz '9999-01-01 00:00:00+00' $$;

-- Returns how long the later records of its key wait for an open record.
create or replace function sharequeue_internal.wait_for(p_record sharequeue.open_key_records) returns timestamptz
language sql immutable parallel safe as $$
    select case when p_record.archiving or p_record.letter then sharequeue_internal.no_time() else p_record.until end
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
        perform sharequeue_internal.finish_open_keys(v_id, v_finished, p_at);
        v_keys := v_keys || sharequeue_internal.known_keys(v_id, v_open, v_keys);
    end if;
    if v_keys <> '{}' then
        perform sharequeue_internal.add_open_keys(v_id, v_keys, v_open, p_from, p_last, p_at);
        perform sharequeue_internal.wait_behind(v_id, array(select distinct k.key from unnest(v_keys) as k), p_at);
    end if;
    if not p_sp.keys_unknown and not isempty(v_open) then
        select v_open - coalesce(range_agg(int8range(r."offset", r."offset" + 1)), '{}') into v_unknown
        from sharequeue.open_key_records r
        where r.share_partition_id = v_id and r."offset" between lower(v_open) and upper(v_open) - 1 and v_open @> r."offset";
        update sharequeue.share_partitions set keys_unknown = true
        where share_partition_id = v_id and not isempty(v_unknown);
    end if;
end
$$;

-- Returns the keys of open records that were reported earlier and not now: what waits for these records has to know their new
-- times.
create or replace function sharequeue_internal.known_keys(
    p_id bigint, p_open int8multirange, p_keys sharequeue_internal.key_offsets[]
) returns sharequeue_internal.key_offsets[]
language sql stable set enable_seqscan = off as $$
    with unnamed as materialized (
        select p_open - coalesce(range_agg(k.offsets), '{}') as offsets from unnest(p_keys) as k
    )
    select array(
        select row(r.key_hash, range_agg(int8range(r."offset", r."offset" + 1)))::sharequeue_internal.key_offsets
        from unnamed u join sharequeue.open_key_records r
            on r.share_partition_id = p_id and r."offset" >= lower(u.offsets) and r."offset" < upper(u.offsets)
                and u.offsets @> r."offset"
        where not r.letter group by r.key_hash)
$$;

-- Adds rows for open records with their keys, or updates them.
create or replace function sharequeue_internal.add_open_keys(
    p_id bigint, p_keys sharequeue_internal.key_offsets[], p_open int8multirange, p_from bigint, p_last bigint, p_at timestamptz
) returns void
language sql volatile as $$
    with parts as materialized (
        select state = 3 as archiving, not_before,
            range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)) * p_open as offsets
        from sharequeue.in_flight_batches
        where share_partition_id = p_id and first_offset between p_from and p_last and state in (0, 3)
        group by state = 3, not_before
    ), named as materialized (
        select k.key, generate_series(lower(run), upper(run) - 1) as at_offset
        from unnest(p_keys) as k cross join lateral unnest(k.offsets) as run
    )
    insert into sharequeue.open_key_records as o (share_partition_id, "offset", key_hash, since, until, archiving)
    select p_id, n.at_offset, n.key, p_at, p.not_before, p.archiving
    from named n join parts p on p.offsets @> n.at_offset
    order by n.at_offset
    on conflict on constraint open_key_records_pkey do update
    set key_hash = excluded.key_hash, until = excluded.until, archiving = excluded.archiving
    where (o.key_hash, o.until, o.archiving) is distinct from (excluded.key_hash, excluded.until, excluded.archiving)
$$;

-- Makes the records of these keys wait as long as the first open one of their key, if it waits longer.
create or replace function sharequeue_internal.wait_behind(p_id bigint, p_keys uuid[], p_at timestamptz) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_held record;
begin
    for v_held in
        select h.wait, range_agg(int8range(r."offset", r."offset" + 1)) as offsets
        from unnest(p_keys) as k (key)
        cross join lateral (
            select o."offset", sharequeue_internal.wait_for(o) as wait from sharequeue.open_key_records o
            where o.share_partition_id = p_id and o.key_hash = k.key order by o."offset" limit 1) as h
        cross join lateral (
            select o."offset" from sharequeue.open_key_records o
            where o.share_partition_id = p_id and o.key_hash = k.key and o."offset" > h."offset"
                and not o.archiving and not o.letter and coalesce(o.until < h.wait, true)) as r
        where h.wait > p_at group by h.wait
    loop
        perform sharequeue_internal.set_wait(p_id, v_held.offsets, v_held.wait);
    end loop;
end
$$;

-- Lets available records wait until a time, or not if it is null.
create or replace function sharequeue_internal.set_wait(p_id bigint, p_offsets int8multirange, p_until timestamptz) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_part record;
    v_moved int8multirange := '{}';
begin
    for v_part in
        select first_offset, last_offset, part, delivery_count, isolate,
            sharequeue_internal.offsets_of(first_offset, last_offset, offsets) * p_offsets as offsets
        from sharequeue.in_flight_batches
        where share_partition_id = p_id and state = 0 and first_offset < upper(p_offsets) and last_offset >= lower(p_offsets)
            and not_before is distinct from p_until
            and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) && p_offsets
    loop
        perform sharequeue_internal.take(p_id, v_part.first_offset, v_part.part, v_part.offsets);
        perform sharequeue_internal.place(p_id, v_part.first_offset, v_part.last_offset, 0::smallint, v_part.delivery_count,
            v_part.offsets, p_isolate => v_part.isolate, p_not_before => p_until);
        v_moved := v_moved + v_part.offsets;
    end loop;
    update sharequeue.open_key_records set until = p_until
    where share_partition_id = p_id and "offset" between lower(v_moved) and upper(v_moved) - 1 and v_moved @> "offset"
        and until is distinct from p_until;
end
$$;

-- Removes the rows of records that are finished, and frees what waits for them. Those of dead letters that hold their keys stay;
-- with p_letters, only they are removed.
create or replace function sharequeue_internal.finish_open_keys(
    p_id bigint, p_offsets int8multirange, p_at timestamptz, p_letters boolean default false
) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_gone sharequeue.open_key_records[];
begin
    if isempty(p_offsets) then
        return;
    end if;
    with gone as (
        delete from sharequeue.open_key_records o
        where share_partition_id = p_id and "offset" >= coalesce(lower(p_offsets), 0)
            and "offset" < coalesce(upper(p_offsets), 9223372036854775807) and p_offsets @> "offset" and letter = p_letters
        returning o
    )
    select array_agg(g.o) into v_gone from gone g where sharequeue_internal.wait_for(g.o) > p_at;
    if v_gone is not null then
        perform sharequeue_internal.free_held(p_id, v_gone);
    end if;
end
$$;

-- Frees the records that have waited for others, which are finished, or which an operator has released: they wait as long as the
-- first record of their key that is open now.
create or replace function sharequeue_internal.free_held(p_id bigint, p_heads sharequeue.open_key_records[]) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_freed record;
begin
    for v_freed in
        with heads as materialized (
            -- Once for each key and time: record by record, a key of n records would be read n times.
            select h.key_hash, sharequeue_internal.wait_for(h) as wait, min(h."offset") as first
            from unnest(p_heads) as h group by 1, 2
        ), now_first as materialized (
            select h.key_hash, h.wait, h.first, case when f.wait is distinct from h.wait or f.held then f.wait end as until
            from heads h
            cross join lateral (
                select o."offset", sharequeue_internal.wait_for(o) as wait, o.archiving or o.letter as held
                from sharequeue.open_key_records o
                where o.share_partition_id = p_id and o.key_hash = h.key_hash order by o."offset" limit 1) as f
            where f."offset" >= h.first
        )
        select n.until, range_agg(int8range(r."offset", r."offset" + 1)) as offsets
        from now_first n
        cross join lateral (
            select o."offset" from sharequeue.open_key_records o
            where o.share_partition_id = p_id and o.key_hash = n.key_hash and o."offset" > n.first and o.until = n.wait
            offset 0) as r
        group by n.until
    loop
        perform sharequeue_internal.set_wait(p_id, v_freed.offsets, v_freed.until);
    end loop;
end
$$;

-- After a change with which no keys were reported: leases that ended without an acknowledgement, or an operator's act. Rows of
-- records that are archiving now are marked so, and those of finished ones removed.
create or replace function sharequeue_internal.lose_keys(p_id bigint, p_at timestamptz) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_archiving int8multirange;
    v_open int8multirange;
    v_finished int8multirange;
    v_keys uuid[];
begin
    update sharequeue.share_partitions set keys_unknown = true where share_partition_id = p_id and not keys_unknown;
    if (select open_key_records = 0 from sharequeue.share_partitions where share_partition_id = p_id) then
        return;
    end if;
    select coalesce(range_agg(o.offsets) filter (where f.state = 3), '{}'), coalesce(range_agg(o.offsets), '{}')
    into v_archiving, v_open
    from sharequeue.in_flight_batches f
    cross join lateral (select sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) as offsets) as o
    where f.share_partition_id = p_id and f.state in (0, 1, 3);
    with marked as (
        update sharequeue.open_key_records set archiving = true, until = null
        where share_partition_id = p_id and not archiving and not letter and v_archiving @> "offset" returning key_hash
    )
    select array_agg(distinct key_hash) into v_keys from marked where key_hash is not null;
    perform sharequeue_internal.wait_behind(p_id, v_keys, p_at);
    select coalesce(range_agg(int8range("offset", "offset" + 1)), '{}') into v_finished from sharequeue.open_key_records
    where share_partition_id = p_id and not letter and not v_open @> "offset";
    perform sharequeue_internal.finish_open_keys(p_id, v_finished, p_at);
end
$$;

-- After the log start has passed records: removes the rows of those that are not archiving.
create or replace function sharequeue_internal.keys_below(p_id bigint, p_log_start bigint, p_at timestamptz) returns void
language plpgsql volatile set enable_seqscan = off as $$
begin
    perform sharequeue_internal.finish_open_keys(p_id, (
        select coalesce(range_agg(int8range("offset", "offset" + 1)), '{}') from sharequeue.open_key_records
        where share_partition_id = p_id and "offset" < p_log_start and not archiving and not letter), p_at);
end
$$;

-- After an operator has released records: they do not wait, and neither do those that have waited for them.
create or replace function sharequeue_internal.stop_waiting(p_id bigint, p_offsets int8multirange, p_at timestamptz) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_heads sharequeue.open_key_records[];
begin
    select array_agg(o) into v_heads from sharequeue.open_key_records o
    where o.share_partition_id = p_id and o."offset" between lower(p_offsets) and upper(p_offsets) - 1
        and p_offsets @> o."offset" and o.until > p_at and not o.archiving and not o.letter;
    if v_heads is not null then
        update sharequeue.open_key_records o set until = null from unnest(v_heads) as h
        where o.share_partition_id = p_id and o."offset" = h."offset";
        perform sharequeue_internal.free_held(p_id, v_heads);
    end if;
end
$$;
