-- Operators move stuck records: the named offsets become available again, or dead letters, whichever member holds them. The
-- holder is fenced: its acknowledgement of them gets INVALID_RECORD_STATE.

-- Applies p_act ('release' or 'dead_letter') to offsets; without p_execute only returns what it would do. Returns one row for
-- each set of offsets in one state of one holder. act is what is (or would be) done: 'release', 'dead_letter', 'archive'
-- (the group has no dead-letter topic), 'none' (it is already so) or 'refuse', with the reason. Refused offsets do not change,
-- and do not stop the others. Delivery counts do not change, except that a released record without a delivery left gets the
-- last one back.
create or replace function sharequeue.force(
    p_group_id text, p_topic text, p_partition integer, p_offsets int8multirange, p_act text, p_execute boolean
) returns setof sharequeue.forced
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_found record;
    v_sp sharequeue.share_partitions;
    v_settings sharequeue.group_settings;
    v_part record;
    v_row sharequeue.forced;
    v_before jsonb := '[]';
    v_completed bigint := 0;
    v_seen int8multirange := '{}';
begin
    select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, null, 'ALTER');
    v_row.error_code := v_found.error_code;
    v_row.error_message := v_found.error_message;
    if v_row.error_code = 0 and (p_execute is null or p_act is null or p_act not in ('release', 'dead_letter')
            or isempty(p_offsets) or sharequeue_internal.offsets_fault(p_offsets) is not null) then
        v_row.error_code := 42;
        v_row.error_message := 'the arguments of force are not valid: expected release or dead_letter, and a set of offsets from 0 to 2^63 - 2';
    end if;
    if v_row.error_code <> 0 then
        return next v_row;
        return;
    end if;
    v_sp := v_found.sp;
    v_settings := v_found.settings;
    if p_execute then
        v_sp := sharequeue_internal.settled(v_sp, sharequeue.clock());
    end if;
    for v_part in
        select f.first_offset, f.last_offset, f.part, f.state, f.delivery_count, f.isolate, f.not_before, l.member_id,
            sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)
                * p_offsets * int8multirange(int8range(v_sp.spso, null)) as offsets
        from sharequeue.in_flight_batches f left join sharequeue.leases l using (lease_id)
        where f.share_partition_id = v_sp.share_partition_id and f.last_offset >= v_sp.spso
            and f.last_offset >= lower(p_offsets) and f.first_offset < upper(p_offsets)
        order by f.first_offset, f.part
    loop
        continue when isempty(v_part.offsets);
        v_seen := v_seen + v_part.offsets;
        v_row := sharequeue_internal.forced_plan(p_act, v_part.state, v_part.delivery_count, v_part.member_id, v_part.offsets,
            v_part.isolate is not null or v_part.not_before is not null, v_settings);
        return next v_row;
        continue when not p_execute or v_row.act in ('none', 'refuse');
        v_before := v_before || to_jsonb(v_row);
        v_completed := v_completed + sharequeue_internal.force_part(v_sp.share_partition_id, v_part.first_offset,
            v_part.last_offset, v_part.part, v_part.delivery_count, v_part.offsets, v_row.act,
            v_settings.delivery_count_limit);
    end loop;
    if v_before <> '[]' then
        delete from sharequeue.leases l where l.share_partition_id = v_sp.share_partition_id
            and not exists (select from sharequeue.in_flight_batches f where f.lease_id = l.lease_id);
        update sharequeue.share_partitions set redeliverable = true
        where share_partition_id = v_sp.share_partition_id and p_act = 'release';
        if p_act = 'release' and v_sp.open_key_records > 0 then
            perform sharequeue_internal.stop_waiting(v_sp.share_partition_id, v_seen);
        end if;
        perform sharequeue_internal.lose_keys(v_sp.share_partition_id, sharequeue.clock());
        perform sharequeue_internal.advance_spso(v_sp.share_partition_id, v_completed);
        perform sharequeue_internal.audit('force_' || p_act, p_group_id, v_before,
            jsonb_build_object('topic', p_topic, 'partition', p_partition, 'offsets', p_offsets::text));
    end if;
    return query
        select 0::smallint, null::text, 'refuse', null::smallint, null::smallint, null::text, r.offsets, r.reason
        from (values
            (p_offsets * int8multirange(int8range(null, v_sp.spso)), 'finished: SPSO was at ' || v_sp.spso),
            (p_offsets * int8multirange(int8range(v_sp.spso, v_sp.speo)) - v_seen,
                'not in flight: no record was at the offset'),
            (p_offsets * int8multirange(int8range(v_sp.speo, null)), 'never delivered: SPEO is ' || v_sp.speo)
        ) as r (offsets, reason)
        where not isempty(r.offsets);
end
$$;

-- Returns what to do with a set of offsets in one state.
create or replace function sharequeue_internal.forced_plan(
    p_act text, p_state smallint, p_delivery_count smallint, p_member_id text, p_offsets int8multirange,
    p_held_back boolean, p_settings sharequeue.group_settings
) returns sharequeue.forced
language plpgsql immutable as $$
declare
    v_row sharequeue.forced;
begin
    v_row.error_code := 0;
    v_row.state := p_state;
    v_row.delivery_count := p_delivery_count;
    v_row.member_id := p_member_id;
    v_row.offsets := p_offsets;
    if p_state in (2, 4) then
        v_row.act := 'refuse';
        v_row.reason := 'finished: ' || case p_state when 2 then 'acknowledged' else 'archived' end;
    elsif p_state = 3 then
        v_row.act := 'refuse';
        v_row.reason := 'being written to the dead-letter topic';
    elsif p_act = 'dead_letter' then
        v_row.act := case when p_settings.dead_letters then 'dead_letter' else 'archive' end;
    elsif p_state = 0 and not p_held_back and p_delivery_count < p_settings.delivery_count_limit then
        v_row.act := 'none';
        v_row.reason := 'already available';
    else
        v_row.act := 'release';
        v_row.reason := case when p_delivery_count >= p_settings.delivery_count_limit
            then 'no delivery was left: it gets the last one back' end;
    end if;
    return v_row;
end
$$;

-- Applies the act to one part of a batch. Returns how many records are terminal now.
create or replace function sharequeue_internal.force_part(
    p_id bigint, p_first bigint, p_last bigint, p_part integer, p_delivery_count smallint, p_offsets int8multirange,
    p_act text, p_limit integer
) returns bigint
language plpgsql volatile as $$
begin
    perform sharequeue_internal.take(p_id, p_first, p_part, p_offsets);
    if p_act = 'release' then
        perform sharequeue_internal.place(p_id, p_first, p_last, 0::smallint, least(p_delivery_count, p_limit - 1)::smallint,
            p_offsets);
        return 0;
    elsif p_act = 'dead_letter' then
        perform sharequeue_internal.place(p_id, p_first, p_last, 3::smallint, p_delivery_count, p_offsets, null, 'rejected');
        return 0;
    end if;
    perform sharequeue_internal.place(p_id, p_first, p_last, 4::smallint, p_delivery_count, p_offsets, null, 'rejected');
    perform sharequeue_internal.join_terminal(p_id, p_first, p_first);
    perform sharequeue_internal.count_outcome(p_id, 'rejected', p_delivery_count, sharequeue.records(p_offsets));
    return sharequeue.records(p_offsets);
end
$$;
