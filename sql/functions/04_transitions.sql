-- The moves that every operation is made of. Each expects the share-partition row to be locked by its caller.

-- Puts offsets into a state, joining them with what is there already in exactly that state.
create or replace function sharequeue.place(
    p_share_partition_id bigint, p_state smallint, p_delivery_count smallint, p_offsets int8multirange,
    p_lease_id bigint default null, p_cause text default null, p_isolate bigint default null
) returns void
language sql volatile set search_path = pg_catalog as $$
    insert into sharequeue.in_flight as f
        (share_partition_id, state, delivery_count, lease_id, cause, isolate, offsets)
    select p_share_partition_id, p_state, p_delivery_count, p_lease_id, p_cause, p_isolate, p_offsets
    where not isempty(p_offsets)
    on conflict on constraint in_flight_one_row_a_state do update set offsets = f.offsets + excluded.offsets
$$;

-- Takes offsets out of one row of in_flight.
create or replace function sharequeue.take(p_in_flight_id bigint, p_offsets int8multirange) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    delete from sharequeue.in_flight where in_flight_id = p_in_flight_id and offsets <@ p_offsets;
    if not found then
        update sharequeue.in_flight set offsets = offsets - p_offsets where in_flight_id = p_in_flight_id;
    end if;
end
$$;

create or replace function sharequeue.count_outcome(
    p_share_partition_id bigint, p_outcome text, p_delivery_count smallint, p_records bigint
) returns void
language sql volatile set search_path = pg_catalog as $$
    insert into sharequeue.delivery_counts as d (share_partition_id, outcome, delivery_count, records)
    select p_share_partition_id, p_outcome, p_delivery_count, p_records where p_records > 0
    on conflict on constraint delivery_counts_pkey do update set records = d.records + excluded.records
$$;

-- A record that is rejected, or has used up its deliveries: ARCHIVING where the group has a dead-letter topic
-- (KIP-1191, first phase), otherwise ARCHIVED.
create or replace function sharequeue.give_up(
    p_share_partition_id bigint, p_group_id text, p_cause text, p_delivery_count smallint, p_offsets int8multirange
) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    if sharequeue.group_config(p_group_id, 'errors.deadletterqueue.topic.name') <> '' then
        perform sharequeue.place(p_share_partition_id, 3::smallint, p_delivery_count, p_offsets, null, p_cause);
    else
        perform sharequeue.place(p_share_partition_id, 4::smallint, p_delivery_count, p_offsets, null, p_cause);
        perform sharequeue.count_outcome(
            p_share_partition_id, p_cause, p_delivery_count, sharequeue.records(p_offsets));
    end if;
end
$$;

-- Ends a lease that got no answer: its lock lapsed, its member expired, or its run failed and released everything.
-- What it still holds becomes available again as *suspects* (design: poison isolation). N suspects delivered c times
-- under a limit of l come back in parts of at most N / ceil(N^(1/(l-c))), so that the last delivery holds one alone.
-- A record is exhausted only if it was alone in the lease that used up its last delivery; records that shared it get
-- one more delivery each, alone, at the same count.
create or replace function sharequeue.end_unanswered(p_lease_id bigint) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_partition record;
    v_part record;
    v_held bigint;
    v_offsets int8multirange;
    v_size bigint;
    v_limit integer;
begin
    select sp.share_partition_id, sp.group_id, sp.spso, sp.log_start into v_partition
    from sharequeue.leases l join sharequeue.share_partitions sp using (share_partition_id)
    where l.lease_id = p_lease_id;
    v_limit := sharequeue.group_config(v_partition.group_id, 'share.delivery.count.limit')::integer;
    select coalesce(sum(sharequeue.records(offsets)), 0) into v_held
    from sharequeue.in_flight where lease_id = p_lease_id;
    for v_part in
        delete from sharequeue.in_flight where lease_id = p_lease_id returning delivery_count, offsets
    loop
        -- What the log start has overtaken is gone, whatever its count (R-LT-3).
        v_offsets := v_part.offsets * int8multirange(int8range(v_partition.spso, null));
        v_size := sharequeue.records(v_offsets);
        continue when v_size = 0;
        if v_part.delivery_count < v_limit then
            perform sharequeue.place(
                v_partition.share_partition_id, 0::smallint, v_part.delivery_count, v_offsets, null, null,
                ceil(v_size / ceil(power(v_size::numeric, 1.0 / (v_limit - v_part.delivery_count)) - 1e-9))::bigint);
        elsif v_held > 1 then
            perform sharequeue.place(
                v_partition.share_partition_id, 0::smallint, v_part.delivery_count, v_offsets, null, null, 1);
        else
            perform sharequeue.give_up(
                v_partition.share_partition_id, v_partition.group_id, 'exceeded', v_part.delivery_count, v_offsets);
        end if;
    end loop;
    delete from sharequeue.leases where lease_id = p_lease_id;
    return v_held;
end
$$;

-- Lapsed locks are settled by every operation before it looks at anything else: a lapse is a fact of the clock.
create or replace function sharequeue.settle_lapsed(p_share_partition_id bigint, p_at timestamptz)
returns table (leases bigint, records bigint)
language sql volatile set search_path = pg_catalog as $$
    with ended as (
        select sharequeue.end_unanswered(lease_id) as held
        from sharequeue.leases
        where share_partition_id = p_share_partition_id and expires_at <= p_at
    )
    select count(*), coalesce(sum(held), 0)::bigint from ended
$$;

-- Moves SPSO over everything terminal from it on, and drops what it has passed. Terminal are ACKNOWLEDGED and
-- ARCHIVED; ARCHIVING is not (KIP-1191): SPSO waits for the dead letter.
create or replace function sharequeue.advance_spso(p_share_partition_id bigint) returns void
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_spso bigint;
    v_passed int8range;
    v_complete bigint;
begin
    select spso into v_spso from sharequeue.share_partitions where share_partition_id = p_share_partition_id;
    select r into v_passed
    from (
        select range_agg(offsets) as terminal from sharequeue.in_flight
        where share_partition_id = p_share_partition_id and state in (2, 4)
    ) as t, unnest(terminal) as r
    where r @> v_spso;
    if v_passed is not null then
        v_spso := upper(v_passed);
    end if;
    delete from sharequeue.in_flight
    where share_partition_id = p_share_partition_id and state in (2, 4)
        and offsets <@ int8multirange(int8range(null, v_spso));
    update sharequeue.in_flight set offsets = offsets - int8multirange(int8range(null, v_spso))
    where share_partition_id = p_share_partition_id and state in (2, 4)
        and offsets && int8multirange(int8range(null, v_spso));
    select coalesce(sum(sharequeue.records(offsets)), 0) into v_complete
    from sharequeue.in_flight where share_partition_id = p_share_partition_id and state in (2, 4);
    update sharequeue.share_partitions
    set spso = v_spso, speo = greatest(speo, v_spso), delivery_complete_count = v_complete
    where share_partition_id = p_share_partition_id
        and (spso, delivery_complete_count) is distinct from (v_spso, v_complete);
end
$$;
