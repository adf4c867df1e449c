-- Returns why nothing can be leased from a share-partition that has lag, and until when (the liveness invariant). Null if records
-- can be leased, and if there is no lag. blocked_by is one word: topic_deleted, topic_recreated, paused, breaker, window
-- (share.partition.max.record.locks, behind blocked_offset), transaction (the last stable offset), leased, waiting (not before a
-- time, or back-off), dead_letters, truncated. It is never unknown (verify checks this). Records whose lock has lapsed can be
-- leased: the next call ends these locks. The texts of the reasons are only in this file and in lost_topic. p_letters is the
-- reason why dead letters are not written.
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
    select min(lower(o.offsets)) as head,
        min(lower(o.offsets)) filter (where b.state = 0 and coalesce(b.not_before <= v_at, true)) as ready_from,
        coalesce(sum(sharequeue.records(o.offsets)) filter (where b.state = 0 and b.not_before > v_at), 0) as waiting
    into v_window
    from sharequeue.in_flight_batches b
    cross join lateral (select sharequeue_internal.offsets_from(
        sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets), p_sp.spso) as offsets) as o
    where b.share_partition_id = p_sp.share_partition_id and b.state in (0, 1, 3);
    -- An acquire that finds nothing moves SPSO past finished records if that is due.
    v_full := p_sp.speo - case when p_sp.advance_due then coalesce(v_window.head, p_sp.speo) else p_sp.spso end
        - v_window.waiting >= p_settings.max_record_locks;
    if (p_sp.redeliverable and v_window.ready_from < v_read_end) or (v_read_end > p_sp.speo and not v_full)
            or exists (select from sharequeue.leases l
                where l.share_partition_id = p_sp.share_partition_id and l.expires_at <= v_at) then
        return;
    elsif v_read_end <= p_sp.speo and p_sp.speo < p_sp.log_end then
        select 'transaction', 'an open transaction: records from the last stable offset on cannot be read yet', null, v_read_end
        into blocked_by, blocked_reason, blocked_until, blocked_offset;
        return;
    end if;
    -- The head of a full window, or the record that can be leased first.
    v_full := v_read_end > p_sp.speo;
    select w.*, lower(p.offsets) as at_offset into v_part
    from sharequeue.in_flight_batches b
    left join sharequeue.leases l using (share_partition_id, lease_id)
    cross join lateral (select sharequeue_internal.offsets_from(
        sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets), p_sp.spso) as offsets) as p
    cross join lateral (
        select 'leased' as name, 'leased by ' || l.member_id as words, l.expires_at as until where b.state = 1
        union all
        select 'waiting', 'waits for a later time', b.not_before where b.state = 0 and b.not_before > v_at
        union all
        select 'dead_letters', coalesce(p_letters, 'being written to the dead-letter topic'), null where b.state = 3
        union all
        select 'truncated', format('the log ends at %s, below delivered records', p_sp.log_end), null
        where b.state = 0 and coalesce(b.not_before <= v_at, true) and lower(p.offsets) >= p_sp.log_end
        union all
        select 'transaction', 'an open transaction: records from the last stable offset on cannot be read yet', null
        where b.state = 0 and coalesce(b.not_before <= v_at, true) and lower(p.offsets) between v_read_end and p_sp.log_end - 1
    ) as w
    where b.share_partition_id = p_sp.share_partition_id and b.state in (0, 1, 3) and not isempty(p.offsets)
        and (not v_full or lower(p.offsets) = v_window.head)
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
