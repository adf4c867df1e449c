-- Acknowledges records of leases of one member, as sets of offsets (R-AK-12).
--   accept: ACKNOWLEDGED.
--   release: AVAILABLE; given up if no delivery is left (R-ST-4). Released records are delivered again not before their
--     element of p_not_befores if it is not null, with p_backoff after the group's back-off, otherwise at once. Sets of them may
--     have their own times: p_delays is an array with one array for each lease, of objects with "offsets" (an int8multirange)
--     and "until". Times are rounded up to seconds.
--   reject: given up.
--   gap: ARCHIVED, never a dead letter.
--   hold: AVAILABLE, with its delivery given back, because an earlier record of its key is open (order_by_key.sql).
-- Each lease is acknowledged whole or not at all (R-AK-14). Offsets below SPSO succeed without effect (R-AK-6), except for
-- records of the lease that retention removed: if they are accepted, they count as accepted and no longer as lost. Records of
-- the lease that are in no set stay leased.
--
-- p_keys has the keys of released, rejected and held records, for groups that are ordered by key: an array with one array for
-- each lease, of objects with "key", the MD5 of the key as a UUID or null for records without a key, and "offsets". Held records
-- need them; of the others without a key nothing is known, so that nothing behind them is leased until they are finished.
--
-- p_outputs is an array with one array for each lease, of objects with "sink", "location" and "records": the outputs that count
-- from this commit on. They need a current holder: the lease has that token and has not lapsed, and every offset of the sets is
-- held under it, also those below SPSO. A lease has one output for each sink.
--
-- p_kept has the records that are kept for their next delivery (kept_records.sql): an array with, for each lease, null or an object
-- with "location" and "offsets", which this acknowledgement releases. They need a current holder, as an output does.
create or replace function sharequeue.acknowledge_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_state_epochs integer[], p_member_id text,
    p_member_epoch integer, p_tokens uuid[], p_request_id uuid, p_accepts int8multirange[],
    p_releases int8multirange[], p_rejects int8multirange[], p_gaps int8multirange[], p_outputs jsonb,
    p_not_befores timestamptz[], p_backoff boolean default false, p_delays jsonb default null,
    p_holds int8multirange[] default null, p_keys jsonb default null, p_kept jsonb default null
) returns setof sharequeue.acknowledged_of
-- One plan for all calls: a custom plan for each call would cost more than its execution. The plan may be made while tables
-- are small, but even then it reads no table whole.
language plpgsql volatile
set search_path = pg_catalog set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    v_request sharequeue_internal.acknowledge_request := row(p_group_id, p_topics, p_partitions, p_state_epochs, p_member_id,
        p_member_epoch, p_tokens, p_accepts, p_releases, p_rejects, p_gaps, p_outputs, p_not_befores, p_backoff, p_delays,
        p_holds, p_keys, p_kept);
    v_sps sharequeue.share_partitions[];
    v_settings sharequeue.group_settings;
    v_key uuid;
    v_member sharequeue_internal.fault;
    v_at timestamptz;
    v_done sharequeue_internal.head_leases;
    v_head integer := 1;
    v_row sharequeue.acknowledged_of;
    v_rows sharequeue.acknowledged_of[] := '{}';
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_lists(p_outputs, p_delays, p_keys, p_kept);
    v_sps := sharequeue_internal.lock_share_partitions(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_state_epochs), 0), coalesce(cardinality(p_tokens), 0),
        coalesce(cardinality(p_accepts), 0), coalesce(cardinality(p_releases), 0),
        coalesce(cardinality(p_rejects), 0), coalesce(cardinality(p_gaps), 0), jsonb_array_length(p_outputs),
        coalesce(cardinality(p_not_befores), 0), coalesce(jsonb_array_length(p_delays), cardinality(p_topics)),
        coalesce(cardinality(p_holds), cardinality(p_topics)), coalesce(jsonb_array_length(p_keys), cardinality(p_topics)),
        coalesce(jsonb_array_length(p_kept), cardinality(p_topics)));
    select * into v_settings from sharequeue.group_settings where group_id = p_group_id;
    v_key := sharequeue_internal.request_key(v_settings, p_group_id, p_topics || p_tokens::text[], p_partitions,
        'acknowledge_many', p_member_id, p_request_id);
    return query select r.* from sharequeue.requests q,
        jsonb_populate_recordset(null::sharequeue.acknowledged_of, q.result) as r where q.request_key = v_key;
    if found then
        return;
    end if;
    v_member := sharequeue_internal.check_member(p_group_id, p_member_id, p_member_epoch);
    v_at := sharequeue.clock();
    if v_member.error_code = 0 then
        v_done := sharequeue_internal.acknowledge_heads(
            sharequeue_internal.heads_of(v_sps, v_settings, v_request, v_at), p_member_id);
    end if;
    for v_place in 1 .. cardinality(p_topics) loop
        if v_done.places[v_head] = v_place then
            v_row := row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place], 0::smallint, null, v_done.spsos[v_head],
                v_done.lags[v_head], upper(p_accepts[v_place]) - lower(p_accepts[v_place]), 0, 0, 0, 0);
            v_head := v_head + 1;
        else
            v_row := sharequeue_internal.acknowledge_place(v_sps[v_place], v_settings, v_request, v_place, v_member, v_at);
        end if;
        v_rows := v_rows || v_row;
        return next v_row;
    end loop;
    if v_settings.ordered then
        perform sharequeue_internal.wake_next(p_group_id, v_sps, p_member_id);
    end if;
    perform sharequeue_internal.remember(v_key, 'acknowledge_many', to_jsonb(v_rows));
end
$$;

-- Checks the arguments that are JSON arrays with an array for each lease. What is wrong with an output refuses its lease only.
create or replace function sharequeue_internal.check_lists(p_outputs jsonb, p_delays jsonb, p_keys jsonb, p_kept jsonb)
returns void
language plpgsql immutable as $$
begin
    if p_outputs is null or jsonb_typeof(p_outputs) <> 'array' then
        raise exception 'p_outputs is not valid: expected an array with one array for each lease' using errcode = 'SQ042';
    elsif p_delays is not null and (jsonb_typeof(p_delays) <> 'array' or exists (
            select from jsonb_path_query(p_delays, 'strict $[*]') as d where jsonb_typeof(d) <> 'array')) then
        raise exception 'p_delays is not valid: expected an array with one array for each lease' using errcode = 'SQ042';
    elsif p_keys is not null and (jsonb_typeof(p_keys) <> 'array' or exists (
            select from jsonb_path_query(p_keys, 'strict $[*]') as k where jsonb_typeof(k) <> 'array')) then
        raise exception 'p_keys is not valid: expected an array with one array for each lease' using errcode = 'SQ042';
    elsif p_kept is not null and jsonb_typeof(p_kept) <> 'array' then
        raise exception 'p_kept is not valid: expected an array with an object or null for each lease' using errcode = 'SQ042';
    end if;
end
$$;

-- Returns the leases that acknowledge_heads may accept: all of one run of offsets from SPSO on is accepted, nothing else is
-- asked, and no check of the caller or the circuit breaker applies.
create or replace function sharequeue_internal.heads_of(
    p_sps sharequeue.share_partitions[], p_settings sharequeue.group_settings, p_request sharequeue_internal.acknowledge_request,
    p_at timestamptz
) returns sharequeue_internal.head_leases
language plpgsql stable as $$
declare
    v_heads sharequeue_internal.head_leases;
    v_accepts int8multirange[] := p_request.accepts;
    v_sp sharequeue.share_partitions;
    v_accept int8multirange;
    v_seen bigint[] := '{}';
begin
    if p_settings.breaker_percent > 0 or p_settings.acls_apply or p_request.backoff is null then
        return v_heads;
    end if;
    for v_place in 1 .. cardinality(p_sps) loop
        v_accept := v_accepts[v_place];
        v_sp := p_sps[v_place];
        if p_request.releases[v_place] = '{}' and p_request.rejects[v_place] = '{}' and p_request.gaps[v_place] = '{}'
                and v_accept = range_merge(v_accept)::int8multirange and p_request.not_befores[v_place] is null
                and p_request.outputs -> (v_place - 1) = '[]'
                and (p_request.delays is null or p_request.delays -> (v_place - 1) = '[]')
                and (p_request.holds is null or p_request.holds[v_place] = '{}')
                and (p_request.kept is null or p_request.kept -> (v_place - 1) = 'null') and v_sp.open_key_records = 0
                and v_sp.spso = lower(v_accept) and v_sp.next_expiry > p_at and not v_sp.advance_due
                and coalesce(p_request.state_epochs[v_place] = v_sp.state_epoch, true)
                and not v_sp.share_partition_id = any (v_seen) then
            v_heads.places := v_heads.places || v_place;
            v_heads.share_partition_ids := v_heads.share_partition_ids || v_sp.share_partition_id;
            v_heads.accepts := v_heads.accepts || v_accept;
            v_heads.tokens := v_heads.tokens || p_request.tokens[v_place];
        end if;
        v_seen := v_seen || v_sp.share_partition_id;
    end loop;
    return v_heads;
end
$$;

-- Accepts leases that are one batch each, at SPSO, delivered for the first time, with records in flight behind it that are not
-- finished, or none. The others are left alone: acknowledge_lease has the rules for all leases. Returns the places of the
-- accepted ones in the call, in order, with SPSO and lag. P4 with 16 share-partitions in a call: without this, 2.4 times the
-- server's time, with one 1.4 times.
create or replace function sharequeue_internal.acknowledge_heads(p_heads sharequeue_internal.head_leases, p_member_id text)
returns sharequeue_internal.head_leases
language plpgsql volatile as $$
declare
    v_done sharequeue_internal.head_leases;
begin
    if p_heads.places is null then
        return v_done;
    end if;
    with found as materialized (
        select h.place, h.id, f.at, f.lease_id, l.at as lease_at, f.last_offset + 1 - f.first_offset as records,
            n.first_offset as next, (select ctid from sharequeue.share_partitions where share_partition_id = h.id) as sp_at
        from unnest(p_heads.places, p_heads.share_partition_ids, p_heads.accepts, p_heads.tokens) as h (place, id, accept, token)
        cross join lateral (
            select ctid as at, first_offset, last_offset, lease_id from sharequeue.in_flight_batches
            where share_partition_id = h.id and first_offset = lower(h.accept) and part = 0 and state = 1 and offsets is null
                and delivery_count = 1 and last_offset = upper(h.accept) - 1 offset 0) as f
        cross join lateral (
            select ctid as at from sharequeue.leases
            where lease_id = f.lease_id and member_id = p_member_id and (h.token is null or token = h.token) offset 0) as l
        left join lateral (
            select first_offset, state, offsets from sharequeue.in_flight_batches
            where share_partition_id = h.id and first_offset > f.first_offset
            order by share_partition_id, first_offset limit 1) as n on true
        where n.first_offset is null or (n.state not in (2, 4) and n.offsets is null)
    ), alone as materialized (
        select * from found where not exists (
            select from sharequeue.in_flight_batches o where o.lease_id = found.lease_id and o.ctid <> found.at offset 0)
    ), batches as (
        delete from sharequeue.in_flight_batches f using alone a where f.ctid = a.at
    ), leases as (
        delete from sharequeue.leases l using alone a where l.ctid = a.lease_at
    ), moved as (
        update sharequeue.share_partitions sp
        set spso = coalesce(a.next, sp.speo), accepted_first = sp.accepted_first + a.records
        from alone a where sp.ctid = a.sp_at
        returning a.place, sp.spso, greatest(0, sp.log_end - sp.spso - sp.delivery_complete_count) as lag
    )
    select array_agg(place order by place), array_agg(spso order by place), array_agg(lag order by place)
    into v_done.places, v_done.spsos, v_done.lags from moved;
    return v_done;
end
$$;

-- Acknowledges the lease at one place of a call, or refuses it, in this order: the errors of share_partition_fault, those of the
-- arguments, that of the member, those of the lease. The share-partition is locked.
create or replace function sharequeue_internal.acknowledge_place(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_request sharequeue_internal.acknowledge_request,
    p_place integer, p_member sharequeue_internal.fault, p_at timestamptz
) returns sharequeue.acknowledged_of
language plpgsql volatile as $$
declare
    v_fault sharequeue_internal.fault := sharequeue_internal.share_partition_fault(p_sp, p_settings, p_request.group_id,
        p_request.topics[p_place], p_request.partitions[p_place], p_request.state_epochs[p_place], 'READ');
    v_acknowledgements sharequeue.acknowledgements := row(p_request.accepts[p_place], p_request.releases[p_place],
        p_request.rejects[p_place], p_request.gaps[p_place], '{}', case when p_request.holds is null then '{}'
            else p_request.holds[p_place] end);
    v_keys sharequeue_internal.key_offsets[];
    v_outputs jsonb := p_request.outputs -> (p_place - 1);
    v_kept sharequeue_internal.kept_offsets;
    v_times sharequeue_internal.release_times;
    v_sp sharequeue.share_partitions := p_sp;
    v_one sharequeue.acknowledged;
begin
    if v_fault.error_code = 0 then
        v_times := sharequeue_internal.release_times_of(p_request.not_befores[p_place], p_request.backoff,
            coalesce(p_request.delays -> (p_place - 1), '[]'));
        v_keys := sharequeue_internal.keys_of(p_request.keys -> (p_place - 1));
        if p_request.kept is not null then
            v_kept := sharequeue_internal.kept_of_lease(p_request.kept -> (p_place - 1));
        end if;
        v_fault.error_message := coalesce(sharequeue_internal.acknowledgements_fault(v_acknowledgements),
            sharequeue_internal.outputs_fault(v_outputs), sharequeue_internal.not_before_fault(v_times.not_before),
            sharequeue_internal.delays_fault((v_acknowledgements).release, v_times),
            sharequeue_internal.keys_fault(v_acknowledgements, v_keys),
            sharequeue_internal.kept_fault((v_acknowledgements).release, v_kept));
        v_fault.error_code := case when v_fault.error_message is null then 0 else 42 end;
    end if;
    if v_fault.error_code = 0 then
        v_fault := p_member;
    end if;
    v_one.error_code := v_fault.error_code;
    v_one.error_message := v_fault.error_message;
    if v_fault.error_code = 0 then
        if cardinality(p_request.topics) > 1 then
            -- The call may have changed it before, for another lease.
            select * into v_sp from sharequeue.share_partitions where share_partition_id = p_sp.share_partition_id;
        end if;
        v_one := sharequeue_internal.acknowledge_lease(v_sp, p_settings,
            row(p_request.member_id, p_request.member_epoch, p_request.tokens[p_place]), v_acknowledgements, v_keys, v_outputs,
            v_kept, v_times, p_at);
    end if;
    return row(p_request.topics[p_place], p_request.partitions[p_place], p_request.tokens[p_place],
        v_one.*)::sharequeue.acknowledged_of;
end
$$;

-- Returns the times of released records, as the functions below take them.
create or replace function sharequeue_internal.release_times_of(p_not_before timestamptz, p_backoff boolean, p_delays jsonb)
returns sharequeue_internal.release_times
language plpgsql stable as $$
declare
    v_times sharequeue_internal.release_times := row(p_not_before, p_backoff, '{}', '{}', null);
begin
    if p_delays <> '[]' then
        -- Only here: a block with an exception is a subtransaction.
        begin
            select array_agg((d->>'offsets')::int8multirange order by n), array_agg((d->>'until')::timestamptz order by n)
            into v_times.offsets, v_times.untils from jsonb_array_elements(p_delays) with ordinality as e (d, n);
        exception when data_exception then
            raise exception 'a delay is not valid: expected "offsets", an int8multirange, and "until", a time: %', sqlerrm
                using errcode = 'SQ042';
        end;
    end if;
    return v_times;
end
$$;

-- Acknowledges one lease: all of it, or nothing if a record is not held (R-AK-14). Its share-partition is locked, and the
-- arguments and the member have been checked.
create or replace function sharequeue_internal.acknowledge_lease(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder,
    p_acknowledgements sharequeue.acknowledgements, p_keys sharequeue_internal.key_offsets[], p_outputs jsonb,
    p_kept sharequeue_internal.kept_offsets, p_times sharequeue_internal.release_times, p_at timestamptz
) returns sharequeue.acknowledged
language plpgsql volatile as $$
declare
    v_result sharequeue.acknowledged;
    v_sp sharequeue.share_partitions := sharequeue_internal.settled(p_sp, p_at);
    v_from_spso sharequeue.acknowledgements := sharequeue_internal.acknowledgements_from(p_acknowledgements, v_sp.spso);
    v_span int8multirange := sharequeue_internal.span(v_from_spso);
    v_held int8multirange;
    v_outside bigint;
    v_lease_id bigint;
    v_has_files constant boolean := p_outputs <> '[]' or p_kept.location is not null;
begin
    if not isempty(v_span) then
        v_held := sharequeue_internal.held(v_sp.share_partition_id, lower(v_span), upper(v_span) - 1, p_holder.member_id,
            p_holder.token);
        v_outside := sharequeue_internal.first_outside(v_from_spso, v_held);
    end if;
    if v_has_files then
        -- Records that were already found to be held are not looked up again.
        select * into v_result.error_code, v_result.error_message, v_lease_id
        from sharequeue_internal.check_outputs(v_sp.share_partition_id, p_holder.member_id, p_holder.token,
            case when v_outside is null and v_from_spso = p_acknowledgements
                then row('{}', '{}', '{}', '{}', '{}', '{}')::sharequeue.acknowledgements else p_acknowledgements end, p_outputs);
        if v_result.error_code <> 0 then
            return v_result;
        end if;
    end if;
    if v_outside is not null then
        v_result.error_code := 121;
        v_result.error_message := format('offset %s is not held under this lease: its lock lapsed, it was acknowledged '
            'already, or it belongs to another member', v_outside);
        return v_result;
    end if;
    if v_has_files then
        v_result.error_message := sharequeue_internal.claim_folders(v_sp.group_id, case when p_kept.location is null then p_outputs
            else p_outputs || jsonb_build_object('location', p_kept.location) end);
        p_kept.offsets := p_kept.offsets * v_from_spso.release;
        if v_result.error_message is null and not isempty(p_kept.offsets) then
            v_result.error_message := sharequeue_internal.keep_records(v_lease_id, p_kept, p_at);
        end if;
        if v_result.error_message is not null then
            v_result.error_code := 42;
            return v_result;
        end if;
    end if;
    v_from_spso.accept := (p_acknowledgements).accept;
    v_result := sharequeue_internal.apply_acknowledgements(
        v_sp, p_settings, p_holder, v_from_spso, coalesce(v_held, '{}'), p_times, p_at, p_keys);
    if p_outputs <> '[]' then
        insert into sharequeue.lease_outputs (lease_id, sink, group_id, topic, partition, topic_id, location, records,
            acknowledged_at)
        select v_lease_id, o->>'sink', v_sp.group_id, v_sp.topic, v_sp.partition, v_sp.topic_id, o->>'location',
            (o->>'records')::bigint, p_at
        from jsonb_array_elements(p_outputs) as o;
    end if;
    return v_result;
end
$$;

-- Returns what is wrong with the times of released records; null if nothing is. At most a hundred different times, because
-- each may need a row of its own in each batch.
create or replace function sharequeue_internal.delays_fault(
    p_release int8multirange, p_times sharequeue_internal.release_times
) returns text
language plpgsql immutable as $$
begin
    if p_times.backoff is null then
        return 'p_backoff is missing: expected true or false';
    elsif cardinality(p_times.offsets) = 0 then
        return null;
    elsif array_position(p_times.untils, null) is not null then
        return 'every delayed set of offsets needs a time';
    elsif cardinality(p_times.offsets) > 100 then
        return 'the released records of a lease have too many different times: expected at most 100';
    elsif exists (select from unnest(p_times.offsets) as d where d is null or not d <@ p_release)
            or (select sum(sharequeue.records(d)) from unnest(p_times.offsets) as d)
                <> sharequeue.records((select range_agg(d) from unnest(p_times.offsets) as d)) then
        return 'every delayed offset must be among the released ones, and in only one set';
    end if;
    return (select sharequeue_internal.not_before_fault(u) from unnest(p_times.untils) as u
        where sharequeue_internal.not_before_fault(u) is not null limit 1);
end
$$;
