-- Acknowledges records as Kafka's clients do (R-AK): batches of first and last offset, in order. A batch has one type for
-- all of it, or a list with one type for each offset. Types: 0 gap, 1 accept, 2 release, 3 reject, 4 renew. p_types has all
-- lists one after the other, p_type_counts the length of each; null: one type for each batch. p_renew_allowed is the
-- request's IsRenewAck. Errors have Kafka's names and come in Kafka's order. All or nothing, except that locks which were
-- renewed before a batch that fails stay renewed (R-AK-14). Member epoch and token may be left out. Then anyone may
-- acknowledge for a member id, as on a broker.
create or replace function sharequeue.acknowledge_batches(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[],
    p_type_counts integer[] default null, p_renew_allowed boolean default true, p_not_before timestamptz default null
) returns sharequeue.acknowledged
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_result sharequeue.acknowledged;
    v_found record;
    v_key uuid;
    v_stored jsonb;
begin
    select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    if p_request_id is not null and v_found.error_code <> 30 then
        v_key := sharequeue_internal.request_key(v_found.settings, p_group_id, array[p_topic], array[p_partition],
            'acknowledge_batches', p_member_id, p_request_id);
        select result into v_stored from sharequeue.requests where request_key = v_key;
        if found then
            return jsonb_populate_record(null::sharequeue.acknowledged, v_stored);
        end if;
    end if;
    v_result.error_code := v_found.error_code;
    v_result.error_message := v_found.error_message;
    if v_result.error_code = 0 then
        select * into v_result.error_code, v_result.error_message
        from sharequeue_internal.check_member(p_group_id, p_member_id, p_member_epoch);
    end if;
    if v_result.error_code = 0 then
        v_result.error_message := case when p_renew_allowed is null then 'p_renew_allowed is missing: expected true or false'
            else sharequeue_internal.not_before_fault(p_not_before) end;
        v_result.error_code := case when v_result.error_message is null then 0 else 42 end;
    end if;
    if v_result.error_code <> 0 then
        return v_result;
    end if;
    v_result := sharequeue_internal.acknowledge_under_lock(v_found.sp, v_found.settings,
        row(p_member_id, p_member_epoch, p_token), row(p_firsts, p_lasts, p_types, p_type_counts), p_renew_allowed,
        p_not_before, sharequeue.clock());
    perform sharequeue_internal.remember(v_key, 'acknowledge_batches', to_jsonb(v_result));
    return v_result;
end
$$;

-- Returns the maximum number of batches or ranges in one call. In a window with as many fragments it takes about 40 s, and
-- clients give up after 60 s.
create or replace function sharequeue_internal.max_runs() returns integer
language sql immutable parallel safe as $$ select 1000000 $$;

-- Returns every run of a call: its number, its offsets (with an exclusive end), and its type. A list of types gives one run per
-- offset, with the number of its batch.
create or replace function sharequeue_internal.runs(p_batches sharequeue_internal.batches)
returns table (run bigint, first bigint, past bigint, type smallint)
language plpgsql immutable as $$
begin
    if p_batches.type_counts is null then
        return query
            select b.run, b.first, b.last + 1, b.type
            from unnest(p_batches.firsts, p_batches.lasts, p_batches.types)
                with ordinality as b (first, last, type, run);
    else
        return query
            with batches as (
                select b.run, b.first, b.last, b.types, sum(b.types) over (order by b.run) - b.types as before
                from unnest(p_batches.firsts, p_batches.lasts, p_batches.type_counts)
                    with ordinality as b (first, last, types, run)
            )
            select b.run, case when b.types = 1 then b.first else b.first + i - 1 end,
                case when b.types = 1 then b.last + 1 else b.first + i end, p_batches.types[b.before + i]
            from batches b, generate_series(1, b.types) as i;
    end if;
end
$$;

-- Reads the batches of a call in one pass. Returns whether they are well formed (R-AK-3, R-AK-5; the first one that is not
-- refuses the whole call), whether an offset is named twice (the first of a batch may be the last of the previous one), and the
-- acknowledgements as sets.
create or replace function sharequeue_internal.read_batches(
    p_batches sharequeue_internal.batches, p_renew_allowed boolean, out wrong text, out doubled boolean,
    out acknowledgements sharequeue.acknowledgements
)
language plpgsql immutable as $$
declare
    v_read record;
begin
    wrong := sharequeue_internal.counts_fault(p_batches);
    if wrong is not null then
        return;
    end if;
    if p_batches.type_counts is null then
        -- The usual case. Invalid batches stay out of the sets: Postgres refuses a reversed range.
        select min(run) filter (where not fine) as wrong, min(run) filter (where fine and type_wrong) as type_wrong,
            coalesce(bool_or(first = before), false) as doubled,
            coalesce(range_agg(int8range(first, last + 1)) filter (where fine and type = 1), '{}') as accept,
            coalesce(range_agg(int8range(first, last + 1)) filter (where fine and type = 2), '{}') as release,
            coalesce(range_agg(int8range(first, last + 1)) filter (where fine and type = 3), '{}') as reject,
            coalesce(range_agg(int8range(first, last + 1)) filter (where fine and type = 0), '{}') as gap,
            coalesce(range_agg(int8range(first, last + 1)) filter (where fine and type = 4), '{}') as renew
        into v_read
        from (
            select run, first, last, type, before,
                coalesce(first >= 0 and last <= 9223372036854775806 and first <= last
                    and first >= coalesce(before, 0), false) as fine,
                coalesce(type not between 0 and 4 or (type = 4 and not p_renew_allowed), true) as type_wrong
            from (
                select run, first, last, type, lag(last) over (order by run) as before
                from unnest(p_batches.firsts, p_batches.lasts, p_batches.types)
                    with ordinality as b (first, last, type, run)
            ) as b
        ) as b;
    else
        select min(run) filter (where not fine) as wrong, null::bigint as type_wrong,
            coalesce(bool_or(first = before), false) as doubled
        into v_read
        from (
            select run, first, before,
                coalesce(first >= 0 and last <= 9223372036854775806 and first <= last
                    and first >= coalesce(before, 0) and (types = 1 or types = last - first + 1), false) as fine
            from (
                select run, first, last, types, lag(last) over (order by run) as before
                from unnest(p_batches.firsts, p_batches.lasts, p_batches.type_counts)
                    with ordinality as b (first, last, types, run)
            ) as b
        ) as b;
    end if;
    wrong := sharequeue_internal.batch_fault(p_batches, v_read.wrong);
    if wrong is null and (p_batches.type_counts is not null or v_read.type_wrong is not null) then
        select case when type = 4 then 'the request has a renewal, but IsRenewAck is not set'
            else format('acknowledge type %s is not valid: expected 0 to 4', type) end into wrong
        from unnest(p_batches.types) as type
        where type is null or type not between 0 and 4 or (type = 4 and not p_renew_allowed) limit 1;
    end if;
    doubled := v_read.doubled;
    if wrong is not null then
        return;
    elsif p_batches.type_counts is null then
        acknowledgements := row(v_read.accept, v_read.release, v_read.reject, v_read.gap, v_read.renew, '{}');
    else
        select coalesce(range_agg(int8range(first, past)) filter (where type = 1), '{}') as accept,
            coalesce(range_agg(int8range(first, past)) filter (where type = 2), '{}') as release,
            coalesce(range_agg(int8range(first, past)) filter (where type = 3), '{}') as reject,
            coalesce(range_agg(int8range(first, past)) filter (where type = 0), '{}') as gap,
            coalesce(range_agg(int8range(first, past)) filter (where type = 4), '{}') as renew, '{}'::int8multirange as hold
        into acknowledgements
        from sharequeue_internal.runs(p_batches);
    end if;
end
$$;

-- Returns what is wrong with the number of batches and of their types, as a message; null if nothing is.
create or replace function sharequeue_internal.counts_fault(p_batches sharequeue_internal.batches) returns text
language plpgsql immutable as $$
declare
    v_batches integer := coalesce(array_length(p_batches.firsts, 1), 0);
begin
    if p_batches.firsts is null or p_batches.lasts is null or p_batches.types is null then
        return 'the batches are not valid: expected first offsets, last offsets and types';
    elsif v_batches > sharequeue_internal.max_runs() then
        return format('one call has %s batches: expected at most %s. Send them in several calls', v_batches,
            sharequeue_internal.max_runs());
    elsif coalesce(array_length(p_batches.lasts, 1), 0) <> v_batches
            or coalesce(array_length(coalesce(p_batches.type_counts, p_batches.types), 1), 0) <> v_batches then
        return 'every batch needs a first offset, a last offset and at least one type';
    elsif p_batches.type_counts is not null and (
            select coalesce(sum(c), 0) <> coalesce(array_length(p_batches.types, 1), 0) or bool_or(c is null or c < 1)
            from unnest(p_batches.type_counts) as c) then
        return 'the types do not match their counts';
    end if;
    return null;
end
$$;

-- Returns what is wrong with one batch of a call, as a message; null without a batch.
create or replace function sharequeue_internal.batch_fault(p_batches sharequeue_internal.batches, p_run bigint)
returns text
language plpgsql immutable as $$
declare
    v_first bigint := p_batches.firsts[p_run];
    v_last bigint := p_batches.lasts[p_run];
begin
    if p_run is null then
        return null;
    elsif v_first is null or v_last is null or v_first < 0 or v_last > 9223372036854775806 then
        return 'an offset is out of range: expected 0 to 2^63 - 2';
    elsif v_first > v_last then
        return format('batch %s to %s is reversed: expected the first offset before the last one', v_first, v_last);
    elsif v_first < p_batches.lasts[p_run - 1] then
        return format('batch %s to %s begins before the end of the previous one', v_first, v_last);
    else
        return format('batch %s to %s has %s types: expected one, or one for each offset', v_first, v_last,
            p_batches.type_counts[p_run]);
    end if;
end
$$;

-- Does the acknowledgement. The share-partition row is locked, and the state epoch and the member have been checked.
create or replace function sharequeue_internal.acknowledge_under_lock(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder,
    p_batches sharequeue_internal.batches, p_renew_allowed boolean, p_not_before timestamptz, p_at timestamptz
) returns sharequeue.acknowledged
language plpgsql volatile as $$
declare
    v_result sharequeue.acknowledged;
    v_sp sharequeue.share_partitions;
    v_read record;
    v_acknowledgements sharequeue.acknowledgements;
    v_span int8multirange;
    v_cached int8multirange;
    v_held int8multirange;
    v_failed record;
begin
    select * into v_read
    from sharequeue_internal.read_batches(p_batches, p_renew_allowed);
    if v_read.wrong is not null then
        v_result.error_code := 42;
        v_result.error_message := v_read.wrong;
        return v_result;
    end if;
    v_result.error_code := 0;
    v_sp := sharequeue_internal.settled(p_sp, p_at);
    v_acknowledgements := sharequeue_internal.acknowledgements_from(v_read.acknowledgements, v_sp.spso);
    v_span := sharequeue_internal.span(v_acknowledgements);
    if not isempty(v_span) then
        v_held := sharequeue_internal.held(
            v_sp.share_partition_id, lower(v_span), upper(v_span) - 1, p_holder.member_id, p_holder.token);
        if v_read.doubled or sharequeue_internal.first_outside(v_acknowledgements, v_held) is not null
                or (not isempty((v_acknowledgements).renew) and not p_settings.renew_enabled) then
            -- An offset is not held, or is named twice: find the first batch that fails, if any does.
            v_cached := sharequeue_internal.cached(v_sp.share_partition_id, lower(v_span), upper(v_span) - 1);
            select * into v_failed from sharequeue_internal.first_failure(v_sp, p_settings, p_batches, v_cached, v_held,
                (v_acknowledgements).accept + (v_acknowledgements).release + (v_acknowledgements).reject + (v_acknowledgements).gap + (v_acknowledgements).renew);
            if v_failed.run is not null then
                select coalesce(range_agg(int8range(r.first, r.past)), '{}') into v_acknowledgements.renew
                from sharequeue_internal.runs(p_batches) as r
                where r.type = 4 and r.run < v_failed.run;
                perform sharequeue_internal.renew_offsets(
                    v_sp.share_partition_id, p_settings, p_holder, (v_acknowledgements).renew * v_held, p_at);
                v_result.error_code := v_failed.error_code;
                v_result.error_message := v_failed.error_message;
                return v_result;
            end if;
            v_acknowledgements.renew := (v_acknowledgements).renew
                - ((v_acknowledgements).accept + (v_acknowledgements).release + (v_acknowledgements).reject + (v_acknowledgements).gap);
        end if;
    end if;
    v_acknowledgements.accept := (v_read.acknowledgements).accept;
    return sharequeue_internal.apply_acknowledgements(v_sp, p_settings, p_holder, v_acknowledgements, coalesce(v_held, '{}'),
        row(p_not_before, false, '{}', '{}', null), p_at);
end
$$;

-- Returns which batch of a call fails first, and how (R-AK-7 to R-AK-11); run is null if none does. It works on sets, so that
-- the last of a million batches costs no more than the first.
create or replace function sharequeue_internal.first_failure(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_batches sharequeue_internal.batches,
    p_cached int8multirange, p_held int8multirange, p_asked int8multirange,
    out run bigint, out error_code smallint, out error_message text
)
language plpgsql volatile as $$
declare
    v_floor bigint := (select min(first_offset) from sharequeue.in_flight_batches
        where share_partition_id = p_sp.share_partition_id);
    v_not_held bigint := lower(p_asked * p_cached - p_held);
    v_batch record;
begin
    select b.run, b.first, b.last,
        case when coalesce(greatest(b.first, p_sp.spso) < v_floor, true) then 1
            when not p_cached @> b.last then 2
            when v_not_held between b.first and b.last then 3
            when b.first = b.before then 4
            else 5 end as how
    into v_batch
    from (
        select b.run, b.first, b.last, lag(b.last) over (order by b.run) as before,
            lag(b.last_type) over (order by b.run) as before_type, b.any_renew
        from (
            select r.run, min(r.first) as first, max(r.past) - 1 as last, bool_or(r.type = 4 and r.past > p_sp.spso)
                as any_renew, (array_agg(r.type order by r.first desc))[1] as last_type
            from sharequeue_internal.runs(p_batches) as r group by r.run
        ) as b
    ) as b
    where b.last >= p_sp.spso and (
        coalesce(greatest(b.first, p_sp.spso) < v_floor, true)
        or not p_cached @> b.last
        or v_not_held between b.first and b.last
        or (b.first = b.before and b.first >= p_sp.spso and b.before_type <> 4)
        or (b.any_renew and not p_settings.renew_enabled))
    order by b.run limit 1;
    run := v_batch.run;
    error_code := case when v_batch.how = 2 then 42 else 121 end;
    error_message := case v_batch.how
        when 1 then format('offset %s is not found in the cache: no record is in flight at or below it', v_batch.first)
        when 2 then format('batch %s to %s extends past the acquired records', v_batch.first, v_batch.last)
        when 3 then format('offset %s is not acquired by this member', v_not_held)
        when 4 then format('offset %s is acknowledged twice', v_batch.first)
        when 5 then 'Renewing acquisition locks is not enabled for the group.' end;
end
$$;
