-- The circuit breaker. During an outage of a downstream system nearly every record fails. Without a breaker the whole backlog
-- would lose its deliveries and go to the dead-letter topic. So if more than a configured percentage of the last records have
-- failed, nothing is leased for some time. Then a small lease is given as a probe. If it succeeds the breaker closes, otherwise
-- it opens again. A record that returns from a probe gets its delivery back and is not in the next probe, so that one bad
-- record does not keep the breaker open. The functions that write expect the share-partition row to be locked.

-- Returns whether an open breaker may give a probe. A probe that is due later than the breaker stays open was planned before
-- the clock was set back, or before the config was lowered: it is due now.
create or replace function sharequeue_internal.probe_due(
    p_circuit sharequeue.circuit_breakers, p_settings sharequeue.group_settings, p_at timestamptz
) returns boolean
language sql immutable parallel safe as $$
    select p_at >= p_circuit.retry_at
        or sharequeue_internal.is_ahead(p_circuit.retry_at, p_at + p_settings.breaker_open_ms * interval '1 millisecond')
$$;

-- Returns how many records may be leased now, and whether they are a probe.
create or replace function sharequeue_internal.circuit_allows(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_most bigint, p_at timestamptz,
    out most bigint, out probe boolean
)
language plpgsql stable as $$
declare
    v_circuit sharequeue.circuit_breakers;
begin
    most := p_most;
    probe := false;
    select * into v_circuit from sharequeue.circuit_breakers where share_partition_id = p_sp.share_partition_id;
    if not found or v_circuit.state = 'closed' then
        return;
    end if;
    -- A probe without a holder (released by an operator, removed by retention) will not be acknowledged.
    if (v_circuit.state = 'open' and sharequeue_internal.probe_due(v_circuit, p_settings, p_at)) or (v_circuit.state = 'probing' and not exists (
            select from sharequeue.in_flight_batches f
            where f.share_partition_id = p_sp.share_partition_id and f.state = 1
                and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) && v_circuit.probe)) then
        most := least(p_most, p_settings.breaker_probe_records);
        probe := true;
    else
        most := 0;
    end if;
end
$$;

-- Records that a lease is the probe.
create or replace function sharequeue_internal.circuit_probes(p_id bigint, p_lease_id bigint) returns void
language sql volatile as $$
    update sharequeue.circuit_breakers c
    set state = 'probing', probe = l.offsets, probe_records = sharequeue.records(l.offsets), probe_failed = 0
    from (
        select range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)) as offsets
        from sharequeue.in_flight_batches where lease_id = p_lease_id and state = 1
    ) as l
    where c.share_partition_id = p_id and l.offsets is not null
$$;

-- Counts records that were acknowledged, or whose lock ended without an acknowledgement: p_failed of them failed, p_returning
-- are delivered again, and p_silent neither succeeded nor failed. Call it before their state changes. Returns the time until
-- which records of a failed probe must wait; null otherwise.
create or replace function sharequeue_internal.circuit_counts(
    p_id bigint, p_settings sharequeue.group_settings, p_acknowledged int8multirange, p_failed int8multirange,
    p_returning int8multirange, p_silent int8multirange, p_at timestamptz
) returns timestamptz
language plpgsql volatile as $$
declare
    v_circuit sharequeue.circuit_breakers;
    v_acknowledged double precision := sharequeue.records(p_acknowledged);
    v_failed double precision := sharequeue.records(p_failed);
    v_window double precision := p_settings.breaker_window_records;
    v_share double precision := p_settings.breaker_percent / 100.0;
    v_kept double precision;
    v_probed bigint;
begin
    if v_acknowledged = 0 and isempty(p_silent) then
        return null;
    end if;
    select * into v_circuit from sharequeue.circuit_breakers where share_partition_id = p_id;
    if v_acknowledged = 0 and v_circuit.state is distinct from 'probing' then
        return null;
    elsif not found then
        insert into sharequeue.circuit_breakers (share_partition_id) values (p_id) returning * into v_circuit;
    end if;
    if v_circuit.state = 'closed' then
        -- Only sums are stored, not single records. So records older than the last window count less and less.
        v_kept := least(v_circuit.records, greatest(0, v_window - v_acknowledged));
        -- Multiplied first: 147 * (20 / 147) is more than 20, so that more records would have failed than were acknowledged.
        v_failed := v_failed * v_window / greatest(v_acknowledged, v_window)
            + case when v_circuit.records > 0 then v_circuit.failed * v_kept / v_circuit.records else 0 end;
        v_acknowledged := least(v_acknowledged, v_window) + v_kept;
        update sharequeue.circuit_breakers set records = v_acknowledged, failed = v_failed
        where share_partition_id = p_id;
        if v_acknowledged >= least(p_settings.breaker_min_records, v_window) and v_failed > v_share * v_acknowledged then
            perform sharequeue_internal.open_circuit(p_id, p_settings, p_at, format(
                '%s of the last %s records failed', round(v_failed::numeric), round(v_acknowledged::numeric)));
        end if;
        return null;
    end if;
    -- Records that were leased before the breaker opened do not count again.
    if v_circuit.state = 'open' or not v_circuit.probe && (p_acknowledged + p_silent) then
        return null;
    end if;
    v_circuit.probe_records := v_circuit.probe_records - sharequeue.records(p_silent * v_circuit.probe);
    v_circuit.probe := v_circuit.probe - p_silent;
    perform sharequeue_internal.refund(p_id, p_returning * v_circuit.probe);
    v_probed := sharequeue.records(p_failed * v_circuit.probe) + v_circuit.probe_failed;
    if v_probed > v_share * v_circuit.probe_records then
        perform sharequeue_internal.open_circuit(p_id, p_settings, p_at, format(
            '%s of the %s records of the probe failed', v_probed, v_circuit.probe_records));
        return date_trunc('second', p_at + 2 * p_settings.breaker_open_ms * interval '1 millisecond'
            + interval '999999 microseconds');
    end if;
    if v_circuit.probe <@ p_acknowledged and v_circuit.probe_records > 0 then
        update sharequeue.circuit_breakers
        set state = 'closed', records = 0, failed = 0, opened_at = null, retry_at = null, reason = null, probe = '{}'
        where share_partition_id = p_id;
    else
        update sharequeue.circuit_breakers
        set probe = v_circuit.probe - p_acknowledged, probe_records = v_circuit.probe_records, probe_failed = v_probed
        where share_partition_id = p_id;
    end if;
    return null;
end
$$;

-- Opens the breaker.
create or replace function sharequeue_internal.open_circuit(
    p_id bigint, p_settings sharequeue.group_settings, p_at timestamptz, p_reason text
) returns void
language sql volatile as $$
    update sharequeue.circuit_breakers
    set state = 'open', opened_at = coalesce(opened_at, p_at), probe = '{}',
        retry_at = p_at + p_settings.breaker_open_ms * interval '1 millisecond',
        reason = p_reason || ', more than ' || p_settings.breaker_percent || ' %'
    where share_partition_id = p_id
$$;

-- Counts an acknowledgement.
create or replace function sharequeue_internal.circuit_acknowledgements(
    p_id bigint, p_settings sharequeue.group_settings, p_acknowledgements sharequeue.acknowledgements, p_asked int8multirange,
    p_at timestamptz
) returns timestamptz
language sql volatile as $$
    select sharequeue_internal.circuit_counts(p_id, p_settings,
        ((p_acknowledgements).accept + (p_acknowledgements).release + (p_acknowledgements).reject) * p_asked,
        ((p_acknowledgements).release + (p_acknowledgements).reject) * p_asked, (p_acknowledgements).release * p_asked,
        ((p_acknowledgements).gap + (p_acknowledgements).hold) * p_asked, p_at)
$$;

-- Counts a lease that ended without an acknowledgement: all its records failed, and are delivered again.
create or replace function sharequeue_internal.circuit_lapse(p_id bigint, p_lease_id bigint) returns timestamptz
language plpgsql volatile as $$
declare
    v_settings sharequeue.group_settings;
    v_offsets int8multirange;
begin
    select s.* into v_settings from sharequeue.share_partitions sp join sharequeue.group_settings s using (group_id)
    where sp.share_partition_id = p_id;
    select coalesce(range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)), '{}')
        * int8multirange(int8range((
            select spso from sharequeue.share_partitions where share_partition_id = p_id), null))
    into v_offsets from sharequeue.in_flight_batches f where f.lease_id = p_lease_id;
    return sharequeue_internal.circuit_counts(
        p_id, v_settings, v_offsets, v_offsets, v_offsets, '{}', sharequeue.clock());
end
$$;

-- Gives a delivery back to leased records: reduces their count by one, before their state changes.
create or replace function sharequeue_internal.refund(p_id bigint, p_offsets int8multirange) returns void
language plpgsql volatile as $$
declare
    v_part record;
begin
    if isempty(p_offsets) then
        return;
    end if;
    for v_part in
        select f.first_offset, f.last_offset, f.part, f.delivery_count, f.lease_id,
            sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) * p_offsets as refunded
        from sharequeue.in_flight_batches f
        where f.share_partition_id = p_id and f.state = 1 and f.first_offset < upper(p_offsets)
            and f.last_offset >= lower(p_offsets)
            and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) && p_offsets
        order by f.first_offset, f.delivery_count
    loop
        perform sharequeue_internal.put_into_lease(p_id, v_part.first_offset, v_part.last_offset, v_part.part, v_part.refunded,
            (v_part.delivery_count - 1)::smallint, v_part.lease_id);
    end loop;
end
$$;
