-- State changes that the operations use. Each expects the share-partition row to be locked by its caller. They have no search
-- path of their own, because they run inside an operation that has it.

-- Returns all offsets of a batch, or the part of it that a row has.
create or replace function sharequeue_internal.offsets_of(p_first bigint, p_last bigint, p_offsets int8multirange)
returns int8multirange
language sql immutable parallel safe as $$
    select coalesce(p_offsets, pg_catalog.int8multirange(pg_catalog.int8range(p_first, p_last + 1)))
$$;

-- Puts offsets of a batch into a state, and joins them with offsets that are already in exactly that state. The batch is
-- exploded from here on.
create or replace function sharequeue_internal.place(
    p_share_partition_id bigint, p_first bigint, p_last bigint, p_state smallint, p_delivery_count smallint,
    p_offsets int8multirange, p_lease_id bigint default null, p_cause text default null, p_isolate bigint default null,
    p_not_before timestamptz default null
) returns void
language plpgsql volatile as $$
begin
    if isempty(p_offsets) then
        return;
    end if;
    update sharequeue.in_flight_batches set offsets = offsets + p_offsets
    where share_partition_id = p_share_partition_id and first_offset = p_first and state = p_state
        and delivery_count = p_delivery_count and lease_id is not distinct from p_lease_id
        and cause is not distinct from p_cause and isolate is not distinct from p_isolate
        and not_before is not distinct from p_not_before;
    if not found then
        insert into sharequeue.in_flight_batches
            (share_partition_id, first_offset, last_offset, part, state, delivery_count, lease_id, cause, isolate,
             not_before, offsets)
        select p_share_partition_id, p_first, p_last, coalesce(max(part), 0) + 1, p_state, p_delivery_count, p_lease_id,
            p_cause, p_isolate, p_not_before, p_offsets
        from sharequeue.in_flight_batches where share_partition_id = p_share_partition_id and first_offset = p_first;
    end if;
end
$$;

-- Takes offsets out of one row of a batch; the batch is exploded from here on.
create or replace function sharequeue_internal.take(
    p_share_partition_id bigint, p_first bigint, p_part integer, p_offsets int8multirange
) returns void
language plpgsql volatile as $$
begin
    if isempty(p_offsets) then
        return;
    end if;
    delete from sharequeue.in_flight_batches
    where share_partition_id = p_share_partition_id and first_offset = p_first and part = p_part
        and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) <@ p_offsets;
    if not found then
        update sharequeue.in_flight_batches
        set offsets = sharequeue_internal.offsets_of(first_offset, last_offset, offsets) - p_offsets
        where share_partition_id = p_share_partition_id and first_offset = p_first and part = p_part;
    end if;
end
$$;

-- Puts offsets of one row of a batch into a lease, with a delivery count. A whole batch stays one row.
create or replace function sharequeue_internal.put_into_lease(
    p_share_partition_id bigint, p_first bigint, p_last bigint, p_part integer, p_offsets int8multirange,
    p_delivery_count smallint, p_lease_id bigint
) returns void
language plpgsql volatile as $$
begin
    update sharequeue.in_flight_batches
    set state = 1, delivery_count = p_delivery_count, lease_id = p_lease_id, isolate = null, not_before = null
    where share_partition_id = p_share_partition_id and first_offset = p_first and part = p_part and offsets is null
        and p_offsets = int8multirange(int8range(p_first, p_last + 1));
    if not found then
        perform sharequeue_internal.take(p_share_partition_id, p_first, p_part, p_offsets);
        perform sharequeue_internal.place(p_share_partition_id, p_first, p_last, 1::smallint, p_delivery_count, p_offsets,
            p_lease_id);
    end if;
end
$$;

-- Archives offsets that are not records of the log (any more): those of a lease, or redeliverable ones without p_lease_id. They
-- count as complete, and are not dead letters. SPSO passes them later: with the next acknowledgement, or with an acquire that
-- finds nothing else (advance_if_due).
create or replace function sharequeue_internal.archive_gaps(
    p_share_partition_id bigint, p_offsets int8multirange, p_lease_id bigint default null
) returns void
language plpgsql volatile as $$
declare
    v_part record;
    v_archived bigint := 0;
begin
    for v_part in
        select first_offset, last_offset, part, delivery_count,
            sharequeue_internal.offsets_of(first_offset, last_offset, offsets) * p_offsets as offsets
        from sharequeue.in_flight_batches
        where share_partition_id = p_share_partition_id and state = case when p_lease_id is null then 0 else 1 end
            and lease_id is not distinct from p_lease_id and first_offset < upper(p_offsets)
            and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) && p_offsets
    loop
        perform sharequeue_internal.take(p_share_partition_id, v_part.first_offset, v_part.part, v_part.offsets);
        perform sharequeue_internal.place(p_share_partition_id, v_part.first_offset, v_part.last_offset, 4::smallint,
            v_part.delivery_count, v_part.offsets, null, 'gap');
        perform sharequeue_internal.count_outcome(
            p_share_partition_id, 'gap', v_part.delivery_count, sharequeue.records(v_part.offsets));
        perform sharequeue_internal.join_terminal(p_share_partition_id, v_part.first_offset, v_part.first_offset);
        v_archived := v_archived + sharequeue.records(v_part.offsets);
    end loop;
    update sharequeue.share_partitions set delivery_complete_count = delivery_complete_count + v_archived, advance_due = true
    where share_partition_id = p_share_partition_id and v_archived > 0;
end
$$;

-- Counts records that ended, for the histogram of delivery counts.
create or replace function sharequeue_internal.count_outcome(
    p_share_partition_id bigint, p_outcome text, p_delivery_count smallint, p_records bigint
) returns void
language plpgsql volatile as $$
begin
    if p_records = 0 then
        return;
    end if;
    insert into sharequeue.delivery_counts as d (share_partition_id, outcome, delivery_count, records)
    values (p_share_partition_id, p_outcome, p_delivery_count, p_records)
    on conflict on constraint delivery_counts_pkey do update set records = d.records + excluded.records;
end
$$;

-- Counts records that were released or renewed, or whose lock lapsed, for monitoring.
create or replace function sharequeue_internal.count_event(p_share_partition_id bigint, p_event text, p_records bigint)
returns void
language sql volatile as $$
    insert into sharequeue.record_events as e (share_partition_id, event, records)
    values (p_share_partition_id, p_event, p_records)
    on conflict on constraint record_events_pkey do update set records = e.records + excluded.records
$$;

-- Joins each batch whose records are all terminal and of one kind into one row, also with neighbours of the same kind. So the
-- cost of a long window behind a pinned head depends only on its exceptions. It processes all batches from p_first to p_last,
-- with their neighbours on both sides, in one pass: one by one would cost many times as much.
create or replace function sharequeue_internal.join_terminal(p_share_partition_id bigint, p_first bigint, p_last bigint)
returns void
-- By ctid, and without reading a table whole, as in end_leases_at.
language plpgsql volatile set enable_seqscan = off as $$
declare
    -- With the neighbours on both sides.
    v_from bigint := coalesce((select first_offset from sharequeue.in_flight_batches
        where share_partition_id = p_share_partition_id and first_offset < p_first
        order by share_partition_id desc, first_offset desc limit 1), p_first);
    v_to bigint := coalesce((select first_offset from sharequeue.in_flight_batches
        where share_partition_id = p_share_partition_id and first_offset > p_last
        order by share_partition_id, first_offset limit 1), p_last);
begin
    with batches as (
        select first_offset, min(last_offset) as last_offset, min(state) as state,
            min(delivery_count) as delivery_count, min(cause) as cause,
            bool_or(part <> 0 or offsets is not null) as exploded, (array_agg(ctid))[1] as at
        from sharequeue.in_flight_batches
        where share_partition_id = p_share_partition_id and first_offset between v_from and v_to
        group by first_offset
        having count(*) = 1 and min(state) in (2, 4)
            and bool_and(offsets is null or offsets = int8multirange(int8range(first_offset, last_offset + 1)))
    ), islands as (
        select *, count(*) filter (where not joins) over (order by first_offset) as island
        from (
            select *, coalesce(first_offset = lag(last_offset) over o + 1 and state = lag(state) over o
                and delivery_count = lag(delivery_count) over o
                and cause is not distinct from lag(cause) over o, false) as joins
            from batches window o as (order by first_offset)
        ) as b
    ), wanted as (
        select max(last_offset) as last_offset, (array_agg(at order by first_offset))[1] as at
        from islands group by island having count(*) > 1 or bool_or(exploded)
    ), gone as (
        delete from sharequeue.in_flight_batches f using islands i where i.joins and f.ctid = i.at
    )
    update sharequeue.in_flight_batches f set last_offset = w.last_offset, offsets = null, part = 0
    from wanted w where f.ctid = w.at;
end
$$;

-- Moves SPSO past all terminal records that follow it (R-SO), deletes the batches that it has passed, and updates the
-- delivery-complete count: p_completed more records are complete, and p_accepted_first of them were accepted at their first
-- delivery. ACKNOWLEDGED and ARCHIVED are terminal; ARCHIVING is not (KIP-1191): SPSO waits for the dead letter. SPSO passes
-- natural holes between batches.
create or replace function sharequeue_internal.advance_spso(
    p_share_partition_id bigint, p_completed bigint default 0, p_accepted_first bigint default 0
) returns void
language plpgsql volatile as $$
declare
    v_sp record;
    v_first bigint;
    v_to bigint;
    v_passed bigint := 0;
begin
    select spso, speo, advance_due into v_sp from sharequeue.share_partitions where share_partition_id = p_share_partition_id;
    -- The first batch with a record that holds SPSO, in the order of the primary key: behind a pinned head the scan ends
    -- at its first row, however many rows follow.
    select first_offset into v_first
    from sharequeue.in_flight_batches
    where share_partition_id = p_share_partition_id and last_offset >= v_sp.spso and state not in (2, 4)
        and (offsets is null or upper(offsets) > v_sp.spso)
    order by share_partition_id, first_offset, part limit 1;
    if found then
        select min(case when offsets is null then greatest(first_offset, v_sp.spso)
            else lower(sharequeue_internal.offsets_from(offsets, v_sp.spso)) end)
        into v_to
        from sharequeue.in_flight_batches
        where share_partition_id = p_share_partition_id and first_offset = v_first and state not in (2, 4);
    else
        v_to := v_sp.speo;
    end if;
    if v_to > v_sp.spso then
        select coalesce(sum(least(last_offset + 1, v_to) - greatest(first_offset, v_sp.spso)), 0) into v_passed
        from (
            select distinct first_offset, last_offset from sharequeue.in_flight_batches
            where share_partition_id = p_share_partition_id and first_offset < v_to and last_offset >= v_sp.spso
        ) as b;
        delete from sharequeue.in_flight_batches
        where share_partition_id = p_share_partition_id and first_offset < v_to and last_offset < v_to
            and state in (2, 4);
    end if;
    if v_to > v_sp.spso or p_completed <> 0 or v_sp.advance_due then
        update sharequeue.share_partitions
        set spso = v_to, advance_due = false, speo = greatest(speo, v_to), accepted_first = accepted_first + p_accepted_first,
            delivery_complete_count = delivery_complete_count + p_completed - v_passed
        where share_partition_id = p_share_partition_id;
    end if;
end
$$;

-- The same after an acquire has archived records and left the move to an acknowledgement (R-SO-1), which may never come. Called
-- by acquires that find nothing to lease, and by the sweep. Returns whether it was due.
create or replace function sharequeue_internal.advance_if_due(p_share_partition_id bigint) returns boolean
language plpgsql volatile as $$
begin
    perform from sharequeue.share_partitions where share_partition_id = p_share_partition_id and advance_due;
    if found then
        perform sharequeue_internal.advance_spso(p_share_partition_id);
        return true;
    end if;
    return false;
end
$$;
