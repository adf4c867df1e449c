-- Returns why nothing can be leased from a share-partition that has lag, and until when (the liveness invariant). Null if records
-- can be leased, and if there is no lag. blocked_by is one word: topic_deleted, topic_recreated, paused, breaker, window
-- (share.partition.max.record.locks, behind blocked_offset), ordered and open_keys (order by key), transaction (the last stable
-- offset), leased, waiting (not before a time, or back-off), dead_letters (being written, or held behind one), truncated. It is
-- never unknown (verify checks this). Records whose lock has lapsed can be leased: the next call ends these locks. The texts of
-- the reasons are only in this file and in lost_topic. p_letters is the reason why dead letters are not written.
create or replace function sharequeue_internal.leasing_blocked(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_circuit sharequeue.circuit_breakers,
    p_topic_deleted boolean, p_letters text,
    out blocked_by text, out blocked_reason text, out blocked_until timestamptz, out blocked_offset bigint
)
-- As the owner, because a reader of the view has no rights on the parts of this function. Only views can call it.
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_at timestamptz := sharequeue.clock();
    v_read_end bigint := sharequeue_internal.read_end(p_sp, p_settings);
    v_window record;
    v_full boolean;
    v_part record;
begin
    select * into blocked_by, blocked_reason, blocked_until, blocked_offset
    from sharequeue_internal.leasing_stopped(p_sp, p_settings, p_circuit, p_topic_deleted, v_at);
    if blocked_by is not null then
        return;
    end if;
    select min(lower(b.offsets)) as head,
        min(lower(b.offsets)) filter (where b.state = 0 and coalesce(b.not_before <= v_at, true)) as ready_from,
        coalesce(sum(sharequeue.records(b.offsets)) filter (where b.state = 0 and b.not_before > v_at), 0)::bigint as waiting
    into v_window from sharequeue_internal.unfinished(p_sp, p_settings) as b;
    -- An acquire that finds nothing moves SPSO past finished records if that is due.
    v_full := sharequeue_internal.window_room(
        p_sp, p_settings, case when p_sp.advance_due then v_window.head else p_sp.spso end, v_window.waiting) <= 0;
    if (p_sp.redeliverable and v_window.ready_from < v_read_end) or (v_read_end > p_sp.speo and not v_full)
            or exists (select from sharequeue.leases l
                where l.share_partition_id = p_sp.share_partition_id and l.expires_at <= v_at) then
        if p_settings.ordered then
            select * into blocked_by, blocked_reason, blocked_until, blocked_offset
            from sharequeue_internal.leasing_out_of_order(p_sp, p_settings, v_at);
        end if;
        return;
    elsif v_read_end <= p_sp.speo and p_sp.speo < p_sp.log_end then
        select 'transaction', 'an open transaction: records from the last stable offset on cannot be read yet', null, v_read_end
        into blocked_by, blocked_reason, blocked_until, blocked_offset;
        return;
    end if;
    -- The head of a full window, or the record that can be leased first.
    v_full := v_read_end > p_sp.speo;
    select w.*, lower(b.offsets) as at_offset into v_part
    from sharequeue_internal.unfinished(p_sp, p_settings) as b
    left join sharequeue.leases l on l.share_partition_id = p_sp.share_partition_id and l.lease_id = b.lease_id
    cross join lateral (
        select 'leased' as name, 'leased by ' || l.member_id as words, l.expires_at as until where b.state = 1
        union all
        select 'waiting', 'waits for a later time', b.not_before
        where b.state = 0 and b.not_before > v_at and b.not_before < sharequeue_internal.no_time()
        union all
        select 'dead_letters', 'held until the dead letter of an earlier record of its key is written, redriven or discarded', null
        where b.state = 0 and b.not_before = sharequeue_internal.no_time()
        union all
        select 'dead_letters', coalesce(p_letters, 'being written to the dead-letter topic'), null where b.state = 3
        union all
        select 'truncated', format('the log ends at %s, below delivered records', p_sp.log_end), null
        where b.state = 0 and coalesce(b.not_before <= v_at, true) and lower(b.offsets) >= p_sp.log_end
        union all
        select 'transaction', 'an open transaction: records from the last stable offset on cannot be read yet', null
        where b.state = 0 and coalesce(b.not_before <= v_at, true) and lower(b.offsets) between v_read_end and p_sp.log_end - 1
    ) as w
    where not isempty(b.offsets) and (not v_full or lower(b.offsets) = v_window.head)
    order by w.until nulls last, at_offset limit 1;
    if not found then
        select 'unknown', 'nothing can be leased, for an unknown reason: run `sharequeue verify`', null, p_sp.spso
        into blocked_by, blocked_reason, blocked_until, blocked_offset;
        return;
    elsif v_full then
        select 'window', format('the window is full (%s records) behind offset %s: %s', p_settings.max_record_locks,
            v_part.at_offset, v_part.words), v_part.until, v_part.at_offset
        into blocked_by, blocked_reason, blocked_until, blocked_offset;
        return;
    end if;
    blocked_by := v_part.name;
    blocked_reason := v_part.words;
    blocked_until := v_part.until;
    blocked_offset := v_part.at_offset;
end
$$;

-- The same for what stops all leasing from a share-partition, whatever its records are: its topic is gone, it is paused, or its
-- circuit breaker is not closed. Null if none does.
create or replace function sharequeue_internal.leasing_stopped(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_circuit sharequeue.circuit_breakers,
    p_topic_deleted boolean, p_at timestamptz,
    out blocked_by text, out blocked_reason text, out blocked_until timestamptz, out blocked_offset bigint
)
language plpgsql stable as $$
declare
    v_paused text := coalesce(p_sp.paused_reason, p_settings.paused_reason);
begin
    -- A topic that was created again was deleted first.
    if p_sp.status <> 'active' then
        blocked_by := 'topic_recreated';
        blocked_reason := sharequeue_internal.lost_topic(p_sp.group_id, p_sp.topic, true);
    elsif p_topic_deleted then
        blocked_by := 'topic_deleted';
        blocked_reason := sharequeue_internal.lost_topic(p_sp.group_id, p_sp.topic, false);
    elsif v_paused is not null then
        blocked_by := 'paused';
        blocked_reason := 'paused: ' || v_paused;
    elsif p_settings.breaker_percent > 0 and p_circuit.state = 'open'
            and not sharequeue_internal.probe_due(p_circuit, p_settings, p_at) then
        blocked_by := 'breaker';
        blocked_reason := 'circuit breaker open: ' || p_circuit.reason;
        blocked_until := p_circuit.retry_at;
    elsif p_settings.breaker_percent > 0 and p_circuit.state = 'probing' then
        select min(l.expires_at) into blocked_until
        from sharequeue.in_flight_batches b join sharequeue.leases l using (share_partition_id, lease_id)
        where b.share_partition_id = p_sp.share_partition_id and b.state = 1
            and sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets) && p_circuit.probe;
        if blocked_until is not null then
            blocked_by := 'breaker';
            blocked_reason := 'circuit breaker probing: ' || p_circuit.reason;
            blocked_offset := lower(p_circuit.probe);
        end if;
    end if;
end
$$;

-- The same for records that could be leased if the group were not ordered by key. Null if they can be leased all the same.
create or replace function sharequeue_internal.leasing_out_of_order(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_at timestamptz,
    out blocked_by text, out blocked_reason text, out blocked_until timestamptz, out blocked_offset bigint
)
language plpgsql stable as $$
declare
    v_id bigint := p_sp.share_partition_id;
    v_lease sharequeue.leases;
    v_left_out int8multirange;
begin
    select * into v_lease from sharequeue.leases where share_partition_id = v_id order by share_partition_id, expires_at limit 1;
    if v_lease.expires_at > p_at then
        blocked_by := 'ordered';
        blocked_reason := format('order by key: a lease is open, of %s, and the next one waits until it ends', v_lease.member_id);
        blocked_until := v_lease.expires_at;
        select min(lower(sharequeue_internal.offsets_of(first_offset, last_offset, offsets))) into blocked_offset
        from sharequeue.in_flight_batches where lease_id = v_lease.lease_id;
        return;
    end if;
    v_left_out := sharequeue_internal.left_out_in_order(p_sp, p_settings, '{}', p_at);
    if v_lease.lease_id is not null or sharequeue_internal.fresh_in_order(p_sp, p_settings, v_left_out, 1, p_at) > 0
            or sharequeue_internal.next_available(
                v_id, 0, p_at, sharequeue_internal.left_out(p_sp, p_settings, v_left_out)) is not null then
        return;
    elsif not upper_inf(v_left_out) then
        blocked_by := 'open_keys';
        blocked_reason := format('order by key: %s keys are open, of %s records: at %s keys, or ten times as many records, no '
            'new records are leased (sharequeue.order.max.open.keys)', p_sp.open_keys, p_sp.open_key_records, p_settings.max_open_keys);
        select "offset", until into blocked_offset, blocked_until
        from sharequeue.open_key_records o where o.share_partition_id = v_id order by o."offset" limit 1;
        return;
    end if;
    blocked_by := 'ordered';
    blocked_offset := lower(sharequeue_internal.unknown_keys(v_id) - sharequeue_internal.deliverable(v_id, p_at));
    select f.not_before, format('order by key: the key of offset %s is not known, and the record %s', blocked_offset, case f.state
        when 3 then 'is being written to the dead-letter topic' else 'waits for a later time' end)
    into blocked_until, blocked_reason
    from sharequeue.in_flight_batches f
    where f.share_partition_id = v_id and f.state in (0, 3)
        and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) @> blocked_offset;
end
$$;

-- Returns what is in flight and unfinished, from SPSO on, as the next acquire finds it: if order by key was switched off, that
-- frees held records, and they have their own times again (forget_order).
create or replace function sharequeue_internal.unfinished(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings
) returns table (state smallint, lease_id bigint, not_before timestamptz, offsets int8multirange)
language sql stable as $$
    select b.state, b.lease_id, b.not_before, sharequeue_internal.offsets_from(
        sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets), p_sp.spso)
    from sharequeue.in_flight_batches b
    where b.share_partition_id = p_sp.share_partition_id and b.state in (0, 1, 3)
        and (p_settings.ordered or b.not_before is distinct from sharequeue_internal.no_time())
    union all
    select 0::smallint, null, o.until,
        sharequeue_internal.offsets_from(range_agg(int8range(o."offset", o."offset" + 1)), p_sp.spso)
    from sharequeue.open_key_records o
    where not p_settings.ordered and p_sp.open_key_records > 0 and o.share_partition_id = p_sp.share_partition_id
        and (select sharequeue_internal.held_by_keys(p_sp.share_partition_id)) @> o."offset"
    group by o.until
$$;
