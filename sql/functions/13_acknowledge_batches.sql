-- Answers records the way Kafka's clients do (R-AK): batches of first and last offset, in order, each with one type for
-- all of it or a list with one type per offset. Types: 0 gap, 1 accept, 2 release, 3 reject, 4 renew. p_types holds the
-- lists one behind the other, p_type_counts how long each is; null: one type each. p_renew_allowed is the request's
-- IsRenewAck. Errors by Kafka's names and in Kafka's order; all or nothing, except that locks renewed before a batch that
-- fails stay renewed (R-AK-14). member epoch and token may be left out, and then anyone may answer for a member id, as on
-- a broker.
create or replace function sharequeue.acknowledge_batches(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[],
    p_type_counts integer[] default null, p_renew_allowed boolean default true, p_not_before timestamptz default null
) returns sharequeue.acknowledged
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_answer sharequeue.acknowledged;
    v_found record;
    v_stored jsonb;
begin
    select * into v_found from sharequeue.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    if p_request_id is not null then
        select answer into v_stored from sharequeue.requests
        where request_id = p_request_id and operation = 'acknowledge';
        if found then
            return jsonb_populate_record(null::sharequeue.acknowledged, v_stored);
        end if;
    end if;
    v_answer.error_code := v_found.error_code;
    v_answer.error_message := v_found.error_message;
    if v_answer.error_code = 0 then
        select * into v_answer.error_code, v_answer.error_message
        from sharequeue.check_member(p_group_id, p_member_id, p_member_epoch);
    end if;
    if v_answer.error_code <> 0 then
        return v_answer;
    end if;
    v_answer := sharequeue.acknowledge_under_lock(v_found.sp, v_found.settings, p_member_id, p_token, p_firsts, p_lasts,
        p_types, p_type_counts, p_renew_allowed, p_not_before, sharequeue.clock());
    perform sharequeue.remember(p_request_id, 'acknowledge', to_jsonb(v_answer));
    return v_answer;
end
$$;

-- The longest list of batches one call may carry.
create or replace function sharequeue.max_runs() returns integer
language sql immutable parallel safe as $$ select 2000000 $$;

-- Every run of a call: its number, its offsets (past its end exclusive), its type. A list of types is one run per offset
-- under the number of its batch.
create or replace function sharequeue.runs(
    p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[]
) returns table (run bigint, first bigint, past bigint, type smallint)
language plpgsql immutable as $$
begin
    if p_type_counts is null then
        return query
            select b.run, b.first, b.last + 1, b.type
            from unnest(p_firsts, p_lasts, p_types) with ordinality as b (first, last, type, run);
    else
        return query
            with batches as (
                select b.run, b.first, b.last, b.types, sum(b.types) over (order by b.run) - b.types as before
                from unnest(p_firsts, p_lasts, p_type_counts) with ordinality as b (first, last, types, run)
            )
            select b.run, case when b.types = 1 then b.first else b.first + i - 1 end,
                case when b.types = 1 then b.last + 1 else b.first + i end, p_types[b.before + i]
            from batches b, generate_series(1, b.types) as i;
    end if;
end
$$;

-- Whether the batches of a call are well formed (R-AK-3, R-AK-5); the first that is not refuses the whole call.
create or replace function sharequeue.check_batches(
    p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[], p_renew_allowed boolean
) returns text
language plpgsql immutable as $$
declare
    v_batches integer := coalesce(array_length(p_firsts, 1), 0);
    v_wrong text;
begin
    if p_firsts is null or p_lasts is null or p_types is null then
        return 'batches need first offsets, last offsets and types';
    elsif v_batches > sharequeue.max_runs() then
        return format('%s batches in one call; at most %s', v_batches, sharequeue.max_runs());
    elsif coalesce(array_length(p_lasts, 1), 0) <> v_batches
            or coalesce(array_length(coalesce(p_type_counts, p_types), 1), 0) <> v_batches then
        return 'every batch needs a first offset, a last offset and at least one type';
    elsif p_type_counts is not null and (
            select coalesce(sum(c), 0) <> coalesce(array_length(p_types, 1), 0) or bool_or(c is null or c < 1)
            from unnest(p_type_counts) as c) then
        return 'the types do not match their counts';
    end if;
    select case
        when first is null or last is null or first < 0 or last > 9223372036854775806
            then 'offsets lie between 0 and 2^63 - 2'
        when first > last then format('batch %s to %s is reversed', first, last)
        when first < before then format('batch %s to %s begins before the end of the one before it', first, last)
        when types > 1 and types <> last - first + 1
            then format('batch %s to %s has %s types: expected one, or one per offset', first, last, types) end
    into v_wrong
    from (
        select b.first, b.last, coalesce(b.types, 1) as types, lag(b.last) over (order by b.run) as before, b.run
        from unnest(p_firsts, p_lasts, p_type_counts) with ordinality as b (first, last, types, run)
    ) as b
    where first is null or last is null or first < 0 or last > 9223372036854775806 or first > last or first < before
        or (types > 1 and types <> last - first + 1)
    order by run limit 1;
    if v_wrong is null then
        select case when type = 4 then 'a renewal in a request that is not marked as renewing (IsRenewAck)'
            else format('there is no acknowledge type %s', type) end into v_wrong
        from unnest(p_types) as type
        where type is null or type not between 0 and 4 or (type = 4 and not p_renew_allowed) limit 1;
    end if;
    return v_wrong;
end
$$;

-- The acknowledgement itself; the share-partition row is locked, state epoch and member have been checked.
create or replace function sharequeue.acknowledge_under_lock(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_member_id text, p_token uuid,
    p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[], p_renew_allowed boolean,
    p_not_before timestamptz, p_at timestamptz
) returns sharequeue.acknowledged
language plpgsql volatile as $$
declare
    v_answer sharequeue.acknowledged;
    v_sp sharequeue.share_partitions := p_sp;
    v_answers sharequeue.answers;
    v_asked int8multirange;
    v_cached int8multirange;
    v_held int8multirange;
    v_records bigint;
    v_failed record;
begin
    v_answer.error_code := 42;
    v_answer.error_message := sharequeue.check_batches(p_firsts, p_lasts, p_types, p_type_counts, p_renew_allowed);
    if v_answer.error_message is not null then
        return v_answer;
    end if;
    v_answer.error_code := 0;
    if v_sp.next_expiry <= p_at then
        perform sharequeue.settle_lapsed(v_sp.share_partition_id, p_at);
        select * into v_sp from sharequeue.share_partitions where share_partition_id = p_sp.share_partition_id;
    end if;
    select coalesce(range_agg(int8range(first, past)) filter (where type = 1), '{}') as accept,
        coalesce(range_agg(int8range(first, past)) filter (where type = 2), '{}') as release,
        coalesce(range_agg(int8range(first, past)) filter (where type = 3), '{}') as reject,
        coalesce(range_agg(int8range(first, past)) filter (where type = 0), '{}') as gap,
        coalesce(range_agg(int8range(first, past)) filter (where type = 4), '{}') as renew
    into v_answers
    from sharequeue.runs(p_firsts, p_lasts, p_types, p_type_counts);
    v_asked := ((v_answers).accept + (v_answers).release + (v_answers).reject + (v_answers).gap + (v_answers).renew)
        * int8multirange(int8range(v_sp.spso, null));
    if not isempty(v_asked) then
        v_cached := sharequeue.cached(v_sp.share_partition_id, lower(v_asked), upper(v_asked) - 1);
        v_held := sharequeue.held(v_sp.share_partition_id, lower(v_asked), upper(v_asked) - 1, p_member_id, p_token);
        select sum(last - first + 1) into v_records from unnest(p_firsts, p_lasts) as b (first, last);
        if not v_asked <@ v_held or v_records <> sharequeue.records((v_answers).accept + (v_answers).release
                    + (v_answers).reject + (v_answers).gap + (v_answers).renew)
                or (not isempty((v_answers).renew) and not p_settings.renew_enabled) then
            -- Something is not held, or named twice: which batch fails first, if any does?
            select * into v_failed from sharequeue.first_failure(v_sp, p_settings, p_firsts, p_lasts, p_types,
                p_type_counts, v_cached, v_held, v_asked);
            v_answers.renew := (v_answers).renew
                - ((v_answers).accept + (v_answers).release + (v_answers).reject + (v_answers).gap);
            if v_failed.run is not null then
                select coalesce(range_agg(int8range(r.first, r.past)), '{}') into v_answers.renew
                from sharequeue.runs(p_firsts, p_lasts, p_types, p_type_counts) as r
                where r.type = 4 and r.run < v_failed.run;
                perform sharequeue.renew_offsets(v_sp.share_partition_id, p_settings, p_member_id, p_token,
                    (v_answers).renew * v_held, p_at);
                v_answer.error_code := v_failed.error_code;
                v_answer.error_message := v_failed.error_message;
                return v_answer;
            end if;
        end if;
        v_asked := v_asked * v_cached;
    end if;
    return sharequeue.apply_answers(v_sp, p_settings, p_member_id, p_token, v_answers, v_asked, p_not_before, p_at);
end
$$;

-- Which batch of a call fails first, and how (R-AK-7 to R-AK-11); run is null when none does. Decided on sets, so that the
-- last of a million batches costs no more than the first.
create or replace function sharequeue.first_failure(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_firsts bigint[], p_lasts bigint[],
    p_types smallint[], p_type_counts integer[], p_cached int8multirange, p_held int8multirange,
    p_asked int8multirange, out run bigint, out error_code smallint, out error_message text
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
            from sharequeue.runs(p_firsts, p_lasts, p_types, p_type_counts) as r group by r.run
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
        when 1 then format('offset %s is not found in the cache: nothing is in flight at or below it', v_batch.first)
        when 2 then format('batch %s to %s reaches past what was acquired', v_batch.first, v_batch.last)
        when 3 then format('offset %s is not acquired by this member', v_not_held)
        when 4 then format('offset %s is answered twice', v_batch.first)
        when 5 then 'Renewing acquisition locks is not enabled for the group.' end;
end
$$;
