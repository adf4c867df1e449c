-- Acknowledges records of one lease, as sets of offsets (R-AK-12).
--   accept: ACKNOWLEDGED.
--   release: AVAILABLE; given up if no delivery is left (R-ST-4). Released records are delivered again not before
--     p_not_before if it is given, with p_backoff after the group's back-off, otherwise at once. Sets of them may have
--     their own times (p_delayed, p_delayed_until). Times are rounded up to seconds.
--   reject: given up.
--   gap: ARCHIVED, never a dead letter.
-- All or nothing (R-AK-14). Offsets below SPSO succeed without effect (R-AK-6), except for records of this token's
-- lease that retention removed: if they are accepted, they count as accepted and no longer as lost. Records of the
-- lease that are in no set stay leased.
--
-- The outputs in p_outputs count from this commit on. They need a current holder: the lease has that token and has not lapsed,
-- and every offset of the sets is held under it, also those below SPSO. A lease has one output for each sink.
create or replace function sharequeue.acknowledge(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_accept int8multirange, p_release int8multirange, p_reject int8multirange,
    p_gap int8multirange, p_outputs jsonb default '[]', p_renew int8multirange default '{}',
    p_not_before timestamptz default null, p_backoff boolean default false, p_delayed int8multirange[] default '{}',
    p_delayed_until timestamptz[] default '{}'
) returns sharequeue.acknowledged
-- One plan for all calls: a custom plan for each call would cost more than its execution. The plan may be made while tables
-- are small, but even then it reads no table whole.
language plpgsql volatile
set search_path = pg_catalog set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    v_result sharequeue.acknowledged;
    v_found record;
    v_key uuid;
    v_stored jsonb;
    v_sp sharequeue.share_partitions;
    v_acknowledgements sharequeue.acknowledgements := row(p_accept, p_release, p_reject, p_gap, p_renew);
    v_from_spso sharequeue.acknowledgements;
    v_span int8multirange;
    v_held int8multirange;
    v_outside bigint;
    v_at timestamptz;
    v_lease_id bigint;
begin
    select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    v_sp := v_found.sp;
    if p_request_id is not null and v_found.error_code <> 30 then
        v_key := sharequeue_internal.request_key((v_found.sp).share_partition_id, 'acknowledge', p_member_id, p_request_id);
        v_stored := sharequeue_internal.stored_result(v_key);
        if v_stored is not null then
            return jsonb_populate_record(null::sharequeue.acknowledged, v_stored);
        end if;
    end if;
    v_result.error_code := v_found.error_code;
    v_result.error_message := v_found.error_message;
    if v_result.error_code = 0 then
        v_result.error_message := coalesce(sharequeue_internal.acknowledgements_fault(v_acknowledgements), sharequeue_internal.outputs_fault(p_outputs),
            sharequeue_internal.not_before_fault(p_not_before),
            sharequeue_internal.delays_fault(p_release, p_backoff, p_delayed, p_delayed_until));
        v_result.error_code := case when v_result.error_message is null then 0 else 42 end;
    end if;
    if v_result.error_code = 0 then
        select * into v_result.error_code, v_result.error_message
        from sharequeue_internal.check_member(p_group_id, p_member_id, p_member_epoch);
    end if;
    if v_result.error_code <> 0 then
        return v_result;
    end if;

    v_at := sharequeue.clock();
    if v_sp.next_expiry <= v_at then
        perform sharequeue_internal.settle_lapsed(v_sp.share_partition_id, v_at);
        select * into v_sp from sharequeue.share_partitions where share_partition_id = v_sp.share_partition_id;
    end if;
    v_from_spso := sharequeue_internal.acknowledgements_from(v_acknowledgements, v_sp.spso);
    v_span := sharequeue_internal.span(v_from_spso);
    if not isempty(v_span) then
        v_held := sharequeue_internal.held(v_sp.share_partition_id, lower(v_span), upper(v_span) - 1, p_member_id, p_token);
        v_outside := sharequeue_internal.first_outside(v_from_spso, v_held);
    end if;
    if p_outputs <> '[]' then
        -- Records that were already found to be held are not looked up again.
        select * into v_result.error_code, v_result.error_message, v_lease_id
        from sharequeue_internal.check_outputs(v_sp.share_partition_id, p_member_id, p_token,
            case when v_outside is null and v_from_spso = v_acknowledgements
                then row('{}', '{}', '{}', '{}', '{}')::sharequeue.acknowledgements else v_acknowledgements end, p_outputs);
        if v_result.error_code <> 0 then
            return v_result;
        end if;
    end if;
    if v_outside is not null then
        v_result.error_code := 121;
        v_result.error_message := format('offset %s is not held under this lease: its lock lapsed, it was acknowledged '
            'already, or it belongs to another member', v_outside);
        return v_result;
    elsif not isempty(p_renew) and not isempty(v_span) and not (v_found.settings).renew_enabled then
        v_result.error_code := 121;
        v_result.error_message := 'Renewing acquisition locks is not enabled for the group.';
        return v_result;
    end if;
    if p_outputs <> '[]' then
        v_result.error_message := sharequeue_internal.claim_folders(p_group_id, p_outputs);
        if v_result.error_message is not null then
            v_result.error_code := 42;
            return v_result;
        end if;
    end if;
    v_from_spso.accept := p_accept;
    v_result := sharequeue_internal.apply_acknowledgements(
        v_sp, v_found.settings, p_member_id, p_token, v_from_spso, coalesce(v_held, '{}'),
        row(p_not_before, p_backoff, p_delayed, p_delayed_until)::sharequeue_internal.release_times, v_at);
    insert into sharequeue.lease_outputs (lease_id, sink, group_id, topic, partition, topic_id, location, records,
        acknowledged_at)
    select v_lease_id, o->>'sink', p_group_id, p_topic, p_partition, v_sp.topic_id, o->>'location', (o->>'records')::bigint, v_at
    from jsonb_array_elements(p_outputs) as o;
    perform sharequeue_internal.remember(v_key, 'acknowledge', to_jsonb(v_result));
    return v_result;
end
$$;

-- Returns what is wrong with the times of released records; null if nothing is. At most a hundred different times, because
-- each may need a row of its own in each batch.
create or replace function sharequeue_internal.delays_fault(
    p_release int8multirange, p_backoff boolean, p_delayed int8multirange[], p_delayed_until timestamptz[]
) returns text
language plpgsql immutable as $$
begin
    if p_backoff is null then
        return 'p_backoff is missing: expected true or false';
    elsif p_delayed is null or p_delayed_until is null or cardinality(p_delayed) <> cardinality(p_delayed_until)
            or array_position(p_delayed_until, null) is not null then
        return 'every delayed set of offsets needs a time: p_delayed and p_delayed_until must have the same length, and no nulls';
    elsif cardinality(p_delayed) = 0 then
        return null;
    elsif cardinality(p_delayed) > 100 then
        return 'the released records of a lease have too many different times: expected at most 100';
    elsif exists (select from unnest(p_delayed) as d where d is null or not d <@ p_release)
            or (select sum(sharequeue.records(d)) from unnest(p_delayed) as d)
                <> sharequeue.records((select range_agg(d) from unnest(p_delayed) as d)) then
        return 'every delayed offset must be among the released ones, and in only one set';
    end if;
    return (select sharequeue_internal.not_before_fault(u) from unnest(p_delayed_until) as u
        where sharequeue_internal.not_before_fault(u) is not null limit 1);
end
$$;
