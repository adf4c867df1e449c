-- Leases the next records of one share-partition to a member: redeliverable ones first, lowest offset first, then
-- fresh ones up to the log end (the last stable offset under read_committed). One row per delivery count, all under
-- one lease; no row when there is nothing to lease; one row with an error code when the call is refused.
-- Redelivery is fan_out (design: poison isolation): suspects come in their own lease, in parts of bounded size; what
-- was released by an answer comes back together. Fresh records stop at share.partition.max.record.locks between SPSO
-- and SPEO; redelivery inside that window does not.
create or replace function sharequeue.acquire(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text,
    p_member_epoch integer, p_max_records bigint, p_lock_duration_ms integer default null, p_request_id uuid default null
) returns setof sharequeue.acquired
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_error smallint;
    v_message text;
    v_found record;
    v_sp sharequeue.share_partitions;
    v_answer jsonb;
    v_at timestamptz;
    v_lock_ms integer;
    v_limit integer;
    v_head record;
    v_part record;
    v_taken int8multirange := '{}';
    v_budget bigint := p_max_records;
    v_fresh_to bigint;
    v_lease_id bigint;
    v_token uuid;
begin
    select * into v_found from sharequeue.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    v_error := v_found.error_code;
    v_message := v_found.error_message;
    v_sp := v_found.share_partition;
    select answer into v_answer from sharequeue.requests where request_id = p_request_id and operation = 'acquire';
    if found then
        return query select * from jsonb_populate_recordset(null::sharequeue.acquired, v_answer);
        return;
    end if;
    if v_error = 0 and v_sp.status = 'topic_recreated' then
        v_error := 100;
        v_message := format('topic %s was deleted and made again since group %s started on it', p_topic, p_group_id);
    end if;
    if v_error = 0 and (p_max_records is null or p_max_records < 0 or p_member_id is null) then
        v_error := 42;
        v_message := 'acquire needs a member id and a number of records that is not negative';
    end if;
    if v_error = 0 then
        select * into v_error, v_message from sharequeue.check_member(p_group_id, p_member_id, p_member_epoch);
    end if;
    if v_error <> 0 then
        return next row(v_error, v_message, null, null, null, null, null, null, null)::sharequeue.acquired;
        return;
    end if;

    v_at := sharequeue.clock();
    v_limit := sharequeue.group_config(p_group_id, 'share.delivery.count.limit')::integer;
    v_lock_ms := coalesce(p_lock_duration_ms, sharequeue.group_config(p_group_id, 'share.record.lock.duration.ms')::integer);
    perform sharequeue.settle_lapsed(v_sp.share_partition_id, v_at);

    select in_flight_id, isolate, offsets into v_head
    from sharequeue.in_flight
    where share_partition_id = v_sp.share_partition_id and state = 0
    order by lower(offsets) limit 1;
    if v_head.isolate is not null then
        v_taken := sharequeue.first_records(v_head.offsets, least(v_budget, v_head.isolate));
        v_budget := 0;
    elsif v_head.in_flight_id is not null then
        select sharequeue.first_records(range_agg(offsets), v_budget) into v_taken
        from sharequeue.in_flight
        where share_partition_id = v_sp.share_partition_id and state = 0 and isolate is null;
        v_budget := v_budget - sharequeue.records(v_taken);
    end if;
    v_fresh_to := least(
        case sharequeue.group_config(p_group_id, 'share.isolation.level')
            when 'read_committed' then v_sp.last_stable_offset else v_sp.log_end end,
        v_sp.speo + v_budget,
        v_sp.spso + sharequeue.group_config(p_group_id, 'share.partition.max.record.locks')::bigint);
    if isempty(v_taken) and v_fresh_to <= v_sp.speo then
        perform sharequeue.advance_spso(v_sp.share_partition_id);
        return;
    end if;

    insert into sharequeue.leases (share_partition_id, member_id, member_epoch, lock_duration_ms, acquired_at, expires_at)
    values (v_sp.share_partition_id, p_member_id, coalesce(p_member_epoch, -1), v_lock_ms, v_at,
        v_at + v_lock_ms * interval '1 millisecond')
    returning lease_id, token into v_lease_id, v_token;
    for v_part in
        select in_flight_id, delivery_count, offsets * v_taken as offsets
        from sharequeue.in_flight
        where share_partition_id = v_sp.share_partition_id and state = 0
            and isolate is not distinct from v_head.isolate and offsets && v_taken
            and (isolate is null or in_flight_id = v_head.in_flight_id)
    loop
        perform sharequeue.take(v_part.in_flight_id, v_part.offsets);
        -- At the limit already: one of many that shared their last delivery. It comes once more, alone, uncounted.
        perform sharequeue.place(v_sp.share_partition_id, 1::smallint,
            least(v_part.delivery_count + 1, greatest(v_limit, v_part.delivery_count))::smallint,
            v_part.offsets, v_lease_id);
    end loop;
    if v_fresh_to > v_sp.speo then
        perform sharequeue.place(v_sp.share_partition_id, 1::smallint, 1::smallint,
            int8multirange(int8range(v_sp.speo, v_fresh_to)), v_lease_id);
        update sharequeue.share_partitions set speo = v_fresh_to where share_partition_id = v_sp.share_partition_id;
    end if;
    perform sharequeue.advance_spso(v_sp.share_partition_id);
    if p_request_id is not null then
        select jsonb_agg(jsonb_build_object('error_code', 0, 'lease_id', v_lease_id, 'token', v_token,
            'state_epoch', v_sp.state_epoch, 'lock_duration_ms', v_lock_ms,
            'expires_at', v_at + v_lock_ms * interval '1 millisecond',
            'delivery_count', delivery_count, 'offsets', offsets::text) order by delivery_count) into v_answer
        from sharequeue.in_flight where lease_id = v_lease_id;
        perform sharequeue.remember(p_request_id, 'acquire', v_answer);
    end if;
    return query
        select 0::smallint, null::text, v_lease_id, v_token, v_sp.state_epoch, v_lock_ms,
            v_at + v_lock_ms * interval '1 millisecond', delivery_count, offsets
        from sharequeue.in_flight where lease_id = v_lease_id order by delivery_count;
end
$$;
