-- Locks that end without an acknowledgement: lapsed, expired with their member, or released by a run that failed.

-- Ends leases that were not acknowledged. The records that they still hold become available again, or are exhausted at the
-- limit (R-ST-4). Under fan_out these records are *suspects*. N suspects that were delivered c times
-- under a limit of l come back in parts of at most N / ceil(N^(1/(l-c))), so that at the last delivery each is alone. At the
-- limit a record is exhausted only if it was alone in its lease. Records that shared the lease get one more delivery each,
-- alone, at the same count. Returns the number of records that the leases held, and how many of them are terminal now, for
-- advance_spso. p_reason, as 'Class: message', is for the dead letters: why no acknowledgement came; null if not known.
--
-- One statement processes the whole batches of all leases. Only exploded batches are processed one by one.
create or replace function sharequeue_internal.end_leases(
    p_share_partition_id bigint, p_lease_ids bigint[], p_reason text, out held bigint, out completed bigint
)
language plpgsql volatile as $$
declare
    v_lease_id bigint;
    v_ended record;
begin
    if not (select s.breaker_percent > 0 from sharequeue.share_partitions sp
            join sharequeue.group_settings s using (group_id) where sp.share_partition_id = p_share_partition_id) then
        select e.held, e.completed into held, completed
        from sharequeue_internal.end_leases_at(p_share_partition_id, p_lease_ids, null, p_reason) as e;
        return;
    end if;
    -- The circuit breaker counts each lease before it ends, and returns the time until which its records must wait. Its
    -- window depends on the order.
    held := 0;
    completed := 0;
    for v_lease_id in
        select lease_id from sharequeue.leases where lease_id = any (p_lease_ids) order by expires_at, lease_id
    loop
        select e.held, e.completed into v_ended
        from sharequeue_internal.end_leases_at(p_share_partition_id, array[v_lease_id],
            sharequeue_internal.circuit_lapse(p_share_partition_id, v_lease_id), p_reason) as e;
        held := held + v_ended.held;
        completed := completed + v_ended.completed;
    end loop;
end
$$;

-- The same, with the times until which records of a failed probe wait.
create or replace function sharequeue_internal.end_leases_at(
    p_share_partition_id bigint, p_lease_ids bigint[], p_not_before timestamptz, p_reason text, out held bigint,
    out completed bigint
)
-- A session keeps a plan that was made while the tables were small. So the query leaves the planner no choice: rows are found by
-- lease and written by ctid, which cannot change under the share-partition's lock, and no table is read whole. With plain joins
-- a lease would cost at least ten times as much.
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_sp record;
    v_ended record;
    v_part record;
begin
    select sp.spso, s.delivery_count_limit, s.dead_letters into v_sp
    from sharequeue.share_partitions sp join sharequeue.group_settings s using (group_id)
    where sp.share_partition_id = p_share_partition_id;
    if v_sp.dead_letters then
        perform sharequeue_internal.note_attempts(p_share_partition_id, p_lease_ids, p_reason => p_reason);
    end if;
    with parts as (
        select f.*, sum(f.records) over (partition by e.lease_id)::bigint as together,
            -- By delivery count: the division of suspects depends on their number in all batches of the lease.
            sum(f.live) over (partition by e.lease_id, f.delivery_count)::bigint as suspects, l.fan_out
        from unnest(p_lease_ids) as e (lease_id)
        cross join lateral (select fan_out from sharequeue.leases where lease_id = e.lease_id offset 0) as l
        cross join lateral (
            select ctid as at, first_offset, part, delivery_count,
                offsets is null and first_offset >= v_sp.spso as whole,
                case when offsets is null then last_offset - first_offset + 1 else sharequeue.records(offsets) end
                    as records,
                case when offsets is null then greatest(0, last_offset + 1 - greatest(first_offset, v_sp.spso))
                    else sharequeue.records(sharequeue_internal.offsets_from(offsets, v_sp.spso)) end as live
            from sharequeue.in_flight_batches where lease_id = e.lease_id offset 0) as f
    ), fates as materialized (
        select p.*, x.again, case when x.again then 0 when v_sp.dead_letters then 3 else 4 end::smallint as state,
            case when not x.again then 'exhausted' end as cause,
            case when x.again and p.fan_out and p.delivery_count >= v_sp.delivery_count_limit then 1
                when x.again and p.fan_out then greatest(1, ceil(p.suspects / ceil(power(greatest(p.suspects, 1)::numeric,
                    1.0 / (v_sp.delivery_count_limit - p.delivery_count)) - 1e-9))::bigint) end as isolate
        from parts p cross join lateral (
            select p.delivery_count < v_sp.delivery_count_limit or (p.fan_out and p.together > 1) as again) as x
    ), ended as (
        delete from sharequeue.leases where lease_id = any (p_lease_ids)
    ), whole as (
        update sharequeue.in_flight_batches f
        set state = t.state, lease_id = null, cause = t.cause, isolate = t.isolate,
            not_before = case when t.again then p_not_before end
        from fates t where t.whole and f.ctid = t.at
    ), counted as (
        insert into sharequeue.delivery_counts as d (share_partition_id, outcome, delivery_count, records)
        select p_share_partition_id, 'exhausted', delivery_count, sum(live)
        from fates where state = 4 and live > 0 group by delivery_count
        on conflict on constraint delivery_counts_pkey do update set records = d.records + excluded.records
    )
    select coalesce(sum(records), 0)::bigint as records, coalesce(sum(live) filter (where state = 4), 0)::bigint as completed,
        coalesce(bool_or(again and live > 0), false) as again,
        min(first_offset) filter (where state = 4) as first_archived,
        max(first_offset) filter (where state = 4) as last_archived,
        array_agg(first_offset) filter (where not whole) as firsts, array_agg(part) filter (where not whole) as parts,
        array_agg(state) filter (where not whole) as states, array_agg(cause) filter (where not whole) as causes,
        array_agg(isolate) filter (where not whole) as isolates
    into v_ended from fates;
    held := v_ended.records;
    completed := v_ended.completed;
    for v_part in
        select * from unnest(v_ended.firsts, v_ended.parts, v_ended.states, v_ended.causes, v_ended.isolates)
            as e (first_offset, part, state, cause, isolate)
    loop
        perform sharequeue_internal.end_exploded(p_share_partition_id, v_sp.spso, v_part.first_offset, v_part.part,
            v_part.state, v_part.cause, v_part.isolate, case when v_part.state = 0 then p_not_before end);
    end loop;
    if v_ended.first_archived is not null then
        perform sharequeue_internal.join_terminal(
            p_share_partition_id, v_ended.first_archived, v_ended.last_archived);
    end if;
    if v_ended.again then
        update sharequeue.share_partitions set redeliverable = true
        where share_partition_id = p_share_partition_id and not redeliverable;
    end if;
    perform sharequeue_internal.lose_keys(p_share_partition_id, sharequeue.clock());
end
$$;

-- Puts one row of an exploded batch into the state that its records have after their lease.
create or replace function sharequeue_internal.end_exploded(
    p_share_partition_id bigint, p_spso bigint, p_first bigint, p_part integer, p_state smallint, p_cause text, p_isolate bigint,
    p_not_before timestamptz
) returns void
language plpgsql volatile as $$
declare
    v_gone record;
begin
    delete from sharequeue.in_flight_batches f
    where f.share_partition_id = p_share_partition_id and f.first_offset = p_first and f.part = p_part
    -- Records that the log start has passed are gone, whatever their count (R-LT-3).
    returning f.last_offset, f.delivery_count, sharequeue_internal.offsets_from(
        sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets), p_spso) as offsets into v_gone;
    perform sharequeue_internal.place(p_share_partition_id, p_first, v_gone.last_offset, p_state, v_gone.delivery_count,
        v_gone.offsets, null, p_cause, p_isolate, p_not_before);
end
$$;

-- The same for one lease.
create or replace function sharequeue_internal.end_unacknowledged(
    p_share_partition_id bigint, p_lease_id bigint, p_reason text default null, out held bigint, out completed bigint
)
language sql volatile as $$
    select e.held, e.completed from sharequeue_internal.end_leases(p_share_partition_id, array[p_lease_id], p_reason) as e
$$;

-- Returns whether a share-partition has a lock that was taken in the future: the clock was set back since. Such a lock counts as
-- taken now. Only the lock that ends last is read, because a lock from the future ends after the others.
create or replace function sharequeue_internal.locked_ahead(p_share_partition_id bigint, p_at timestamptz) returns boolean
language sql stable as $$
    select coalesce((
        select sharequeue_internal.is_ahead(l.locked_at, p_at) from sharequeue.leases l where l.share_partition_id = p_share_partition_id
        order by l.share_partition_id desc, l.expires_at desc limit 1), false)
$$;

-- Ends leases whose lock has lapsed, oldest first, at most p_limit of them, and moves SPSO. Every operation does this before it
-- reads the state, and without a limit: otherwise it could acknowledge records whose lock has lapsed. sweep keeps the number of
-- such leases small.
create or replace function sharequeue_internal.settle_lapsed(
    p_share_partition_id bigint, p_at timestamptz, p_limit bigint default null, out leases bigint, out records bigint
)
language plpgsql volatile as $$
declare
    v_lease_ids bigint[];
    v_completed bigint;
begin
    leases := 0;
    records := 0;
    perform sharequeue_internal.outlast_outage(p_share_partition_id, p_at);
    if sharequeue_internal.locked_ahead(p_share_partition_id, p_at) then
        update sharequeue.leases
        set expires_at = expires_at - (locked_at - p_at), locked_at = p_at, acquired_at = least(acquired_at, p_at)
        where share_partition_id = p_share_partition_id and locked_at > p_at;
    end if;
    v_lease_ids := array(
        select l.lease_id from sharequeue.leases l
        where l.share_partition_id = p_share_partition_id and l.expires_at <= p_at
        order by l.share_partition_id, l.expires_at limit p_limit);
    leases := cardinality(v_lease_ids);
    if leases > 0 then
        select e.held, e.completed into records, v_completed
        from sharequeue_internal.end_leases(p_share_partition_id, v_lease_ids, 'LockLapsed: no acknowledgement came before '
            'the lock ended: the process that held the record was killed, or took longer than the lock') as e;
        perform sharequeue_internal.count_event(p_share_partition_id, 'lapsed', records);
        perform sharequeue_internal.advance_spso(p_share_partition_id, v_completed);
    end if;
    perform sharequeue_internal.renew_next_expiry(p_share_partition_id);
end
$$;

-- Returns the latest expiry of a lock that is taken now. A share-partition whose first lock ends later may have been locked
-- before the clock was set back (locked_ahead).
create or replace function sharequeue_internal.latest_expiry(p_settings sharequeue.group_settings, p_at timestamptz)
returns timestamptz
language sql stable parallel safe as $$
    select p_at + p_settings.lock_duration_ms * interval '1 millisecond'
$$;

-- Returns a locked share-partition after its lapsed locks have ended. If its first lock ends after p_latest, it may be from the
-- future.
create or replace function sharequeue_internal.settled(
    p_sp sharequeue.share_partitions, p_at timestamptz, p_latest timestamptz default null
) returns sharequeue.share_partitions
language plpgsql volatile as $$
declare
    v_sp sharequeue.share_partitions := p_sp;
begin
    if p_sp.next_expiry <= p_at
            or (p_sp.next_expiry > p_latest and sharequeue_internal.locked_ahead(p_sp.share_partition_id, p_at)) then
        perform sharequeue_internal.settle_lapsed(p_sp.share_partition_id, p_at);
        select * into v_sp from sharequeue.share_partitions where share_partition_id = p_sp.share_partition_id;
    end if;
    return v_sp;
end
$$;

-- Updates the earliest expiry after the stored lower bound has passed.
create or replace function sharequeue_internal.renew_next_expiry(p_share_partition_id bigint) returns void
language sql volatile as $$
    update sharequeue.share_partitions set next_expiry = (
        select l.expires_at from sharequeue.leases l where l.share_partition_id = p_share_partition_id
        order by l.share_partition_id, l.expires_at limit 1)
    where share_partition_id = p_share_partition_id
$$;
