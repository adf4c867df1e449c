-- Leases the next records of share-partitions to a member, in the order given (R-AQ-18): first redeliverable ones, lowest offset
-- first, then fresh ones up to the log end (under read_committed up to the last stable offset). Returns one row for each range
-- of each lease; no row where there is nothing to lease or leasing is paused; one row with an error code where it is refused.
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
-- For 'kafka' only: p_mode is 'batch_optimized' or 'record_limit'. p_batch_size is what a fetch carries. p_log_firsts and
-- p_log_lasts are the log's batches (R-AQ); without them one acquire is one batch, cut exactly at its budget. p_aborted
-- are the offsets of aborted transactions (R-IL-3); they count under read_committed only.
create or replace function sharequeue.acquire_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_member_id text, p_member_epoch integer,
    p_max_records bigint, p_lock_duration_ms integer default null, p_request_id uuid default null,
    p_redelivery text default 'kafka', p_mode text default 'batch_optimized', p_max_bytes bigint default null,
    p_mean_bytes double precision[] default null, p_leave_outs int8multirange[] default null,
    p_parts integer default 1, p_last_attempt boolean default true, p_state_epoch integer default null,
    p_batch_size bigint default null, p_log_firsts bigint[] default null, p_log_lasts bigint[] default null,
    p_aborted int8multirange default '{}'
) returns setof sharequeue.acquired_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_holder sharequeue_internal.holder := row(p_member_id, p_member_epoch, null);
    v_options sharequeue_internal.fetch_options := row(p_lock_duration_ms, p_redelivery, p_mode, p_batch_size,
        p_log_firsts, p_log_lasts, p_aborted, '{}');
    v_sps sharequeue.share_partitions[];
    v_sp sharequeue.share_partitions;
    v_settings sharequeue.group_settings;
    v_at timestamptz;
    -- If the first lock of a share-partition ends later, the clock may have been set back (lapses.sql, locked_ahead).
    v_latest timestamptz;
    v_lock_ms integer;
    v_call record;
    v_fault record;
    -- The rows without large sets, and these sets apart: so the copied and stored JSON stays small.
    v_rows sharequeue.acquired_of[] := '{}';
    v_row sharequeue.acquired_of;
    v_sets int8multirange[] := '{}';
    v_key uuid;
    v_result jsonb;
    v_one sharequeue.acquired;
    v_read_end bigint;
    v_suspects boolean;
    v_last_attempt boolean;
    v_alone integer;
    v_place integer;
    v_parts integer;
    v_wanted bigint;
    v_got bigint;
    v_leases integer := 0;
    v_left bigint := p_max_records;
    v_bytes double precision := p_max_bytes;
    v_seen bigint[] := '{}';
    v_fresh sharequeue_internal.fresh_leases;
begin
    perform sharequeue.require_read_committed();
    if p_parts is null or p_parts not between 1 and 1000 or p_last_attempt is null or p_max_records is null
            or p_max_records not between 0 and 4611686018427387904 or p_max_bytes < 0 or (p_max_bytes is not null and p_mean_bytes is null)
            or (p_mean_bytes is not null and exists (
                select from unnest(p_mean_bytes) as m where m is null or m not between 0.001 and 1e15)) then
        raise exception 'the arguments of acquire_many are not valid: expected a number of records from 0 to 2^62, 1 to 1000 '
            'parts, p_last_attempt, and with p_max_bytes also p_mean_bytes for each share-partition' using errcode = 'SQ042';
    end if;
    v_sps := sharequeue_internal.lock_share_partitions(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_mean_bytes), cardinality(p_topics)),
        coalesce(cardinality(p_leave_outs), cardinality(p_topics)));
    select * into v_settings from sharequeue.group_settings where group_id = p_group_id;
    v_key := sharequeue_internal.request_key(
        v_settings, p_group_id, p_topics, p_partitions, 'acquire_many', p_member_id, p_request_id);
    if v_key is not null then
        select result, sets into v_result, v_sets from sharequeue.requests where request_key = v_key;
        if found then
            return query select * from sharequeue_internal.with_sets(
                array(select r from jsonb_populate_recordset(null::sharequeue.acquired_of, v_result) as r), v_sets);
            return;
        end if;
        v_sets := '{}';
    end if;
    v_at := sharequeue.clock();
    v_latest := v_at + v_settings.lock_duration_ms * interval '1 millisecond';
    v_lock_ms := coalesce(p_lock_duration_ms, v_settings.lock_duration_ms);
    v_call := sharequeue_internal.check_acquire(v_settings, v_holder, v_options);
    if p_redelivery = 'fan_out' and p_last_attempt and v_call.error_code = 0 then
        for v_place in 1 .. cardinality(p_topics) loop
            -- A call that is refused below changes nothing, not even lapsed locks.
            continue when (v_sps[v_place]).status <> 'active' or p_state_epoch <> (v_sps[v_place]).state_epoch;
            if (v_sps[v_place]).redeliverable or (v_sps[v_place]).next_expiry <= v_at then
                v_sps[v_place] := sharequeue_internal.settled(v_sps[v_place], v_at, v_latest);
                select case when n.last_attempt then v_place end into v_alone
                from sharequeue_internal.next_suspects(
                    v_sps[v_place], v_settings, v_at, coalesce(p_leave_outs[v_place], '{}')) as n;
                exit when v_alone is not null;
            end if;
        end loop;
    end if;
    <<share_partitions>>
    for v_turn in case when v_alone is null then 1 else 0 end .. cardinality(p_topics) loop
        v_place := case v_turn when 0 then v_alone else v_turn end;
        continue when v_turn = v_alone;
        v_sp := v_sps[v_place];
        if v_sp.share_partition_id = any (v_seen) then
            -- Named twice: what has been leased from it is written first.
            perform sharequeue_internal.lease_fresh(v_fresh, v_settings, v_holder, p_redelivery, v_lock_ms, p_lock_duration_ms is not null, v_at);
            v_fresh := null;
            select * into v_sp from sharequeue.share_partitions where share_partition_id = v_sp.share_partition_id;
        end if;
        v_seen := v_seen || v_sp.share_partition_id;
        v_parts := 0;
        loop
            if v_sp.share_partition_id is not null and v_call.error_code = 0 then
                v_wanted := case when p_max_bytes is null then v_left
                    else floor(least(v_left, v_bytes / p_mean_bytes[v_place]))::bigint end;
                if v_leases = 0 and v_left > 0 then
                    v_wanted := greatest(v_wanted, 1);
                end if;
                exit when v_wanted <= 0 and p_max_records <> 0;
            end if;
            if v_sp.share_partition_id is null or v_settings.acls_apply is distinct from false
                    or p_state_epoch is not null or v_sp.status = 'topic_recreated' or v_call.error_code <> 0 then
                select * into v_fault from sharequeue_internal.share_partition_fault(
                    v_sp, v_settings, p_group_id, p_topics[v_place], p_partitions[v_place], p_state_epoch, 'READ');
                if v_fault.error_code = 0 and v_sp.status = 'topic_recreated' then
                    select 100::smallint as error_code, (select l.reason from sharequeue.lost_topics l
                        where l.group_id = p_group_id and l.topic = v_sp.topic) as error_message into v_fault;
                elsif v_fault.error_code = 0 then
                    v_fault := v_call;
                end if;
                if v_fault.error_code <> 0 then
                    v_rows := v_rows || row(p_topics[v_place], p_partitions[v_place], false, false, v_fault.error_code,
                        v_fault.error_message, null, null, null, null, null, null, null, null)::sharequeue.acquired_of;
                    v_sets := array_append(v_sets, null);
                    exit;
                end if;
            end if;
            if v_sp.next_expiry <= v_at or v_sp.next_expiry > v_latest then
                v_sp := sharequeue_internal.settled(v_sp, v_at, v_latest);
            end if;
            exit when v_sp.paused_reason is not null or v_settings.paused_reason is not null;
            v_read_end := case when v_settings.read_committed then v_sp.last_stable_offset else v_sp.log_end end;
            if not v_sp.redeliverable and not v_sp.advance_due and v_settings.breaker_percent = 0
                    and p_log_firsts is null and isempty(p_aborted) then
                -- The usual case: only fresh records. They are written for all share-partitions together.
                v_got := least(v_read_end - v_sp.speo, v_wanted,
                    v_settings.max_record_locks - sharequeue_internal.in_flight_span(v_sp, v_at));
                exit when v_got <= 0;
                v_row := row(v_sp.topic, v_sp.partition, false, false, 0::smallint, null, nextval('sharequeue.leases_lease_id_seq'),
                    gen_random_uuid(), v_sp.state_epoch, v_lock_ms, v_at + v_lock_ms * interval '1 millisecond', 1::smallint,
                    int8multirange(int8range(v_sp.speo, v_sp.speo + v_got)),
                    sharequeue_internal.isolation_level(v_settings.read_committed))::sharequeue.acquired_of;
                v_rows := v_rows || v_row;
                v_sets := array_append(v_sets, null);
                v_fresh.share_partition_ids := v_fresh.share_partition_ids || v_sp.share_partition_id;
                v_fresh.rows := v_fresh.rows || v_row;
                v_leases := v_leases + 1;
                v_left := v_left - v_got;
                v_bytes := v_bytes - v_got * p_mean_bytes[v_place];
                exit;
            end if;
            v_options.leave_out := coalesce(p_leave_outs[v_place], '{}');
            v_suspects := false;
            v_last_attempt := false;
            if p_redelivery = 'fan_out' then
                select n.suspects, n.last_attempt into v_suspects, v_last_attempt
                from sharequeue_internal.next_suspects(v_sp, v_settings, v_at, v_options.leave_out) as n;
                if v_last_attempt and (v_alone is null or v_leases > 0) then
                    -- The records behind them do not wait for them.
                    v_options.leave_out := v_options.leave_out
                        + sharequeue_internal.last_attempts(v_sp.share_partition_id, v_settings);
                    select n.suspects, n.last_attempt into v_suspects, v_last_attempt
                    from sharequeue_internal.next_suspects(v_sp, v_settings, v_at, v_options.leave_out) as n;
                end if;
            end if;
            v_got := 0;
            for v_one in
                select * from sharequeue_internal.acquire_under_lock(
                    v_sp, v_settings, v_holder, v_wanted, v_read_end, v_options, v_at)
            loop
                v_sets := array_append(v_sets, v_one.offsets);
                v_got := v_got + sharequeue.records(v_one.offsets);
                v_one.offsets := null;
                v_rows := v_rows || row(p_topics[v_place], p_partitions[v_place], v_suspects, v_last_attempt,
                    v_one.*)::sharequeue.acquired_of;
            end loop;
            exit when v_got = 0;
            v_leases := v_leases + 1;
            v_parts := v_parts + 1;
            v_left := v_left - v_got;
            v_bytes := v_bytes - v_got * p_mean_bytes[v_place];
            exit share_partitions when v_alone is not null;
            exit when not v_suspects or v_parts >= p_parts;
            select * into v_sp from sharequeue.share_partitions where share_partition_id = v_sp.share_partition_id;
        end loop;
    end loop;
    if v_fresh.rows is not null then
        perform sharequeue_internal.lease_fresh(v_fresh, v_settings, v_holder, p_redelivery, v_lock_ms, p_lock_duration_ms is not null, v_at);
    end if;
    if v_leases > 0 then
        perform sharequeue_internal.remember(v_key, 'acquire_many', to_jsonb(v_rows), v_sets);
    end if;
    if v_leases = cardinality(v_fresh.rows) then
        foreach v_row in array v_rows loop
            return next v_row;
        end loop;
    else
        return query select * from sharequeue_internal.with_sets(v_rows, v_sets);
    end if;
end
$$;

-- Writes leases of fresh records: one batch and one lease on each share-partition.
create or replace function sharequeue_internal.lease_fresh(
    p_fresh sharequeue_internal.fresh_leases, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder,
    p_redelivery text, p_lock_ms integer, p_own_lock_duration boolean, p_at timestamptz
) returns void
-- One plan for all calls, by ctid and without reading a table whole, as in end_leases_at.
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    with fresh as materialized (
        select f.id, f.lease_id, f.token, f.expires_at, lower(f.offsets) as first, upper(f.offsets) as past
        from unnest(p_fresh.share_partition_ids, p_fresh.rows) as f (id, topic, partition, suspects, last_attempt, error_code,
            error_message, lease_id, token, state_epoch, lock_duration_ms, expires_at, delivery_count, offsets, isolation_level)
    ), batches as (
        insert into sharequeue.in_flight_batches (share_partition_id, first_offset, last_offset, state, delivery_count, lease_id)
        select id, first, past - 1, 1, 1, lease_id from fresh
    ), leases as (
        insert into sharequeue.leases (lease_id, share_partition_id, member_id, member_epoch, token, lock_duration_ms,
            acquired_at, locked_at, expires_at, fan_out, own_lock_duration, read_committed)
        select lease_id, id, p_holder.member_id, coalesce(p_holder.member_epoch, -1), token, p_lock_ms, p_at, p_at, expires_at,
            p_redelivery = 'fan_out', p_own_lock_duration, p_settings.read_committed
        from fresh
    )
    update sharequeue.share_partitions sp set speo = f.past, next_expiry = least(sp.next_expiry, f.expires_at)
    from (select *, (select ctid from sharequeue.share_partitions where share_partition_id = fresh.id) as at from fresh) as f
    where sp.ctid = f.at;
end
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

-- Leases from a share-partition, whatever its state is. Its row is locked, no lock of it has lapsed, and the call has been
-- checked.
create or replace function sharequeue_internal.acquire_under_lock(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder,
    p_max_records bigint, p_read_end bigint, p_options sharequeue_internal.fetch_options, p_at timestamptz
) returns setof sharequeue.acquired
language plpgsql volatile as $$
declare
    v_sp sharequeue.share_partitions := p_sp;
    v_options sharequeue_internal.fetch_options := p_options;
    v_lock_ms integer := coalesce(p_options.lock_duration_ms, p_settings.lock_duration_ms);
    v_expires_at timestamptz := p_at + v_lock_ms * interval '1 millisecond';
    v_lease_id bigint;
    v_token uuid := gen_random_uuid();
    v_taken sharequeue.taken;
    v_most bigint := p_max_records;
    v_probe boolean := false;
    v_at integer;
begin
    if p_settings.breaker_percent > 0 then
        select * into v_most, v_probe from sharequeue_internal.circuit_allows(v_sp, p_settings, v_most, p_at);
    end if;
    if v_most = 0 then
        return;
    end if;
    v_lease_id := nextval('sharequeue.leases_lease_id_seq');
    if p_options.redelivery = 'fan_out' then
        v_taken := sharequeue_internal.take_fan_out(
            v_sp, p_settings, v_most, p_read_end, v_lease_id, p_at, p_options.leave_out);
    else
        v_options.batch_size := coalesce(p_options.batch_size, v_most);
        if v_probe then
            v_options.mode := 'record_limit';  -- a probe is small whatever the log's batches are: its limit is hard
        end if;
        if not p_settings.read_committed then
            v_options.aborted := '{}';
        end if;
        v_taken := sharequeue_internal.take_kafka(v_sp, p_settings, v_most, p_read_end, v_lease_id, p_at, v_options);
    end if;
    if v_probe then
        perform sharequeue_internal.circuit_probes(v_sp.share_partition_id, v_lease_id);
    end if;
    -- Read from the table, and not from v_taken: aborted records may have been taken and archived, with nothing to return.
    if exists (select from sharequeue.in_flight_batches where lease_id = v_lease_id) then
        insert into sharequeue.leases (lease_id, share_partition_id, member_id, member_epoch, token, lock_duration_ms,
            acquired_at, locked_at, expires_at, fan_out, own_lock_duration, read_committed)
        values (v_lease_id, v_sp.share_partition_id, p_holder.member_id, coalesce(p_holder.member_epoch, -1), v_token,
            v_lock_ms, p_at, p_at, v_expires_at, p_options.redelivery = 'fan_out', p_options.lock_duration_ms is not null,
            p_settings.read_committed);
        update sharequeue.share_partitions set next_expiry = v_expires_at
        where share_partition_id = v_sp.share_partition_id and (next_expiry is null or next_expiry > v_expires_at);
    end if;
    for v_at in 1 .. coalesce(array_length(v_taken.delivery_counts, 1), 0) loop
        return next row(0::smallint, null, v_lease_id, v_token, v_sp.state_epoch, v_lock_ms, v_expires_at,
            v_taken.delivery_counts[v_at], v_taken.offsets[v_at],
            sharequeue_internal.isolation_level(p_settings.read_committed))::sharequeue.acquired;
    end loop;
    -- Nothing was found. The acknowledgement that would move SPSO past finished records may never come. If that was due before,
    -- the window may have room now. If this call has archived records, its result stays empty, as on a broker (R-IL-3).
    if v_taken.delivery_counts is null and sharequeue_internal.advance_if_due(v_sp.share_partition_id)
            and v_sp.advance_due then
        select * into v_sp from sharequeue.share_partitions where share_partition_id = p_sp.share_partition_id;
        return query select * from sharequeue_internal.acquire_under_lock(
            v_sp, p_settings, p_holder, p_max_records, p_read_end, p_options, p_at);
    end if;
end
$$;

-- Returns the number of offsets in flight that count towards share.partition.max.record.locks: the span from SPSO to SPEO
-- (R-NF-5), without records that wait for a later time, because these would block the window.
create or replace function sharequeue_internal.in_flight_span(p_sp sharequeue.share_partitions, p_at timestamptz) returns bigint
language plpgsql stable as $$
begin
    if not p_sp.redeliverable then
        return p_sp.speo - p_sp.spso;
    end if;
    return p_sp.speo - p_sp.spso - coalesce((
        select sum(sharequeue.records(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)))
        from sharequeue.in_flight_batches
        where share_partition_id = p_sp.share_partition_id and state = 0 and not_before > p_at), 0);
end
$$;

-- Returns rows of acquire_many with their sets of offsets, which are stored apart. Rows of lease_fresh
-- have theirs, which are one range each.
create or replace function sharequeue_internal.with_sets(p_rows sharequeue.acquired_of[], p_sets int8multirange[])
returns setof sharequeue.acquired_of
language sql immutable as $$
    select r.topic, r.partition, r.suspects, r.last_attempt, r.error_code, r.error_message, r.lease_id, r.token,
        r.state_epoch, r.lock_duration_ms, r.expires_at, r.delivery_count, coalesce(r.set, r.offsets),
        r.isolation_level
    from unnest(p_rows, p_sets) as r (topic, partition, suspects, last_attempt, error_code, error_message, lease_id, token,
        state_epoch, lock_duration_ms, expires_at, delivery_count, offsets, isolation_level, set)
$$;

-- Returns the suspects whose next delivery is their last.
create or replace function sharequeue_internal.last_attempts(
    p_share_partition_id bigint, p_settings sharequeue.group_settings
) returns int8multirange
language sql stable as $$
    select coalesce(range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)), '{}')
    from sharequeue.in_flight_batches
    where share_partition_id = p_share_partition_id and state = 0 and isolate is not null
        and delivery_count >= p_settings.delivery_count_limit - 1
$$;

-- Returns what would be leased next under fan_out: whether these are suspects, and whether it is their last attempt. A lease for
-- a last attempt has one record, and a worker that dies on it must hold nothing else.
create or replace function sharequeue_internal.next_suspects(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_at timestamptz, p_leave_out int8multirange,
    out suspects boolean, out last_attempt boolean
)
language plpgsql stable as $$
declare
    v_read_end bigint := case when p_settings.read_committed then p_sp.last_stable_offset else p_sp.log_end end;
    v_leave_out int8multirange := p_leave_out;
begin
    suspects := false;
    last_attempt := false;
    if not p_sp.redeliverable then
        return;
    end if;
    if v_read_end < p_sp.speo then
        v_leave_out := p_leave_out + int8multirange(int8range(v_read_end, null));  -- as in take_fan_out
    end if;
    select f.isolate is not null, f.isolate is not null and f.delivery_count >= p_settings.delivery_count_limit - 1
    into suspects, last_attempt
    from sharequeue.in_flight_batches f
    where f.share_partition_id = p_sp.share_partition_id and f.state = 0
        and f.first_offset = sharequeue_internal.next_available(p_sp.share_partition_id, 0, p_at, v_leave_out)
        and (f.not_before is null or f.not_before <= p_at)
        and not sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) <@ v_leave_out
    order by lower(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) - v_leave_out) limit 1;
    suspects := coalesce(suspects, false);
    last_attempt := coalesce(last_attempt, false);
end
$$;
