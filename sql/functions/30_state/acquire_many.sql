-- acquire, for many share-partitions in the order given (R-AQ-18). They share p_max_records and, unless it is null,
-- p_max_bytes. p_mean_bytes has the mean bytes of a record for each share-partition, p_leave_outs the p_leave_out of acquire.
-- The first lease has at least one record, however large it is.
--
-- Under fan_out up to p_parts parts of the suspects of one share-partition are leased, one lease each, for a worker that
-- processes them in parallel. The last attempt of a suspect is leased alone. With p_last_attempt it comes first, and nothing
-- else is leased; otherwise it is not leased.
create or replace function sharequeue.acquire_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_member_id text, p_member_epoch integer,
    p_max_records bigint, p_lock_duration_ms integer default null, p_request_id uuid default null,
    p_redelivery text default 'kafka', p_mode text default 'batch_optimized', p_max_bytes bigint default null,
    p_mean_bytes double precision[] default null, p_leave_outs int8multirange[] default null,
    p_parts integer default 1, p_last_attempt boolean default true
) returns setof sharequeue.acquired_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    -- The rows without their sets, and the sets apart: so the copied and stored JSON stays small.
    v_rows sharequeue.acquired_of[] := '{}';
    v_sets int8multirange[] := '{}';
    v_set int8multirange;
    v_key uuid;
    v_result jsonb;
    v_there boolean[];
    v_suspects boolean;
    v_last_attempt boolean;
    v_row sharequeue.acquired;
    v_order integer[];
    v_place integer;
    v_parts integer;
    v_wanted bigint;
    v_got bigint;
    v_leases integer := 0;
    v_left bigint := p_max_records;
    v_bytes double precision := p_max_bytes;
    v_alone boolean := false;
begin
    perform sharequeue.require_read_committed();
    if p_parts is null or p_parts not between 1 and 1000 or p_last_attempt is null or p_max_records is null
            or p_max_records not between 0 and 4611686018427387904
            or p_max_bytes < 0 or (p_max_bytes is not null and p_mean_bytes is null)
            or exists (select from unnest(p_mean_bytes) as m where m is null or m not between 0.001 and 1e15) then
        raise exception 'the arguments of acquire_many are not valid: expected a number of records from 0 to 2^62, 1 to 1000 '
            'parts, p_last_attempt, and with p_max_bytes also p_mean_bytes for each share-partition' using errcode = 'SQ042';
    end if;
    v_there := sharequeue_internal.lock_share_partitions(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_mean_bytes), cardinality(p_topics)),
        coalesce(cardinality(p_leave_outs), cardinality(p_topics)));
    v_key := sharequeue_internal.request_key_many(
        p_group_id, p_topics, p_partitions, 'acquire_many', p_member_id, p_request_id);
    v_result := sharequeue_internal.stored_result(v_key);
    if v_result is not null then
        v_rows := array(select r from jsonb_populate_recordset(null::sharequeue.acquired_of, v_result) as r);
        v_sets := (select sets from sharequeue.requests where request_key = v_key);
        return query select * from sharequeue_internal.with_sets(v_rows, v_sets);
        return;
    end if;
    v_order := array(select generate_series(1, cardinality(p_topics)));
    if p_redelivery = 'fan_out' and p_last_attempt then
        for v_place in
            select n.place
            from unnest(p_topics, p_partitions) with ordinality as n (topic, partition, place)
            join sharequeue.share_partitions sp
                on sp.group_id = p_group_id and sp.topic = n.topic and sp.partition = n.partition
            where sp.redeliverable or sp.next_expiry <= sharequeue.clock() order by n.place
        loop
            continue when not v_there[v_place];
            select n.last_attempt into v_alone
            from sharequeue_internal.next_suspects(p_group_id, p_topics[v_place], p_partitions[v_place],
                coalesce(p_leave_outs[v_place], '{}')) as n;
            if v_alone then
                v_order := array[v_place] || array_remove(v_order, v_place);
                exit;
            end if;
        end loop;
    end if;
    foreach v_place in array v_order loop
        if not v_there[v_place] then
            select a.error_code, a.error_message into v_row.error_code, v_row.error_message
            from sharequeue_internal.absent(p_group_id, p_topics[v_place], p_partitions[v_place], 'READ') as a;
            v_rows := v_rows || row(p_topics[v_place], p_partitions[v_place], false, false, v_row.error_code,
                v_row.error_message, null, null, null, null, null, null, null, null)::sharequeue.acquired_of;
            v_sets := array_append(v_sets, null);
            continue;
        end if;
        v_parts := 0;
        loop
            v_wanted := case when p_max_bytes is null then v_left
                else floor(least(v_left, v_bytes / p_mean_bytes[v_place]))::bigint end;
            if v_leases = 0 and v_left > 0 then
                v_wanted := greatest(v_wanted, 1);
            end if;
            exit when v_wanted <= 0 and p_max_records <> 0;
            v_suspects := false;
            v_last_attempt := false;
            if p_redelivery = 'fan_out' then
                select n.suspects, n.last_attempt into v_suspects, v_last_attempt
                from sharequeue_internal.next_suspects(p_group_id, p_topics[v_place], p_partitions[v_place],
                    coalesce(p_leave_outs[v_place], '{}')) as n;
                exit when v_last_attempt and not (v_alone and v_leases = 0);
            end if;
            v_got := 0;
            for v_row in
                select * from sharequeue.acquire(p_group_id => p_group_id, p_topic => p_topics[v_place],
                    p_partition => p_partitions[v_place], p_state_epoch => null, p_member_id => p_member_id,
                    p_member_epoch => p_member_epoch, p_max_records => v_wanted,
                    p_lock_duration_ms => p_lock_duration_ms, p_redelivery => p_redelivery, p_mode => p_mode,
                    p_leave_out => coalesce(p_leave_outs[v_place], '{}'))
            loop
                v_set := v_row.offsets;
                v_row.offsets := null;
                v_rows := v_rows || row(p_topics[v_place], p_partitions[v_place], v_suspects, v_last_attempt,
                    v_row.*)::sharequeue.acquired_of;
                v_sets := array_append(v_sets, v_set);
                v_got := v_got + sharequeue.records(coalesce(v_set, '{}'));
            end loop;
            exit when v_got = 0;
            v_leases := v_leases + 1;
            v_parts := v_parts + 1;
            v_left := v_left - v_got;
            v_bytes := v_bytes - v_got * p_mean_bytes[v_place];
            exit when v_last_attempt or not v_suspects or v_parts >= p_parts;
        end loop;
        exit when v_alone and v_leases > 0;
    end loop;
    if v_leases > 0 then
        perform sharequeue_internal.remember(v_key, 'acquire_many', to_jsonb(v_rows), v_sets);
    end if;
    return query select * from sharequeue_internal.with_sets(v_rows, v_sets);
end
$$;

-- Returns rows of acquire_many with their sets of offsets, which are stored apart. Rows that an earlier release stored already
-- have them.
create or replace function sharequeue_internal.with_sets(p_rows sharequeue.acquired_of[], p_sets int8multirange[])
returns setof sharequeue.acquired_of
language sql immutable as $$
    select r.topic, r.partition, r.suspects, r.last_attempt, r.error_code, r.error_message, r.lease_id, r.token,
        r.state_epoch, r.lock_duration_ms, r.expires_at, r.delivery_count, coalesce(r.set, r.offsets),
        r.isolation_level
    from unnest(p_rows, p_sets) as r (topic, partition, suspects, last_attempt, error_code, error_message, lease_id, token,
        state_epoch, lock_duration_ms, expires_at, delivery_count, offsets, isolation_level, set)
$$;

-- Returns what would be leased next under fan_out: whether these are suspects, and whether it is their last attempt. A lease for
-- a last attempt has one record, and a worker that dies on it must hold nothing else.
create or replace function sharequeue_internal.next_suspects(
    p_group_id text, p_topic text, p_partition integer, p_leave_out int8multirange,
    out suspects boolean, out last_attempt boolean
)
language plpgsql volatile as $$
declare
    v_sp record;
    v_at timestamptz := sharequeue.clock();
    v_leave_out int8multirange := p_leave_out;
begin
    suspects := false;
    last_attempt := false;
    select sp.share_partition_id, sp.redeliverable, sp.next_expiry, sp.speo, s.delivery_count_limit,
        case when s.read_committed then sp.last_stable_offset else sp.log_end end as read_end into v_sp
    from sharequeue.share_partitions sp join sharequeue.group_settings s using (group_id)
    where sp.group_id = p_group_id and sp.topic = p_topic and sp.partition = p_partition;
    if v_sp.next_expiry <= v_at then
        perform sharequeue_internal.settle_lapsed(v_sp.share_partition_id, v_at);
    elsif not coalesce(v_sp.redeliverable, false) then
        return;
    end if;
    if v_sp.read_end < v_sp.speo then
        v_leave_out := p_leave_out + int8multirange(int8range(v_sp.read_end, null));  -- as in take_fan_out
    end if;
    select f.isolate is not null, f.isolate is not null and f.delivery_count >= v_sp.delivery_count_limit - 1
    into suspects, last_attempt
    from sharequeue.in_flight_batches f
    where f.share_partition_id = v_sp.share_partition_id and f.state = 0
        and f.first_offset = sharequeue_internal.next_available(v_sp.share_partition_id, 0, v_at, v_leave_out)
        and (f.not_before is null or f.not_before <= v_at)
        and not sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) <@ v_leave_out
    order by lower(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) - v_leave_out) limit 1;
    suspects := coalesce(suspects, false);
    last_attempt := coalesce(last_attempt, false);
end
$$;
