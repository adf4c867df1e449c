-- Leases records as a broker's share fetch does (R-AQ, R-TH, R-IL), with the log's batches if the caller knows them.
create or replace function sharequeue_internal.take_kafka(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_max_records bigint, p_lease_id bigint,
    p_at timestamptz, p_options sharequeue_internal.fetch_options
) returns sharequeue.taken
language plpgsql volatile as $$
declare
    v_id bigint := p_sp.share_partition_id;
    -- Nothing in the window; records below it that the log start has passed do not count.
    v_empty boolean := p_sp.spso = p_sp.speo;
    v_room bigint := sharequeue_internal.window_room(
        p_sp, p_settings, p_sp.spso, sharequeue_internal.waiting_in_window(p_sp, p_at));
    -- The start of the fetch (R-NF): the first redeliverable offset, else the first one never delivered.
    v_available bigint := case when p_sp.redeliverable then sharequeue_internal.first_available(v_id, p_at) end;
    v_fetch bigint := coalesce(v_available, p_sp.speo);
    v_options sharequeue_internal.fetch_options := p_options;
    v_log_base bigint := v_fetch;
    v_last bigint := sharequeue_internal.read_end(p_sp, p_settings) - 1;
    v_budget bigint := least(p_max_records, v_room);
    v_cached record;
    v_result sharequeue.taken_offsets;
begin
    -- The records that the fetch read.
    if p_options.log_firsts is not null then
        v_options := sharequeue_internal.log_read(p_options, v_fetch, v_last);
        v_log_base := v_options.log_firsts[1];
        v_last := v_options.log_lasts[array_upper(v_options.log_lasts, 1)];
    end if;
    if v_last is null or v_last < v_fetch or v_last < p_sp.spso
            or (v_available is null and v_room <= 0 and not v_empty) then
        return null;
    end if;
    -- The budget (R-AQ-2).
    if v_budget <= 0 then
        if v_fetch >= p_sp.speo then
            return null;
        end if;
        v_budget := least(p_max_records, p_sp.speo - v_fetch);
        v_last := least(v_last, p_sp.speo - 1);
    end if;
    -- Redeliverable offsets that compaction has removed before the first batch read (R-AQ-3).
    if v_fetch < v_log_base then
        perform sharequeue_internal.archive_gaps(v_id, int8multirange(int8range(v_fetch, v_log_base)));
    end if;
    select * into v_cached from sharequeue_internal.cached_batches(v_id, p_sp.spso, v_log_base, v_last);
    if v_cached.last_offset is not null then
        v_result := sharequeue_internal.take_batches(v_id, v_cached.from_offset, int8range(v_log_base, v_last + 1), p_lease_id,
            p_at, v_budget, p_options.mode = 'record_limit' or p_options.log_firsts is null, p_settings.delivery_count_limit);
        v_budget := v_budget - v_result.records;
        v_cached.base := v_cached.last_offset + 1;
    end if;
    if v_result.throttled is not true and v_budget > 0 and v_cached.base <= v_last then
        v_result := sharequeue_internal.joined(v_result, sharequeue_internal.take_fresh(
            p_sp, v_cached.base, v_last, v_budget, p_lease_id, v_options, v_empty));
    end if;
    return sharequeue_internal.without_aborted(v_id, v_result, p_options.aborted, p_lease_id);
end
$$;

-- Returns the first redeliverable offset; null if there is none now.
create or replace function sharequeue_internal.first_available(p_id bigint, p_at timestamptz) returns bigint
language plpgsql volatile as $$
declare
    v_available bigint := sharequeue_internal.next_available(p_id, 0, p_at);
begin
    if v_available is null then
        perform sharequeue_internal.clear_redeliverable(p_id);
        return null;
    end if;
    return (select min(lower(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)))
        from sharequeue.in_flight_batches
        where share_partition_id = p_id and first_offset = v_available and state = 0
            and (not_before is null or not_before <= p_at));
end
$$;

-- Returns the options with only those log batches that a fetch from p_fetch on has read, up to p_last.
create or replace function sharequeue_internal.log_read(
    p_options sharequeue_internal.fetch_options, p_fetch bigint, p_last bigint
) returns sharequeue_internal.fetch_options
language plpgsql immutable as $$
declare
    v_options sharequeue_internal.fetch_options := p_options;
begin
    select array_agg(b.first order by b.first), array_agg(b.last order by b.first)
    into v_options.log_firsts, v_options.log_lasts
    from unnest(p_options.log_firsts, p_options.log_lasts) as b (first, last)
    where b.last >= p_fetch and b.last <= p_last;
    return v_options;
end
$$;

-- Returns where a fetch of [p_log_base, p_last] begins (R-AQ-4): at base, or at the batch in flight that contains the first
-- offset read. With batches in flight in there, also the offset from which these are looked up, and the last offset of the last.
create or replace function sharequeue_internal.cached_batches(
    p_id bigint, p_spso bigint, p_log_base bigint, p_last bigint,
    out base bigint, out from_offset bigint, out last_offset bigint
)
language plpgsql stable as $$
declare
    v_before record;
begin
    base := p_log_base;
    select f.first_offset, f.last_offset into v_before from sharequeue.in_flight_batches f
    where f.share_partition_id = p_id and f.first_offset <= p_log_base
    order by f.share_partition_id desc, f.first_offset desc limit 1;
    if not found then
        base := greatest(base, p_spso);
    elsif v_before.last_offset >= p_log_base then
        base := v_before.first_offset;
    end if;
    from_offset := least(base, p_log_base);
    select f.last_offset into last_offset from sharequeue.in_flight_batches f
    where f.share_partition_id = p_id and f.first_offset between from_offset and p_last
    order by f.share_partition_id desc, f.first_offset desc limit 1;
end
$$;

-- Redelivers from the batches in flight, from p_from on, up to the budget, in which p_hard says that the last batch is cut at
-- it. Stops after a batch near the delivery limit.
create or replace function sharequeue_internal.take_batches(
    p_id bigint, p_from bigint, p_read int8range, p_lease_id bigint, p_at timestamptz, p_budget bigint, p_hard boolean,
    p_limit integer
) returns sharequeue.taken_offsets
language plpgsql volatile as $$
declare
    v_from bigint := p_from - 1;
    v_acquired bigint := 0;
    v_throttled boolean := false;
    v_got sharequeue.taken_offsets;
    v_result sharequeue.taken_offsets;
begin
    while v_acquired < p_budget and not v_throttled loop
        v_from := sharequeue_internal.next_available(p_id, v_from + 1, p_at);
        exit when v_from is null or v_from >= upper(p_read);
        v_got := sharequeue_internal.take_batch(p_id, v_from, p_read, p_lease_id, p_at,
            case when p_hard then p_budget - v_acquired end, v_acquired, p_limit);
        v_acquired := v_acquired + v_got.records;
        v_throttled := v_got.throttled;
        v_result := sharequeue_internal.joined(v_result, v_got);
    end loop;
    v_result.records := v_acquired;
    v_result.throttled := v_throttled;
    return v_result;
end
$$;

-- Redelivers from one cached batch (R-AQ-6, R-AQ-8): whole if it is uniform and inside the range that was read, offset by
-- offset otherwise, and throttled near the delivery limit (R-TH). p_most is the rest of the budget if that is hard
-- (record_limit, or no log batches known), null if it is soft. p_before records have been acquired before.
create or replace function sharequeue_internal.take_batch(
    p_id bigint, p_first bigint, p_read int8range, p_lease_id bigint, p_at timestamptz, p_most bigint, p_before bigint,
    p_limit integer
) returns sharequeue.taken_offsets
language plpgsql volatile as $$
declare
    v_batch record;
    v_got sharequeue.taken_offsets;
    v_read int8multirange := int8multirange(p_read);
begin
    v_got.records := 0;
    v_got.by_offset := false;
    v_got.throttled := false;
    select f.last_offset, bool_or(f.offsets is not null) as exploded,
        max(f.delivery_count) filter (where v_read && sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets))
            as highest
    into v_batch
    from sharequeue.in_flight_batches f
    where f.share_partition_id = p_id and f.first_offset = p_first and f.state = 0
        and (f.not_before is null or f.not_before <= p_at)
    group by f.last_offset;
    if v_batch.highest is null then
        return v_got;
    end if;
    v_got.throttled := v_batch.highest >= sharequeue_internal.throttle_from(p_limit);
    if v_got.throttled and p_before > 0 then
        return v_got;
    end if;
    if not v_got.throttled and not v_batch.exploded and int8range(p_first, v_batch.last_offset + 1) <@ p_read
            and (p_most is null or v_batch.last_offset - p_first + 1 <= p_most) then
        update sharequeue.in_flight_batches
        set state = 1, delivery_count = delivery_count + 1, lease_id = p_lease_id, isolate = null, not_before = null
        where share_partition_id = p_id and first_offset = p_first
        returning array[first_offset], array[last_offset], array[delivery_count]
        into v_got.firsts, v_got.lasts, v_got.delivery_counts;
        v_got.records := v_batch.last_offset - p_first + 1;
        return v_got;
    end if;
    v_got := sharequeue_internal.choose_offsets(
        p_id, p_first, v_batch.last_offset, v_read, p_at, p_most, v_got.throttled, p_limit);
    perform sharequeue_internal.redeliver(p_id, p_first, v_batch.last_offset, p_lease_id, v_got, p_limit);
    return v_got;
end
$$;

-- Returns the delivery count from which on a batch is throttled (R-TH): half of the limit.
create or replace function sharequeue_internal.throttle_from(p_limit integer) returns integer
language sql immutable parallel safe as $$ select greatest(2, (p_limit + 1) / 2) $$;

-- Chooses the offsets to redeliver from one batch, run by run.
create or replace function sharequeue_internal.choose_offsets(
    p_id bigint, p_first bigint, p_last bigint, p_read int8multirange, p_at timestamptz, p_most bigint, p_throttled boolean,
    p_limit integer
) returns sharequeue.taken_offsets
language plpgsql stable as $$
declare
    v_run record;
    v_cap bigint;
    v_take bigint;
    v_stop boolean := false;
    v_got sharequeue.taken_offsets;
begin
    v_got.records := 0;
    v_got.by_offset := true;
    v_got.throttled := p_throttled;
    for v_run in
        select f.part, f.delivery_count, lower(r) as first, upper(r) - lower(r) as records,
            sharequeue_internal.next_delivery(f.delivery_count, f.isolate, p_limit) as delivery
        from sharequeue.in_flight_batches f,
            unnest(p_read * sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)) as r
        where f.share_partition_id = p_id and f.first_offset = p_first and f.state = 0
            and (f.not_before is null or f.not_before <= p_at)
        order by lower(r)
    loop
        v_take := v_run.records;
        -- The last attempt is leased alone (R-TH-5), and also the additional one of a suspect that shared its last.
        if (p_limit > 2 and v_run.delivery_count = p_limit - 1) or v_run.delivery = v_run.delivery_count then
            exit when v_got.records > 0;
            v_take := 1;
            v_stop := true;
        elsif p_throttled then
            if v_cap is null and v_run.delivery_count >= sharequeue_internal.throttle_from(p_limit) then
                v_cap := greatest(1, (p_last - p_first + 1) >> (
                    v_run.delivery_count - sharequeue_internal.throttle_from(p_limit) + 1));
            end if;
            -- It stops when the number acquired equals the cap. If runs of another count have exceeded it
            -- already, it never stops, as on a broker (R-TH-4).
            if v_cap > v_got.records and v_cap <= v_got.records + v_take then
                v_take := v_cap - v_got.records;
                v_stop := true;
            end if;
        end if;
        if p_most is not null and p_most <= v_got.records + v_take then
            v_take := p_most - v_got.records;
            v_stop := true;
        end if;
        v_got.firsts := v_got.firsts || v_run.first;
        v_got.lasts := v_got.lasts || (v_run.first + v_take - 1);
        v_got.delivery_counts := v_got.delivery_counts || v_run.delivery;
        v_got.records := v_got.records + v_take;
        exit when v_stop;
    end loop;
    return v_got;
end
$$;

-- Returns the count of a record's next delivery. A suspect of fan_out whose last delivery was shared with others is delivered
-- once more, uncounted, also if the next member acquires as on a broker.
create or replace function sharequeue_internal.next_delivery(p_delivery_count smallint, p_isolate bigint, p_limit integer)
returns smallint
language sql immutable parallel safe as $$
    select case when p_isolate is not null and p_delivery_count >= p_limit then p_delivery_count
        else p_delivery_count + 1 end::smallint
$$;

-- Moves the offsets chosen from one batch into the lease, count by count.
create or replace function sharequeue_internal.redeliver(
    p_id bigint, p_first bigint, p_last bigint, p_lease_id bigint, p_got sharequeue.taken_offsets, p_limit integer
) returns void
language plpgsql volatile as $$
declare
    v_part record;
begin
    for v_part in
        select f.part, t.delivery_count,
            sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) * t.offsets as offsets
        from sharequeue.in_flight_batches f
        join (
            select c.delivery_count, range_agg(int8range(c.first, c.last + 1)) as offsets
            from unnest(p_got.firsts, p_got.lasts, p_got.delivery_counts) as c (first, last, delivery_count)
            group by c.delivery_count
        ) as t on t.delivery_count = sharequeue_internal.next_delivery(f.delivery_count, f.isolate, p_limit)
            and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) && t.offsets
        where f.share_partition_id = p_id and f.first_offset = p_first and f.state = 0
    loop
        perform sharequeue_internal.take(p_id, p_first, v_part.part, v_part.offsets);
        perform sharequeue_internal.place(p_id, p_first, p_last, 1::smallint, v_part.delivery_count, v_part.offsets,
            p_lease_id);
    end loop;
end
$$;

-- Acquires records that were never delivered (R-AQ-10 to R-AQ-14): as one cached batch, or split at log batches if longer than
-- the batch size. Under record_limit the rest of the last log batch also comes into flight, available, with count 0.
create or replace function sharequeue_internal.take_fresh(
    p_sp sharequeue.share_partitions, p_first bigint, p_last bigint, p_budget bigint, p_lease_id bigint,
    p_options sharequeue_internal.fetch_options, p_empty boolean
) returns sharequeue.taken_offsets
language plpgsql volatile as $$
declare
    -- No record below SPEO is fresh: a log batch may begin below it, even if no batch in flight covers that part.
    v_first bigint := greatest(p_first, p_sp.speo);
    v_last bigint := p_last;
    v_acquired_to bigint;
    v_log_first bigint;
    v_got sharequeue.taken_offsets;
begin
    v_got.records := 0;
    v_got.by_offset := false;
    v_got.throttled := false;
    if v_first > v_last then
        return v_got;
    end if;
    if p_budget < v_last - v_first + 1 then
        v_last := v_first + p_budget - 1;
        if p_options.log_firsts is not null then
            v_last := coalesce((
                select max(b.last) from unnest(p_options.log_firsts, p_options.log_lasts) as b (first, last)
                where b.first <= v_last and b.last >= v_last), v_last);
        end if;
    end if;
    v_acquired_to := v_last;
    if p_options.mode = 'record_limit' then
        v_acquired_to := least(v_last, v_first + p_budget - 1);
    elsif p_options.log_firsts is not null and v_last - v_first + 1 > p_options.batch_size then
        foreach v_log_first in array p_options.log_firsts loop
            exit when v_log_first > v_last;
            if v_log_first - v_first >= p_options.batch_size then
                v_got.firsts := v_got.firsts || v_first;
                v_got.lasts := v_got.lasts || (v_log_first - 1);
                v_first := v_log_first;
            end if;
        end loop;
    end if;
    v_got.firsts := v_got.firsts || v_first;
    v_got.lasts := v_got.lasts || v_acquired_to;
    v_got.delivery_counts := array_fill(1::smallint, array[array_length(v_got.firsts, 1)]);
    insert into sharequeue.in_flight_batches
        (share_partition_id, first_offset, last_offset, part, state, delivery_count, lease_id, offsets)
    select p_sp.share_partition_id, b.first, case when b.last = v_acquired_to then v_last else b.last end, 0, 1, 1,
        p_lease_id,
        case when v_last > v_acquired_to then int8multirange(int8range(b.first, b.last + 1)) end
    from unnest(v_got.firsts, v_got.lasts) as b (first, last);
    if v_last > v_acquired_to then
        perform sharequeue_internal.place(p_sp.share_partition_id, v_first, v_last, 0::smallint, 0::smallint,
            int8multirange(int8range(v_acquired_to + 1, v_last + 1)));
    end if;
    v_got.records := v_acquired_to - v_got.firsts[1] + 1;
    -- A first batch moves SPSO: there was a hole before it (R-AQ-14).
    update sharequeue.share_partitions
    set speo = greatest(speo, v_last + 1), redeliverable = redeliverable or v_last > v_acquired_to,
        spso = case when p_empty then v_got.firsts[1] else spso end
    where share_partition_id = p_sp.share_partition_id;
    return v_got;
end
$$;

-- Appends a batch's ranges to a result. Offsets that were acquired one by one are joined if they follow each other and have
-- the same count. The end of a batch is the end of a range.
create or replace function sharequeue_internal.joined(p_result sharequeue.taken_offsets, p_got sharequeue.taken_offsets)
returns sharequeue.taken_offsets
language plpgsql immutable as $$
declare
    v_result sharequeue.taken_offsets := p_result;
    v_end integer;
    v_at integer;
begin
    v_result.by_offset := false;
    for v_at in 1 .. coalesce(array_length(p_got.firsts, 1), 0) loop
        v_end := array_upper(v_result.firsts, 1);
        if p_got.by_offset and v_result.by_offset and v_result.lasts[v_end] = p_got.firsts[v_at] - 1
                and v_result.delivery_counts[v_end] = p_got.delivery_counts[v_at] then
            v_result.lasts[v_end] := p_got.lasts[v_at];
        else
            v_result.firsts := v_result.firsts || p_got.firsts[v_at];
            v_result.lasts := v_result.lasts || p_got.lasts[v_at];
            v_result.delivery_counts := v_result.delivery_counts || p_got.delivery_counts[v_at];
        end if;
        v_result.by_offset := p_got.by_offset;
    end loop;
    return v_result;
end
$$;

-- Archives records of aborted transactions under read_committed, and removes them from the result (R-IL-3). They count towards
-- the budget.
create or replace function sharequeue_internal.without_aborted(
    p_id bigint, p_result sharequeue.taken_offsets, p_aborted int8multirange, p_lease_id bigint
) returns sharequeue.taken
language plpgsql volatile as $$
declare
    v_taken sharequeue.taken;
begin
    if not isempty(p_aborted) then
        perform sharequeue_internal.archive_gaps(p_id, p_aborted, p_lease_id);
    end if;
    select array_agg(b.delivery_count order by b.number, lower(r)),
        array_agg(int8multirange(r) order by b.number, lower(r))
    into v_taken.delivery_counts, v_taken.offsets
    from unnest(p_result.firsts, p_result.lasts, p_result.delivery_counts)
            with ordinality as b (first, last, delivery_count, number),
        unnest(int8multirange(int8range(b.first, b.last + 1)) - p_aborted) as r;
    return v_taken;
end
$$;
