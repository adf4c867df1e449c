-- Acknowledges records of one lease, as sets of offsets (R-AK-12).
--   accept: ACKNOWLEDGED.
--   release: AVAILABLE, not before p_not_before if that is given; given up when the deliveries are used up (R-ST-4).
--   reject: given up.
--   gap: ARCHIVED, never a dead letter.
-- All or nothing (R-AK-14). Offsets below SPSO succeed, and nothing happens (R-AK-6), but for what retention took from under
-- the lease of this token: accepted, it counts as accepted and no longer as lost. Records of the lease that are in no set
-- stay leased.
--
-- An output that is named here counts from this commit on. So there is one holder only: the lease has that token and has not
-- lapsed, and every offset of the sets is held under it, also those below SPSO. A lease has one output for each sink.
create or replace function sharequeue.acknowledge(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_accept int8multirange, p_release int8multirange, p_reject int8multirange,
    p_gap int8multirange, p_outputs jsonb default '[]', p_renew int8multirange default '{}',
    p_not_before timestamptz default null
) returns sharequeue.acknowledged
-- One plan for all calls: a plan for one call is made anew at each, and costs more than what it does. It may be made while
-- tables are small, and then reads none of them whole.
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
            sharequeue_internal.not_before_fault(p_not_before));
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
        -- What was found to be held is not looked for again.
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
        v_sp, v_found.settings, p_member_id, p_token, v_from_spso, coalesce(v_held, '{}'), p_not_before, v_at);
    insert into sharequeue.lease_outputs (lease_id, sink, group_id, topic, partition, topic_id, location, records,
        acknowledged_at)
    select v_lease_id, o->>'sink', p_group_id, p_topic, p_partition, v_sp.topic_id, o->>'location', (o->>'records')::bigint, v_at
    from jsonb_array_elements(p_outputs) as o;
    perform sharequeue_internal.remember(v_key, 'acknowledge', to_jsonb(v_result));
    return v_result;
end
$$;
