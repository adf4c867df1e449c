-- Leases the next records of one share-partition to a member: first redeliverable ones, lowest offset first, then fresh
-- ones up to the log end (under read_committed up to the last stable offset). Returns one row for each range, all of one
-- lease; no row when there is nothing to lease or leasing is paused; one row with an error code when the call is refused.
-- The records are to be read at the isolation level that is returned, and at no other. A stricter reader does not see the
-- records of an open transaction, and takes them for gaps; a looser one sees those of aborted transactions.
--
-- p_redelivery is 'kafka' (the throttle near the delivery limit, R-TH) or 'fan_out' (suspects come in parts of their own;
-- design: poison isolation).
--
-- For 'kafka' only: p_mode is 'batch_optimized' or 'record_limit'. p_batch_size is what a fetch carries. p_log_firsts and
-- p_log_lasts are the log's batches (R-AQ); without them one acquire is one batch, cut exactly at its budget. p_aborted
-- are the offsets of aborted transactions (R-IL-3); they count under read_committed only.
--
-- For 'fan_out' only: p_leave_out are offsets that this caller does not want again. Other callers may lease them.
create or replace function sharequeue.acquire(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text,
    p_member_epoch integer, p_max_records bigint, p_lock_duration_ms integer default null,
    p_request_id uuid default null, p_redelivery text default 'kafka', p_mode text default 'batch_optimized',
    p_batch_size bigint default null, p_log_firsts bigint[] default null, p_log_lasts bigint[] default null,
    p_aborted int8multirange default '{}', p_leave_out int8multirange default '{}'
) returns setof sharequeue.acquired
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_error smallint;
    v_message text;
    v_found record;
    v_key uuid;
    v_result jsonb;
    v_row sharequeue.acquired;
    v_holder sharequeue_internal.holder := row(p_member_id, p_member_epoch, null);
    v_options sharequeue_internal.fetch_options := row(p_lock_duration_ms, p_redelivery, p_mode, p_batch_size,
        p_log_firsts, p_log_lasts, p_aborted, coalesce(p_leave_out, '{}'));
begin
    select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    if p_request_id is not null and v_found.error_code <> 30 then
        v_key := sharequeue_internal.request_key((v_found.sp).share_partition_id, 'acquire', p_member_id, p_request_id);
        v_result := sharequeue_internal.stored_result(v_key);
        if v_result is not null then
            return query select * from jsonb_populate_recordset(null::sharequeue.acquired, v_result);
            return;
        end if;
    end if;
    v_error := v_found.error_code;
    v_message := v_found.error_message;
    if v_error = 0 then
        select * into v_error, v_message from sharequeue_internal.check_acquire(
            v_found.sp, v_found.settings, v_holder, p_max_records, v_options);
    end if;
    if v_error = 0 then
        v_message := sharequeue_internal.fetch_fault(v_options);
        v_error := case when v_message is null then 0 else 42 end;
    end if;
    if v_error <> 0 then
        return next row(v_error, v_message, null, null, null, null, null, null, null, null)::sharequeue.acquired;
        return;
    end if;
    v_result := '[]';
    for v_row in
        select * from sharequeue_internal.acquire_under_lock(
            v_found.sp, v_found.settings, v_holder, p_max_records, v_options, sharequeue.clock())
    loop
        return next v_row;
        if p_request_id is not null then
            v_result := v_result || to_jsonb(v_row);
        end if;
    end loop;
    if v_result <> '[]' then
        perform sharequeue_internal.remember(v_key, 'acquire', v_result);
    end if;
end
$$;

-- Returns the error of a call to acquire that lock_share_partition has not checked; error code 0 if there is none.
create or replace function sharequeue_internal.check_acquire(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder,
    p_max_records bigint, p_options sharequeue_internal.fetch_options, out error_code smallint, out error_message text
)
language plpgsql volatile as $$
begin
    error_code := 0;
    if p_sp.status = 'topic_recreated' then
        error_code := 100;
        select l.reason into error_message
        from sharequeue.lost_topics l where l.group_id = p_sp.group_id and l.topic = p_sp.topic;
    elsif p_max_records is null or p_max_records not between 0 and 4611686018427387904 then
        error_code := 42;
        error_message := 'the number of records is not valid: expected 0 to 2^62';
    elsif p_options.redelivery is null or p_options.redelivery not in ('kafka', 'fan_out') then
        error_code := 42;
        error_message := format('redelivery must be kafka or fan_out, not %s', p_options.redelivery);
    elsif p_options.mode is null or p_options.mode not in ('batch_optimized', 'record_limit') then
        error_code := 42;
        error_message := format('the acquire mode must be batch_optimized or record_limit, not %s', p_options.mode);
    elsif p_options.lock_duration_ms not between p_settings.min_lock_duration_ms and p_settings.max_lock_duration_ms then
        error_code := 42;
        error_message := format('a lock of %s ms is outside the service''s bounds, %s to %s ms: choose a duration inside, or '
            'set group.share.min.record.lock.duration.ms and its max where the service starts',
            p_options.lock_duration_ms, p_settings.min_lock_duration_ms, p_settings.max_lock_duration_ms);
    elsif p_options.log_firsts is not null and (p_options.log_lasts is null
            or array_length(p_options.log_firsts, 1) is distinct from array_length(p_options.log_lasts, 1)
            or exists (select from unnest(p_options.log_firsts, p_options.log_lasts) as b (first, last)
                where first is null or last is null or first > last or first < 0)
            or exists (select from (
                select first, lag(last) over () as before
                from unnest(p_options.log_firsts, p_options.log_lasts) as b (first, last)) as b
                where first <= before)) then
        error_code := 42;
        error_message := 'the log batches are not valid: expected pairs of first and last offset, in order and without overlap';
    else
        select m.error_code, m.error_message into error_code, error_message
        from sharequeue_internal.check_member(p_sp.group_id, p_holder.member_id, p_holder.member_epoch) as m;
    end if;
end
$$;

-- Returns what is wrong with the options that describe the log, except the order of its batches; null if nothing is.
create or replace function sharequeue_internal.fetch_fault(
    p_options sharequeue_internal.fetch_options
) returns text
language plpgsql immutable as $$
begin
    if p_options.batch_size < 1 then
        return 'the batch size must be at least 1: leave it out to use the requested number of records';
    elsif (p_options.log_firsts is null) <> (p_options.log_lasts is null) then
        return 'log batches need first and last offsets: give both lists or neither';
    elsif 9223372036854775807 = any (p_options.log_lasts) then
        return 'an offset is out of range: expected 0 to 2^63 - 2';
    elsif p_options.aborted is null then
        return 'the offsets of aborted transactions are missing: give {} if there are none';
    end if;
    return sharequeue_internal.offsets_fault(p_options.aborted);
end
$$;

-- Does the acquire. The share-partition row is locked, and the call has been checked.
create or replace function sharequeue_internal.acquire_under_lock(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder,
    p_max_records bigint, p_options sharequeue_internal.fetch_options, p_at timestamptz
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
    v_read_end bigint := case when p_settings.read_committed then p_sp.last_stable_offset else p_sp.log_end end;
    v_most bigint := p_max_records;
    v_probe boolean := false;
    v_past bigint;
    v_at integer;
    v_level text := sharequeue_internal.isolation_level(p_settings.read_committed);
begin
    if v_sp.next_expiry <= p_at then
        perform sharequeue_internal.settle_lapsed(v_sp.share_partition_id, p_at);
        select * into v_sp from sharequeue.share_partitions where share_partition_id = p_sp.share_partition_id;
    end if;
    if p_settings.breaker_percent > 0 then
        select * into v_most, v_probe from sharequeue_internal.circuit_allows(v_sp, p_settings, v_most, p_at);
    end if;
    if v_most = 0 or v_sp.paused_reason is not null or p_settings.paused_reason is not null then
        return;
    end if;
    v_lease_id := nextval('sharequeue.leases_lease_id_seq');
    if p_options.redelivery = 'fan_out' and not v_sp.redeliverable and not v_probe then
        -- No record is redelivered: lease fresh records, like take_fan_out, with half as many statements.
        v_past := v_sp.speo + least(v_read_end - v_sp.speo, v_most, p_settings.max_record_locks - (v_sp.speo - v_sp.spso));
        if v_past > v_sp.speo then
            insert into sharequeue.in_flight_batches
                (share_partition_id, first_offset, last_offset, state, delivery_count, lease_id)
            values (v_sp.share_partition_id, v_sp.speo, v_past - 1, 1, 1, v_lease_id);
            insert into sharequeue.leases (lease_id, share_partition_id, member_id, member_epoch, token, lock_duration_ms,
                acquired_at, expires_at, fan_out, own_lock_duration, read_committed)
            values (v_lease_id, v_sp.share_partition_id, p_holder.member_id, coalesce(p_holder.member_epoch, -1), v_token,
                v_lock_ms, p_at, v_expires_at, true, p_options.lock_duration_ms is not null, p_settings.read_committed);
            update sharequeue.share_partitions set speo = v_past, next_expiry = least(next_expiry, v_expires_at)
            where share_partition_id = v_sp.share_partition_id;
            return next row(0::smallint, null, v_lease_id, v_token, v_sp.state_epoch, v_lock_ms, v_expires_at, 1::smallint,
                int8multirange(int8range(v_sp.speo, v_past)), v_level)::sharequeue.acquired;
            return;
        elsif not v_sp.advance_due then
            return;
        end if;
    elsif p_options.redelivery = 'fan_out' then
        v_taken := sharequeue_internal.take_fan_out(
            v_sp, p_settings, v_most, v_read_end, v_lease_id, p_at, p_options.leave_out);
    else
        v_options.batch_size := coalesce(p_options.batch_size, v_most);
        if v_probe then
            v_options.mode := 'record_limit';  -- a probe is small whatever the log's batches are: its limit is hard
        end if;
        if not p_settings.read_committed then
            v_options.aborted := '{}';
        end if;
        v_taken := sharequeue_internal.take_kafka(v_sp, p_settings, v_most, v_read_end, v_lease_id, p_at, v_options);
    end if;
    if v_probe then
        perform sharequeue_internal.circuit_probes(v_sp.share_partition_id, v_lease_id);
    end if;
    -- Read from the table, and not from v_taken: aborted records may have been taken and archived, with nothing to return.
    if exists (select from sharequeue.in_flight_batches where lease_id = v_lease_id) then
        insert into sharequeue.leases (lease_id, share_partition_id, member_id, member_epoch, token, lock_duration_ms,
            acquired_at, expires_at, fan_out, own_lock_duration, read_committed)
        values (v_lease_id, v_sp.share_partition_id, p_holder.member_id, coalesce(p_holder.member_epoch, -1), v_token,
            v_lock_ms, p_at, v_expires_at, p_options.redelivery = 'fan_out', p_options.lock_duration_ms is not null,
            p_settings.read_committed);
        update sharequeue.share_partitions set next_expiry = v_expires_at
        where share_partition_id = v_sp.share_partition_id and (next_expiry is null or next_expiry > v_expires_at);
    end if;
    for v_at in 1 .. coalesce(array_length(v_taken.delivery_counts, 1), 0) loop
        return next row(0::smallint, null, v_lease_id, v_token, v_sp.state_epoch, v_lock_ms, v_expires_at,
            v_taken.delivery_counts[v_at], v_taken.offsets[v_at], v_level)::sharequeue.acquired;
    end loop;
    -- Nothing was found. The acknowledgement that would move SPSO past finished records may never come. If that was due before,
    -- the window may have room now. If this call has archived records, its result stays empty, as on a broker (R-IL-3).
    if v_taken.delivery_counts is null and sharequeue_internal.advance_if_due(v_sp.share_partition_id)
            and v_sp.advance_due then
        select * into v_sp from sharequeue.share_partitions where share_partition_id = p_sp.share_partition_id;
        return query select * from sharequeue_internal.acquire_under_lock(
            v_sp, p_settings, p_holder, p_max_records, p_options, p_at);
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
