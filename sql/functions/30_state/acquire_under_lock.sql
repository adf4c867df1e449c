-- Leasing from one share-partition in every case: what was delivered before, under the rules of fan_out or of a broker, fresh
-- records, and probes of the circuit breaker. The row of the share-partition is locked, none of its locks has lapsed, and the
-- call has been checked.

-- Leases up to p_wanted records. Under fan_out these are up to p_parts leases if they are of suspects, otherwise one. A suspect
-- whose next delivery is its last is leased only with p_last_attempt; otherwise the records behind it do not wait for it.
create or replace function sharequeue_internal.acquire_parts(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder,
    p_wanted bigint, p_options sharequeue_internal.fetch_options, p_parts integer, p_last_attempt boolean, p_at timestamptz
) returns setof sharequeue.acquired_of
language plpgsql volatile as $$
declare
    v_sp sharequeue.share_partitions := p_sp;
    v_options sharequeue_internal.fetch_options := p_options;
    v_suspects boolean := false;
    v_last_attempt boolean := false;
    v_wanted bigint := p_wanted;
    v_got bigint;
    v_one sharequeue.acquired;
begin
    for v_part in 1 .. p_parts loop
        if p_options.redelivery = 'fan_out' then
            v_options.leave_out := sharequeue_internal.left_out_in_order(v_sp, p_settings, p_options.leave_out, p_at);
            select n.suspects, n.last_attempt into v_suspects, v_last_attempt
            from sharequeue_internal.next_suspects(v_sp, p_settings, p_at, v_options.leave_out) as n;
            if v_last_attempt and not p_last_attempt then
                v_options.leave_out := sharequeue_internal.left_out_in_order(v_sp, p_settings, p_options.leave_out
                    + sharequeue_internal.last_attempts(v_sp.share_partition_id, p_settings), p_at);
                select n.suspects, n.last_attempt into v_suspects, v_last_attempt
                from sharequeue_internal.next_suspects(v_sp, p_settings, p_at, v_options.leave_out) as n;
            end if;
        end if;
        v_got := 0;
        for v_one in
            select * from sharequeue_internal.acquire_under_lock(v_sp, p_settings, p_holder, v_wanted, v_options, p_at)
        loop
            v_got := v_got + sharequeue.records(v_one.offsets);
            return next row(p_sp.topic, p_sp.partition, v_suspects, v_last_attempt, v_one.*, p_settings.ordered)::sharequeue.acquired_of;
        end loop;
        v_wanted := v_wanted - v_got;
        exit when v_got = 0 or v_wanted <= 0 or not v_suspects;
        select * into v_sp from sharequeue.share_partitions where share_partition_id = p_sp.share_partition_id;
    end loop;
end
$$;

-- Makes one lease of up to p_max_records records. Returns a row for each delivery count.
create or replace function sharequeue_internal.acquire_under_lock(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder,
    p_max_records bigint, p_options sharequeue_internal.fetch_options, p_at timestamptz
) returns setof sharequeue.acquired
language plpgsql volatile as $$
declare
    v_sp sharequeue.share_partitions;
    v_lease sharequeue.acquired_of;
    v_taken sharequeue.taken;
    v_most bigint := p_max_records;
    v_probe boolean := false;
begin
    if p_settings.breaker_percent > 0 then
        select * into v_most, v_probe from sharequeue_internal.circuit_allows(p_sp, p_settings, v_most, p_at);
    end if;
    if v_most = 0 then
        return;
    end if;
    v_lease := sharequeue_internal.new_lease(p_sp, p_settings, p_options, 0, p_at);
    if p_options.redelivery = 'fan_out' then
        v_most := sharequeue_internal.take_fan_out(p_sp, p_settings, v_most, v_lease.lease_id, p_at, p_options.leave_out);
        v_lease.offsets := sharequeue_internal.fresh_offsets(p_sp, case when p_settings.ordered
            then sharequeue_internal.fresh_in_order(p_sp, p_settings, p_options.leave_out, v_most, p_at)
            else sharequeue_internal.fresh_records(p_sp, p_settings, v_most, p_at) end);
    else
        v_taken := sharequeue_internal.take_kafka(p_sp, p_settings, v_most, v_lease.lease_id, p_at,
            sharequeue_internal.kafka_options(p_options, p_settings, v_most, v_probe));
    end if;
    -- Read from the table, and not from v_taken: aborted records may have been taken and archived, with nothing to return.
    if not isempty(v_lease.offsets) or exists (
            select from sharequeue.in_flight_batches where lease_id = v_lease.lease_id) then
        perform sharequeue_internal.write_leases(
            row(array[p_sp.share_partition_id], array[v_lease]), p_settings, p_holder, p_options, p_at);
    end if;
    if p_options.redelivery = 'fan_out' then
        v_taken := sharequeue_internal.taken_under(v_lease.lease_id);
    end if;
    if v_probe then
        perform sharequeue_internal.circuit_probes(p_sp.share_partition_id, v_lease.lease_id);
    end if;
    for v_at in 1 .. coalesce(array_length(v_taken.delivery_counts, 1), 0) loop
        return next row(0::smallint, null, v_lease.lease_id, v_lease.token, v_lease.state_epoch, v_lease.lock_duration_ms,
            v_lease.expires_at, v_taken.delivery_counts[v_at], v_taken.offsets[v_at],
            v_lease.isolation_level)::sharequeue.acquired;
    end loop;
    -- Nothing was found. The acknowledgement that would move SPSO past finished records may never come. If that was due before,
    -- the window may have room now. If this call has archived records, its result stays empty, as on a broker (R-IL-3).
    if v_taken.delivery_counts is null and sharequeue_internal.advance_if_due(p_sp.share_partition_id)
            and p_sp.advance_due then
        select * into v_sp from sharequeue.share_partitions where share_partition_id = p_sp.share_partition_id;
        return query select * from sharequeue_internal.acquire_under_lock(
            v_sp, p_settings, p_holder, p_max_records, p_options, p_at);
    end if;
end
$$;

-- Returns the options of a lease as on a broker: a fetch carries what was requested, a probe is small whatever the log's batches
-- are, so its limit is hard, and aborted records do not count under read_uncommitted.
create or replace function sharequeue_internal.kafka_options(
    p_options sharequeue_internal.fetch_options, p_settings sharequeue.group_settings, p_most bigint, p_probe boolean
) returns sharequeue_internal.fetch_options
language plpgsql immutable as $$
declare
    v_options sharequeue_internal.fetch_options := p_options;
begin
    v_options.batch_size := coalesce(p_options.batch_size, p_most);
    if p_probe then
        v_options.mode := 'record_limit';
    end if;
    if not p_settings.read_committed then
        v_options.aborted := '{}';
    end if;
    return v_options;
end
$$;

-- Returns the end of the log for this group's readers (R-IL): the last stable offset under read_committed.
create or replace function sharequeue_internal.read_end(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings)
returns bigint
language sql immutable parallel safe as $$
    select case when p_settings.read_committed then p_sp.last_stable_offset else p_sp.log_end end
$$;

-- Returns how many fresh records a lease of up to p_wanted records may have; 0 or less if none. Redelivery is not limited by
-- the window. Numbers of records are compared, not offsets: near 2^63 a sum would overflow.
create or replace function sharequeue_internal.fresh_records(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_wanted bigint, p_at timestamptz
) returns bigint
language sql stable as $$
    select least(sharequeue_internal.read_end(p_sp, p_settings) - p_sp.speo, p_wanted,
        sharequeue_internal.window_room(p_sp, p_settings, p_sp.spso, sharequeue_internal.waiting_in_window(p_sp, p_at)))
$$;

-- Returns that many offsets from SPEO on.
create or replace function sharequeue_internal.fresh_offsets(p_sp sharequeue.share_partitions, p_records bigint)
returns int8multirange
language sql immutable parallel safe as $$
    select int8multirange(int8range(p_sp.speo, p_sp.speo + greatest(0, p_records)))
$$;

-- Returns how many more records may be in flight, by share.partition.max.record.locks; 0 or less if none. What counts is the span
-- from SPSO to SPEO (R-NF-5), without p_waiting records that wait for a later time, because these would block the window. Under
-- order by key, finished records do not count: one key that waits would block the window for the others. p_from is where SPSO
-- will be once it has passed what is finished (null: at SPEO), or SPSO.
create or replace function sharequeue_internal.window_room(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_from bigint, p_waiting bigint
) returns bigint
language sql immutable parallel safe as $$
    select p_settings.max_record_locks + p_waiting - case when p_settings.ordered
        then p_sp.speo - p_sp.spso - p_sp.delivery_complete_count else p_sp.speo - coalesce(p_from, p_sp.speo) end
$$;

-- Returns how many records in flight wait for a later time.
create or replace function sharequeue_internal.waiting_in_window(p_sp sharequeue.share_partitions, p_at timestamptz) returns bigint
language plpgsql stable as $$
begin
    if not p_sp.redeliverable then
        return 0;
    end if;
    return coalesce((
        select sum(sharequeue.records(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)))
        from sharequeue.in_flight_batches
        where share_partition_id = p_sp.share_partition_id and state = 0 and not_before > p_at), 0);
end
$$;

-- Returns a new lease of this number of fresh records, as a row of the result. Nothing is written.
create or replace function sharequeue_internal.new_lease(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_options sharequeue_internal.fetch_options,
    p_records bigint, p_at timestamptz
) returns sharequeue.acquired_of
language sql volatile as $$
    select row(p_sp.topic, p_sp.partition, false, false, 0::smallint, null, nextval('sharequeue.leases_lease_id_seq'),
        gen_random_uuid(), p_sp.state_epoch, coalesce(p_options.lock_duration_ms, p_settings.lock_duration_ms),
        p_at + coalesce(p_options.lock_duration_ms, p_settings.lock_duration_ms) * interval '1 millisecond', 1::smallint,
        sharequeue_internal.fresh_offsets(p_sp, p_records),
        sharequeue_internal.isolation_level(p_settings.read_committed), p_settings.ordered)::sharequeue.acquired_of
$$;

-- Writes leases, with one batch for the fresh records of each that has some. Nothing else writes a new lease or, except as on a
-- broker (take_fresh), fresh records.
create or replace function sharequeue_internal.write_leases(
    p_leases sharequeue_internal.new_leases, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder,
    p_options sharequeue_internal.fetch_options, p_at timestamptz
) returns void
-- One plan for all calls, by ctid and without reading a table whole, as in end_leases_at.
language plpgsql volatile set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    if p_leases.rows is null then
        return;
    end if;
    with new as materialized (
        select n.id, n.lease_id, n.token, n.lock_duration_ms, n.expires_at, lower(n.offsets) as first, upper(n.offsets) as past
        from unnest(p_leases.share_partition_ids, p_leases.rows) as n (id, topic, partition, suspects, last_attempt, error_code,
            error_message, lease_id, token, state_epoch, lock_duration_ms, expires_at, delivery_count, offsets, isolation_level, ordered)
    ), batches as (
        insert into sharequeue.in_flight_batches (share_partition_id, first_offset, last_offset, state, delivery_count, lease_id)
        select id, first, past - 1, 1, 1, lease_id from new where first is not null
    ), leases as (
        insert into sharequeue.leases (lease_id, share_partition_id, member_id, member_epoch, token, lock_duration_ms,
            acquired_at, locked_at, expires_at, fan_out, own_lock_duration, read_committed)
        select lease_id, id, p_holder.member_id, coalesce(p_holder.member_epoch, -1), token, lock_duration_ms, p_at, p_at,
            expires_at, p_options.redelivery = 'fan_out', p_options.lock_duration_ms is not null, p_settings.read_committed
        from new
    )
    update sharequeue.share_partitions sp
    set speo = coalesce(n.past, sp.speo), next_expiry = least(sp.next_expiry, n.expires_at)
    from (select *, (select ctid from sharequeue.share_partitions where share_partition_id = new.id) as at from new) as n
    where sp.ctid = n.at and (n.past is not null or sp.next_expiry is null or sp.next_expiry > n.expires_at);
end
$$;

-- Returns what a lease has, by delivery count.
create or replace function sharequeue_internal.taken_under(p_lease_id bigint) returns sharequeue.taken
language plpgsql stable as $$
declare
    v_taken sharequeue.taken;
begin
    select array_agg(t.delivery_count order by t.delivery_count), array_agg(t.offsets order by t.delivery_count)
    into v_taken.delivery_counts, v_taken.offsets
    from (
        select delivery_count, range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)) as offsets
        from sharequeue.in_flight_batches where lease_id = p_lease_id group by delivery_count
    ) as t;
    return v_taken;
end
$$;
