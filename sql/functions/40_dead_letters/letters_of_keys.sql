-- Dead letters that hold their keys (sharequeue.order.on.dead.letter = hold): from the time at which they are written until they
-- are redriven or discarded.

-- Keeps the open keys after a batch of dead letters was closed. p_keys has those of records without an acknowledgement. A
-- letter that was dropped, or whose key is not known, holds nothing.
create or replace function sharequeue_internal.keep_letters(
    p_sp sharequeue.share_partitions, p_offsets int8multirange, p_keys sharequeue_internal.key_offsets[], p_dropped boolean,
    p_at timestamptz
) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_id bigint := p_sp.share_partition_id;
    v_settings sharequeue.group_settings;
begin
    if exists (select from unnest(p_keys) as k where k.offsets is null or not k.offsets <@ p_offsets) then
        raise exception 'a key is not valid: expected offsets of the batch that is closed' using errcode = 'SQ042';
    end if;
    select * into v_settings from sharequeue.group_settings where group_id = p_sp.group_id;
    if v_settings.ordered and v_settings.hold_dead_letters and not p_dropped then
        perform sharequeue_internal.finish_open_keys(v_id, sharequeue_internal.other_keys(v_id, p_keys), p_at);
        insert into sharequeue.open_key_records as o (share_partition_id, "offset", key_hash, since, letter)
        select v_id, a.at_offset, k.key, p_at, true
        from unnest(p_keys) as k cross join lateral unnest(k.offsets) as run
        cross join lateral generate_series(lower(run), upper(run) - 1) as a (at_offset)
        where k.key is not null order by a.at_offset
        on conflict on constraint open_key_records_pkey do nothing;
        update sharequeue.open_key_records set letter = true, archiving = false, until = null
        where share_partition_id = v_id and "offset" between lower(p_offsets) and upper(p_offsets) - 1
            and p_offsets @> "offset" and key_hash is not null;
        perform sharequeue_internal.wait_behind(v_id, array(
            select distinct k.key from unnest(p_keys) as k where k.key is not null));
    end if;
    perform sharequeue_internal.finish_open_keys(v_id, p_offsets, p_at);
end
$$;

-- Returns how many keys these dead letters hold that no other letter holds, and how many held records go on without them.
create or replace function sharequeue_internal.held_by_letters(p_id bigint, p_offsets int8multirange)
returns table (keys bigint, held_records bigint)
language sql stable set enable_seqscan = off as $$
    select count(*), coalesce(sum(f.records), 0)::bigint
    from (
        select distinct key_hash from sharequeue.open_key_records
        where share_partition_id = p_id and letter and p_offsets @> "offset"
    ) as k
    cross join lateral (
        select bool_or(o.letter and not p_offsets @> o."offset") as other,
            min(o."offset") filter (where sharequeue_internal.stops(o) and not (o.letter and p_offsets @> o."offset")) as stop
        from sharequeue.open_key_records o where o.share_partition_id = p_id and o.key_hash = k.key_hash
    ) as r
    cross join lateral (
        select count(*) as records from sharequeue.open_key_records o
        where o.share_partition_id = p_id and o.key_hash = k.key_hash
            and o."offset" <= coalesce(r.stop, 9223372036854775807) and (select sharequeue_internal.held_by_keys(p_id)) @> o."offset"
    ) as f where not r.other
$$;

-- Frees what these dead letters hold, because they were redriven or discarded: p_offsets are those of their source records.
-- Returns how many keys go on, with how many held records. Letters that hold nothing (any more) change nothing.
create or replace function sharequeue.close_letters(
    p_group_id text, p_topic text, p_partition integer, p_offsets int8multirange
) returns table (keys bigint, held_records bigint)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_id bigint;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_letters(p_group_id, p_topic, p_partition, p_offsets);
    select share_partition_id into v_id from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for update;
    return query select * from sharequeue_internal.held_by_letters(v_id, p_offsets);
    perform sharequeue_internal.finish_open_keys(v_id, p_offsets, sharequeue.clock(), true);
end
$$;

-- Returns what close_letters would return now. Nothing is changed.
create or replace function sharequeue.letters_held(
    p_group_id text, p_topic text, p_partition integer, p_offsets int8multirange
) returns table (keys bigint, held_records bigint)
language plpgsql stable set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.check_letters(p_group_id, p_topic, p_partition, p_offsets);
    return query select h.* from sharequeue_internal.held_by_letters((
        select sp.share_partition_id from sharequeue.share_partitions sp
        where sp.group_id = p_group_id and sp.topic = p_topic and sp.partition = p_partition), p_offsets) as h;
end
$$;

-- Checks the arguments that name dead letters by their source records.
create or replace function sharequeue_internal.check_letters(
    p_group_id text, p_topic text, p_partition integer, p_offsets int8multirange
) returns void
language plpgsql stable as $$
begin
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the topic', p_topic),
        sharequeue_internal.check_present('the partition', p_partition), sharequeue_internal.check_offsets(p_offsets);
end
$$;
