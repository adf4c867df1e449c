-- Dead letters that hold their keys (sharequeue.order.on.dead.letter = hold): from the time at which they are written until they
-- are redriven or discarded. A letter is known by the batch that wrote it, and the offset of its record. The offset alone would be
-- that of another letter too: of the same record, which was rejected again after a reset, or of a record of a topic made again.

-- Keeps the open keys after the batch of dead letters p_sequence was closed. p_keys has those of records without an acknowledgement. A
-- letter that was dropped, or whose key is not known, holds nothing.
create or replace function sharequeue_internal.keep_letters(
    p_sp sharequeue.share_partitions, p_sequence bigint, p_offsets int8multirange, p_keys sharequeue_internal.key_offsets[],
    p_dropped boolean, p_at timestamptz
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
        select v_id, a.at_offset, k.key, p_at, p_sequence
        from unnest(p_keys) as k cross join lateral unnest(k.offsets) as run
        cross join lateral generate_series(lower(run), upper(run) - 1) as a (at_offset)
        where k.key is not null order by a.at_offset
        on conflict on constraint open_key_records_pkey do nothing;
        update sharequeue.open_key_records set letter = p_sequence, archiving = false, until = null
        where share_partition_id = v_id and "offset" = any (array(
            select r."offset" from sharequeue_internal.open_records_at(v_id, p_offsets) as r where r.key_hash is not null));
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
        where share_partition_id = p_id and letter is not null and p_offsets @> "offset"
    ) as k
    cross join lateral (
        select bool_or(o.letter is not null and not p_offsets @> o."offset") as other,
            min(o."offset") filter (where sharequeue_internal.stops(o) and not (o.letter is not null and p_offsets @> o."offset")) as stop
        from sharequeue.open_key_records o where o.share_partition_id = p_id and o.key_hash = k.key_hash
    ) as r
    cross join lateral (
        select count(*) as records from sharequeue.open_key_records o
        where o.share_partition_id = p_id and o.key_hash = k.key_hash
            and o."offset" <= coalesce(r.stop, 9223372036854775807) and (select sharequeue_internal.held_by_keys(p_id)) @> o."offset"
    ) as f where not r.other
$$;

-- Returns the records whose keys these dead letters hold: p_offsets are those of records in the batches p_sequences.
create or replace function sharequeue_internal.held_of_batches(p_id bigint, p_sequences bigint[], p_offsets int8multirange[])
returns int8multirange
language sql stable set enable_seqscan = off as $$
    select coalesce(range_agg(int8range(o."offset", o."offset" + 1)), '{}')
    from unnest(p_sequences, p_offsets) as b (sequence, offsets)
    join sharequeue.open_key_records o on o.share_partition_id = p_id and o.letter = b.sequence
        and o."offset" >= lower(b.offsets) and o."offset" < upper(b.offsets) and b.offsets @> o."offset"
$$;

-- Frees what dead letters of a share-partition hold, because they were redriven or discarded: p_sequences are the numbers of the
-- batches that wrote them, p_offsets those of their source records. Returns how many keys go on, with how many held records.
-- Letters that hold nothing (any more) change nothing.
create or replace function sharequeue.close_letters(p_share_partition_id bigint, p_sequences bigint[], p_offsets int8multirange[])
returns table (keys bigint, held_records bigint)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_held int8multirange;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_letters(p_share_partition_id, p_sequences, p_offsets);
    perform from sharequeue.share_partitions where share_partition_id = p_share_partition_id for update;
    v_held := sharequeue_internal.held_of_batches(p_share_partition_id, p_sequences, p_offsets);
    return query select * from sharequeue_internal.held_by_letters(p_share_partition_id, v_held);
    perform sharequeue_internal.finish_open_keys(p_share_partition_id, v_held, sharequeue.clock(), true);
end
$$;

-- Returns what close_letters would return now. Nothing is changed.
create or replace function sharequeue.letters_held(p_share_partition_id bigint, p_sequences bigint[], p_offsets int8multirange[])
returns table (keys bigint, held_records bigint)
language plpgsql stable set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.check_letters(p_share_partition_id, p_sequences, p_offsets);
    return query select h.* from sharequeue_internal.held_by_letters(p_share_partition_id,
        sharequeue_internal.held_of_batches(p_share_partition_id, p_sequences, p_offsets)) as h;
end
$$;

-- Checks the arguments that name dead letters by their batches and source records.
create or replace function sharequeue_internal.check_letters(
    p_share_partition_id bigint, p_sequences bigint[], p_offsets int8multirange[]
) returns void
language plpgsql stable as $$
begin
    perform sharequeue_internal.check_present('the share-partition id', p_share_partition_id),
        sharequeue_internal.check_present('the sequences', p_sequences), sharequeue_internal.check_present('the offsets', p_offsets);
    if cardinality(p_sequences) <> cardinality(p_offsets) then
        raise exception 'there are % sequences and % sets of offsets: expected one for each', cardinality(p_sequences),
            cardinality(p_offsets) using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.check_present('a sequence', l.sequence), sharequeue_internal.check_offsets(l.offsets)
    from unnest(p_sequences, p_offsets) as l (sequence, offsets);
end
$$;
