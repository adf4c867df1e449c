-- Leases the next records of share-partitions to a member, in the order given (R-AQ-18): first redeliverable ones, lowest offset
-- first, then fresh ones up to the log end (under read_committed up to the last stable offset). A lease has one row for each
-- delivery count, for 'kafka' one for each range. No row where there is nothing to lease or leasing is paused; one row with an
-- error code where it is refused.
-- The records are to be read at the isolation level that is returned, and at no other. A stricter reader does not see the
-- records of an open transaction, and takes them for gaps; a looser one sees those of aborted transactions.
--
-- The share-partitions share p_max_records and, unless it is null, p_max_bytes. p_mean_bytes has the mean bytes of a record for
-- each share-partition. The first lease has at least one record, however large it is. p_leave_outs has for each share-partition
-- the offsets that this caller does not want again, under fan_out; other callers may lease them.
--
-- p_redelivery is 'kafka' (the throttle near the delivery limit, R-TH) or 'fan_out' (suspects come in parts of their own,
-- so that a record that kills its worker fails alone). Under fan_out up to p_parts parts of the suspects of one share-partition
-- are leased, one lease each, for a worker that processes them in parallel. The last attempt of a suspect is leased alone.
-- With p_last_attempt it comes first, and nothing else is leased; otherwise it is not leased, and the records behind it are.
--
-- For 'kafka' only: p_mode is 'batch_optimized' or 'record_limit'. p_log is what a broker's fetch would know of the log: the
-- number of records that it carries, first and last offsets of the log's batches (R-AQ; without them one acquire is one batch,
-- cut exactly at its budget), and the offsets of aborted transactions (R-IL-3), which count under read_committed only.
create or replace function sharequeue.acquire_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_member_id text, p_member_epoch integer,
    p_max_records bigint, p_lock_duration_ms integer default null, p_request_id uuid default null,
    p_redelivery text default 'kafka', p_mode text default 'batch_optimized', p_max_bytes bigint default null,
    p_mean_bytes double precision[] default null, p_leave_outs int8multirange[] default null,
    p_parts integer default 1, p_last_attempt boolean default true, p_state_epoch integer default null,
    p_log sharequeue.fetched_log default row(null, null, null, '{}')::sharequeue.fetched_log
) returns setof sharequeue.acquired_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_request sharequeue_internal.acquire_request := row(p_group_id, p_topics, p_partitions, p_state_epoch, p_max_records,
        p_max_bytes, p_mean_bytes, p_leave_outs, p_parts, p_last_attempt);
    v_sps sharequeue.share_partitions[];
    v_settings sharequeue.group_settings;
    v_key uuid;
    v_acquired sharequeue_internal.acquired_rows;
    v_rows sharequeue.acquired_of[];
    v_sets int8multirange[];
    v_row sharequeue.acquired_of;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_budget(v_request);
    v_sps := sharequeue_internal.lock_share_partitions(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_mean_bytes), cardinality(p_topics)),
        coalesce(cardinality(p_leave_outs), cardinality(p_topics)));
    select * into v_settings from sharequeue.group_settings where group_id = p_group_id;
    v_key := sharequeue_internal.request_key(
        v_settings, p_group_id, p_topics, p_partitions, 'acquire_many', p_member_id, p_request_id);
    return query select * from sharequeue_internal.acquired_before(v_key);
    if found then
        return;
    end if;
    v_acquired := sharequeue_internal.acquire_in_turn(v_sps, v_settings, row(p_member_id, p_member_epoch, null),
        v_request, row(p_lock_duration_ms, p_redelivery, p_mode, p_log.batch_size, p_log.firsts, p_log.lasts, p_log.aborted, '{}'),
        sharequeue.clock());
    v_rows := v_acquired.rows;
    v_sets := v_acquired.sets;
    if v_acquired.records > 0 then
        perform sharequeue_internal.remember(v_key, 'acquire_many', to_jsonb(v_rows), v_sets);
    end if;
    for v_number in 1 .. cardinality(v_rows) loop
        v_row := v_rows[v_number];
        v_row.offsets := coalesce(v_sets[v_number], v_row.offsets);
        return next v_row;
    end loop;
end
$$;

-- Leases from one share-partition after the other, or refuses it. All are locked, in the order of the call.
create or replace function sharequeue_internal.acquire_in_turn(
    p_sps sharequeue.share_partitions[], p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder,
    p_request sharequeue_internal.acquire_request, p_options sharequeue_internal.fetch_options, p_at timestamptz
) returns sharequeue_internal.acquired_rows
language plpgsql volatile as $$
declare
    v_sps sharequeue.share_partitions[] := p_sps;
    v_sp sharequeue.share_partitions;
    v_call sharequeue_internal.fault := sharequeue_internal.check_acquire(p_settings, p_holder, p_options);
    v_fault sharequeue_internal.fault;
    v_options sharequeue_internal.fetch_options := p_options;
    -- Of an active share-partition there is nothing to refuse.
    v_allowed boolean := coalesce(v_call.error_code = 0 and not p_settings.acls_apply and p_request.state_epoch is null, false);
    v_latest timestamptz := sharequeue_internal.latest_expiry(p_settings, p_at);
    v_fresh_only boolean := p_settings.breaker_percent = 0 and p_options.log_firsts is null and isempty(p_options.aborted);
    v_seen bigint[] := '{}';
    v_alone integer;
    v_place integer;
    v_usual boolean;
    v_left bigint := p_request.max_records;
    v_bytes double precision := p_request.max_bytes;
    v_wanted bigint;
    v_got bigint;
    v_rows sharequeue.acquired_of[] := '{}';
    v_row sharequeue.acquired_of;
    v_sets int8multirange[] := '{}';
    v_fresh sharequeue_internal.new_leases;
begin
    if p_settings.ordered then
        v_options.redelivery := 'fan_out';
    end if;
    if v_options.redelivery = 'fan_out' and p_request.last_attempt and v_call.error_code = 0 then
        select a.p_sps, a.place into v_sps, v_alone
        from sharequeue_internal.last_attempt_first(v_sps, p_settings, p_request, p_at) as a;
    end if;
    for v_turn in case when v_alone is null then 1 else 0 end .. cardinality(v_sps) loop
        v_place := case v_turn when 0 then v_alone else v_turn end;
        continue when v_turn = v_alone;
        v_sp := v_sps[v_place];
        if v_sp.share_partition_id = any (v_seen) then
            -- Named twice: what has been leased from it is written first.
            perform sharequeue_internal.write_leases(v_fresh, p_settings, p_holder, p_options, p_at);
            v_fresh := null;
            select * into v_sp from sharequeue.share_partitions where share_partition_id = v_sp.share_partition_id;
        end if;
        v_seen := v_seen || v_sp.share_partition_id;
        v_wanted := sharequeue_internal.wanted_records(
            v_left, v_bytes, p_request.mean_bytes[v_place], v_left = p_request.max_records);
        continue when v_wanted <= 0 and p_request.max_records > 0 and v_sp.share_partition_id is not null and v_call.error_code = 0;
        if not v_allowed or v_sp.status is distinct from 'active' then
            v_fault := sharequeue_internal.acquire_fault(v_sp, p_settings, p_request, v_place, v_call);
            if v_fault.error_code <> 0 then
                v_rows := v_rows || sharequeue_internal.refused_acquire(p_request, v_place, v_fault);
                v_sets := array_append(v_sets, null);
                continue;
            end if;
        end if;
        if v_sp.next_expiry <= p_at or v_sp.next_expiry > v_latest then
            v_sp := sharequeue_internal.settled(v_sp, p_at, v_latest);
        end if;
        continue when v_sp.paused_reason is not null or p_settings.paused_reason is not null;
        if p_settings.ordered or v_sp.open_key_records > 0 or not v_sp.keys_unknown then
            v_sp := sharequeue_internal.in_order(v_sp, p_settings, p_at);
            continue when v_sp.share_partition_id is null;
        end if;
        v_usual := v_fresh_only and not v_sp.redeliverable and not v_sp.advance_due and not p_settings.ordered;
        v_got := 0;
        if v_usual then
            -- The leases of all such share-partitions are written together. acquire_under_lock has the rule in full. P4 with 16
            -- share-partitions in a call: without this, 1.7 times the server's time.
            v_got := greatest(0, sharequeue_internal.fresh_records(v_sp, p_settings, v_wanted, p_at));
            continue when v_got = 0;
            v_row := sharequeue_internal.new_lease(v_sp, p_settings, p_options, v_got, p_at);
            v_rows := v_rows || v_row;
            v_sets := array_append(v_sets, null);
            v_fresh.share_partition_ids := v_fresh.share_partition_ids || v_sp.share_partition_id;
            v_fresh.rows := v_fresh.rows || v_row;
        else
            v_options.leave_out := coalesce(p_request.leave_outs[v_place], '{}');
            for v_row in
                select * from sharequeue_internal.acquire_parts(v_sp, p_settings, p_holder, v_wanted, v_options,
                    case when v_alone is null and not p_settings.ordered then p_request.parts else 1 end,
                    v_alone is not null and v_left = p_request.max_records, p_at)
            loop
                v_got := v_got + sharequeue.records(v_row.offsets);
                -- The sets are apart from the rows: so the copied and stored JSON stays small.
                v_sets := array_append(v_sets, v_row.offsets);
                v_row.offsets := null;
                v_rows := v_rows || v_row;
            end loop;
        end if;
        v_left := v_left - v_got;
        v_bytes := v_bytes - v_got * p_request.mean_bytes[v_place];
        exit when v_alone is not null and v_got > 0 and not v_usual;
    end loop;
    perform sharequeue_internal.write_leases(v_fresh, p_settings, p_holder, p_options, p_at);
    return row(v_rows, v_sets, p_request.max_records - v_left);
end
$$;

-- Checks how much a call requests.
create or replace function sharequeue_internal.check_budget(p_request sharequeue_internal.acquire_request) returns void
language plpgsql immutable as $$
begin
    if p_request.parts is null or p_request.parts not between 1 and 1000 or p_request.last_attempt is null
            or p_request.max_records is null or p_request.max_records not between 0 and 4611686018427387904
            or p_request.max_bytes < 0 or (p_request.max_bytes is not null and p_request.mean_bytes is null)
            or (p_request.mean_bytes is not null and exists (
                select from unnest(p_request.mean_bytes) as m where m is null or m not between 0.001 and 1e15)) then
        raise exception 'the arguments of acquire_many are not valid: expected a number of records from 0 to 2^62, 1 to 1000 '
            'parts, p_last_attempt, and with p_max_bytes also p_mean_bytes for each share-partition' using errcode = 'SQ042';
    end if;
end
$$;

-- Returns how many records may still be leased; without p_bytes there is no limit of bytes. The first lease of a call has at
-- least one record, however large it is.
create or replace function sharequeue_internal.wanted_records(
    p_left bigint, p_bytes double precision, p_mean_bytes double precision, p_first boolean
) returns bigint
language sql immutable parallel safe as $$
    select greatest(case when p_bytes is null then p_left else floor(least(p_left, p_bytes / p_mean_bytes))::bigint end,
        case when p_first then least(1, p_left) end)
$$;

-- Returns the stored result of a call that came before, the rows with their sets; no row if it did not come. Rows without a
-- stored set have only fresh records, which are one range.
create or replace function sharequeue_internal.acquired_before(p_request_key uuid) returns setof sharequeue.acquired_of
language sql stable as $$
    select r.topic, r.partition, r.suspects, r.last_attempt, r.error_code, r.error_message, r.lease_id, r.token,
        r.state_epoch, r.lock_duration_ms, r.expires_at, r.delivery_count, coalesce(r.set, r.offsets), r.isolation_level, r.ordered
    from sharequeue.requests q cross join lateral unnest(
        array(select p from jsonb_populate_recordset(null::sharequeue.acquired_of, q.result) as p), q.sets) as r (
        topic, partition, suspects, last_attempt, error_code, error_message, lease_id, token, state_epoch, lock_duration_ms,
        expires_at, delivery_count, offsets, isolation_level, ordered, set)
    where q.request_key = p_request_key
$$;

-- Returns the error of an acquire from a locked share-partition: first that of the caller and of the state epoch, then that of a
-- topic that was created again, then that of the call's arguments.
create or replace function sharequeue_internal.acquire_fault(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_request sharequeue_internal.acquire_request,
    p_place integer, p_call sharequeue_internal.fault
) returns sharequeue_internal.fault
language plpgsql stable as $$
declare
    v_fault sharequeue_internal.fault := sharequeue_internal.share_partition_fault(p_sp, p_settings,
        p_request.group_id, p_request.topics[p_place], p_request.partitions[p_place], p_request.state_epoch, 'READ');
begin
    if v_fault.error_code <> 0 then
        return v_fault;
    elsif p_sp.status = 'topic_recreated' then
        v_fault.error_code := 100;
        v_fault.error_message := (
            select l.reason from sharequeue.lost_topics l
            where l.group_id = p_sp.group_id and l.topic = p_sp.topic and l.topic_id = p_sp.topic_id);
        return v_fault;
    end if;
    return p_call;
end
$$;

-- Returns the row of a share-partition that refuses an acquire.
create or replace function sharequeue_internal.refused_acquire(
    p_request sharequeue_internal.acquire_request, p_place integer, p_fault sharequeue_internal.fault
) returns sharequeue.acquired_of
language sql immutable parallel safe as $$
    select row(p_request.topics[p_place], p_request.partitions[p_place], false, false, p_fault.error_code,
        p_fault.error_message, null, null, null, null, null, null, null, null, false)::sharequeue.acquired_of
$$;

-- Returns the error of a call's arguments; error code 0 if there is none.
create or replace function sharequeue_internal.check_acquire(
    p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder, p_options sharequeue_internal.fetch_options,
    out error_code smallint, out error_message text
)
language plpgsql stable as $$
begin
    error_code := 42;
    if p_options.redelivery is null or p_options.redelivery not in ('kafka', 'fan_out') then
        error_message := format('redelivery must be kafka or fan_out, not %s', p_options.redelivery);
    elsif p_options.mode is null or p_options.mode not in ('batch_optimized', 'record_limit') then
        error_message := format('the acquire mode must be batch_optimized or record_limit, not %s', p_options.mode);
    elsif p_options.lock_duration_ms not between p_settings.min_lock_duration_ms and p_settings.max_lock_duration_ms then
        error_message := format('a lock of %s ms is outside the service''s bounds, %s to %s ms: choose a duration inside, or '
            'set group.share.min.record.lock.duration.ms and its max where the service starts',
            p_options.lock_duration_ms, p_settings.min_lock_duration_ms, p_settings.max_lock_duration_ms);
    elsif p_options.log_firsts is not null or p_options.log_lasts is not null then
        if p_options.log_firsts is null or p_options.log_lasts is null then
            error_message := 'log batches need first and last offsets: give both lists or neither';
        elsif cardinality(p_options.log_firsts) <> cardinality(p_options.log_lasts)
                or exists (select from (
                    select first, last, lag(last) over () as before
                    from unnest(p_options.log_firsts, p_options.log_lasts) as b (first, last)) as b
                    where first is null or last is null or first > last or first < 0 or first <= before) then
            error_message := 'the log batches are not valid: expected pairs of first and last offset, in order and without overlap';
        elsif 9223372036854775807 = any (p_options.log_lasts) then
            error_message := 'an offset is out of range: expected 0 to 2^63 - 2';
        end if;
    end if;
    if error_message is null and p_options.batch_size < 1 then
        error_message := 'the batch size must be at least 1: leave it out to use the requested number of records';
    elsif error_message is null and p_options.aborted is null then
        error_message := 'the offsets of aborted transactions are missing: give {} if there are none';
    elsif error_message is null and not isempty(p_options.aborted) then
        error_message := sharequeue_internal.offsets_fault(p_options.aborted);
    end if;
    if error_message is null then
        select m.error_code, m.error_message into error_code, error_message
        from sharequeue_internal.check_member(p_settings.group_id, p_holder.member_id, p_holder.member_epoch) as m;
    end if;
end
$$;

-- Finds the first share-partition whose next lease under fan_out is the last attempt of a suspect, and ends lapsed locks on the
-- way there. Returns its place in the call, null if there is none, and the rows as they are then.
create or replace function sharequeue_internal.last_attempt_first(
    inout p_sps sharequeue.share_partitions[], p_settings sharequeue.group_settings,
    p_request sharequeue_internal.acquire_request, p_at timestamptz, out place integer
)
language plpgsql volatile as $$
declare
    v_sp sharequeue.share_partitions;
begin
    for v_place in 1 .. cardinality(p_sps) loop
        v_sp := p_sps[v_place];
        -- A call that is refused changes nothing, not even lapsed locks.
        continue when v_sp.status <> 'active' or p_request.state_epoch <> v_sp.state_epoch;
        if v_sp.redeliverable or v_sp.next_expiry <= p_at then
            v_sp := sharequeue_internal.settled(v_sp, p_at, sharequeue_internal.latest_expiry(p_settings, p_at));
            p_sps[v_place] := v_sp;
            select case when n.last_attempt then v_place end into place
            from sharequeue_internal.next_suspects(
                v_sp, p_settings, p_at, coalesce(p_request.leave_outs[v_place], '{}')) as n;
            exit when place is not null;
        end if;
    end loop;
end
$$;
