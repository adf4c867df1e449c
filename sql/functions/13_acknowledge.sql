-- Answers records of one lease (R-AK-12): accept → ACKNOWLEDGED; release → AVAILABLE, or given up when its deliveries
-- are used up (R-ST-4); reject → given up; gap → ARCHIVED, never a dead letter. All or nothing (R-AK-14). What lies
-- below SPSO succeeds silently (R-AK-6). Records of the lease that no set names stay leased. An output named here
-- counts from this commit on.
create or replace function sharequeue.acknowledge(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_accept int8multirange, p_release int8multirange, p_reject int8multirange,
    p_gap int8multirange, p_outputs jsonb default '[]'
) returns sharequeue.acknowledged
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_answer sharequeue.acknowledged;
    v_found record;
    v_stored jsonb;
    v_sp sharequeue.share_partitions;
    v_lease sharequeue.leases;
    v_asked int8multirange := p_accept + p_release + p_reject + p_gap;
    v_window int8multirange;
    v_held int8multirange;
    v_part record;
    v_limit integer;
begin
    select * into v_found from sharequeue.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    v_answer.error_code := v_found.error_code;
    v_answer.error_message := v_found.error_message;
    v_sp := v_found.share_partition;
    select answer into v_stored from sharequeue.requests where request_id = p_request_id and operation = 'acknowledge';
    if found then
        return jsonb_populate_record(null::sharequeue.acknowledged, v_stored);
    end if;
    if v_answer.error_code <> 0 then
        return v_answer;
    end if;
    if v_asked is null then
        v_answer.error_code := 42;
        v_answer.error_message := 'every set of offsets must be given; an empty one is {}';
        return v_answer;
    end if;
    if sharequeue.records(v_asked) <> sharequeue.records(p_accept) + sharequeue.records(p_release)
            + sharequeue.records(p_reject) + sharequeue.records(p_gap) then
        v_answer.error_code := 42;
        v_answer.error_message := 'an offset has more than one answer: the sets of one call must not overlap';
        return v_answer;
    end if;
    select * into v_answer.error_code, v_answer.error_message
    from sharequeue.check_member(p_group_id, p_member_id, p_member_epoch);
    if v_answer.error_code <> 0 then
        return v_answer;
    end if;

    perform sharequeue.settle_lapsed(v_sp.share_partition_id, sharequeue.clock());
    select * into v_lease from sharequeue.leases
    where token = p_token and share_partition_id = v_sp.share_partition_id and member_id = p_member_id;
    select coalesce(range_agg(offsets), '{}') into v_held from sharequeue.in_flight where lease_id = v_lease.lease_id;
    -- Records of this lease that the log start has overtaken are let go without an outcome.
    v_window := int8multirange(int8range(v_sp.spso, null));
    v_asked := v_asked * v_window;
    if not v_asked <@ v_held then
        v_answer.error_code := 121;
        v_answer.error_message := format('offset %s is not held under this lease: its lock lapsed, it was answered '
            'already, or it belongs to another member', lower(v_asked - v_held));
        return v_answer;
    end if;

    v_limit := sharequeue.group_config(p_group_id, 'share.delivery.count.limit')::integer;
    v_answer.accepted := 0; v_answer.released := 0; v_answer.rejected := 0; v_answer.gaps := 0; v_answer.exhausted := 0;
    for v_part in
        select in_flight_id, delivery_count, offsets - v_window as overtaken,
            offsets * p_accept * v_window as accept, offsets * p_release * v_window as release,
            offsets * p_reject * v_window as reject, offsets * p_gap * v_window as gap
        from sharequeue.in_flight where lease_id = v_lease.lease_id
    loop
        perform sharequeue.take(v_part.in_flight_id,
            v_part.overtaken + v_part.accept + v_part.release + v_part.reject + v_part.gap);
        perform sharequeue.place(v_sp.share_partition_id, 2::smallint, v_part.delivery_count, v_part.accept);
        perform sharequeue.count_outcome(
            v_sp.share_partition_id, 'accepted', v_part.delivery_count, sharequeue.records(v_part.accept));
        perform sharequeue.place(v_sp.share_partition_id, 4::smallint, v_part.delivery_count, v_part.gap, null, 'gap');
        perform sharequeue.count_outcome(
            v_sp.share_partition_id, 'gap', v_part.delivery_count, sharequeue.records(v_part.gap));
        perform sharequeue.give_up(
            v_sp.share_partition_id, p_group_id, 'rejected', v_part.delivery_count, v_part.reject);
        if v_part.delivery_count >= v_limit then
            perform sharequeue.give_up(
                v_sp.share_partition_id, p_group_id, 'exceeded', v_part.delivery_count, v_part.release);
            v_answer.exhausted := v_answer.exhausted + sharequeue.records(v_part.release);
        else
            perform sharequeue.place(v_sp.share_partition_id, 0::smallint, v_part.delivery_count, v_part.release);
            v_answer.released := v_answer.released + sharequeue.records(v_part.release);
        end if;
        v_answer.accepted := v_answer.accepted + sharequeue.records(v_part.accept);
        v_answer.rejected := v_answer.rejected + sharequeue.records(v_part.reject);
        v_answer.gaps := v_answer.gaps + sharequeue.records(v_part.gap);
    end loop;
    delete from sharequeue.leases l where l.lease_id = v_lease.lease_id
        and not exists (select from sharequeue.in_flight f where f.lease_id = l.lease_id);
    insert into sharequeue.lease_outputs (lease_id, sink, share_partition_id, location, records, acknowledged_at)
    select v_lease.lease_id, o->>'sink', v_sp.share_partition_id, o->>'location', (o->>'records')::bigint,
        sharequeue.clock()
    from jsonb_array_elements(p_outputs) as o;
    perform sharequeue.advance_spso(v_sp.share_partition_id);
    select spso, greatest(0, log_end - spso - delivery_complete_count) into v_answer.spso, v_answer.lag
    from sharequeue.share_partitions where share_partition_id = v_sp.share_partition_id;
    perform sharequeue.remember(p_request_id, 'acknowledge', to_jsonb(v_answer));
    return v_answer;
end
$$;
