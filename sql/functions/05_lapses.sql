-- Locks that end without an answer: lapsed, expired with their member, released by a run that failed.

-- Ends a lease that got no answer: what it still holds becomes available again, or is exhausted at the limit (R-ST-4).
-- Under fan_out (design: poison isolation) as *suspects*: N suspects delivered c times under a limit of l come back in
-- parts of at most N / ceil(N^(1/(l-c))), so that the last delivery holds one alone; at the limit a record is exhausted
-- only if it was alone in the lease, records that shared it get one more delivery each, alone, at the same count. Answers with the records it held, and how many of them are
-- terminal now, for advance_spso.
create or replace function sharequeue.end_unanswered(
    p_share_partition_id bigint, p_lease_id bigint, out held bigint, out completed bigint
)
language plpgsql volatile as $$
declare
    v_sp record;
    v_lease record;
    v_counts record;
    v_part record;
    v_offsets int8multirange;
    v_state smallint;
    v_cause text;
    v_isolate bigint;
    v_more boolean := false;
begin
    held := 0;
    completed := 0;
    select sp.spso, s.delivery_count_limit, s.dead_letters into v_sp
    from sharequeue.share_partitions sp join sharequeue.group_settings s using (group_id)
    where sp.share_partition_id = p_share_partition_id;
    delete from sharequeue.leases where lease_id = p_lease_id returning fan_out into v_lease;
    for v_counts in
        -- By delivery count: suspects are divided by how many they are, over all batches of the lease.
        select f.delivery_count,
            sum(sharequeue.records(sharequeue.offsets_of(f.first_offset, f.last_offset, f.offsets)))::bigint as records,
            sum(sharequeue.records(sharequeue.offsets_of(f.first_offset, f.last_offset, f.offsets)
                * int8multirange(int8range(v_sp.spso, null))))::bigint as live,
            sum(sum(sharequeue.records(sharequeue.offsets_of(f.first_offset, f.last_offset, f.offsets))))
                over ()::bigint as together
        from sharequeue.in_flight_batches f where f.lease_id = p_lease_id
        group by f.delivery_count order by f.delivery_count
    loop
        held := held + v_counts.records;
        v_state := 0;
        v_cause := null;
        v_isolate := null;
        if v_counts.delivery_count < v_sp.delivery_count_limit then
            v_isolate := case when v_lease.fan_out then greatest(1, ceil(v_counts.live / ceil(power(greatest(v_counts.live, 1)::numeric,
                1.0 / (v_sp.delivery_count_limit - v_counts.delivery_count)) - 1e-9))::bigint) end;
        elsif v_lease.fan_out and v_counts.together > 1 then
            v_isolate := 1;
        else
            v_cause := 'exceeded';
            v_state := case when v_sp.dead_letters then 3 else 4 end;
        end if;
        for v_part in
            select first_offset, last_offset, part, offsets
            from sharequeue.in_flight_batches
            where lease_id = p_lease_id and delivery_count = v_counts.delivery_count
            order by first_offset
        loop
            -- What the log start has overtaken is gone, whatever its count (R-LT-3).
            v_offsets := sharequeue.offsets_of(v_part.first_offset, v_part.last_offset, v_part.offsets);
            if lower(v_offsets) < v_sp.spso then
                v_offsets := v_offsets * int8multirange(int8range(v_sp.spso, null));
            end if;
            if v_part.offsets is null and lower(v_offsets) = v_part.first_offset then
                update sharequeue.in_flight_batches
                set state = v_state, lease_id = null, cause = v_cause, isolate = v_isolate
                where share_partition_id = p_share_partition_id and first_offset = v_part.first_offset;
            else
                delete from sharequeue.in_flight_batches
                where share_partition_id = p_share_partition_id and first_offset = v_part.first_offset
                    and part = v_part.part;
                perform sharequeue.place(p_share_partition_id, v_part.first_offset, v_part.last_offset, v_state,
                    v_counts.delivery_count, v_offsets, null, v_cause, v_isolate);
            end if;
            if v_state = 4 then
                perform sharequeue.join_terminal(p_share_partition_id, v_part.first_offset);
            end if;
        end loop;
        if v_state = 0 then
            v_more := v_more or v_counts.live > 0;
        elsif v_state = 4 then
            completed := completed + v_counts.live;
            perform sharequeue.count_outcome(
                p_share_partition_id, 'exceeded', v_counts.delivery_count, v_counts.live);
        end if;
    end loop;
    if v_more then
        update sharequeue.share_partitions set redeliverable = true
        where share_partition_id = p_share_partition_id and not redeliverable;
    end if;
end
$$;

-- Lapsed locks are settled by every operation before it looks at anything else: a lapse is a fact of the clock. Oldest
-- first, at most p_limit leases; SPSO follows.
create or replace function sharequeue.settle_lapsed(
    p_share_partition_id bigint, p_at timestamptz, p_limit bigint default null, out leases bigint, out records bigint
)
language plpgsql volatile as $$
declare
    v_lease_id bigint;
    v_ended record;
    v_completed bigint := 0;
begin
    leases := 0;
    records := 0;
    for v_lease_id in
        select l.lease_id from sharequeue.leases l
        where l.share_partition_id = p_share_partition_id and l.expires_at <= p_at
        order by l.share_partition_id, l.expires_at limit p_limit
    loop
        select e.held, e.completed into v_ended from sharequeue.end_unanswered(p_share_partition_id, v_lease_id) as e;
        leases := leases + 1;
        records := records + v_ended.held;
        v_completed := v_completed + v_ended.completed;
    end loop;
    if leases > 0 then
        perform sharequeue.advance_spso(p_share_partition_id, v_completed);
    end if;
    perform sharequeue.renew_next_expiry(p_share_partition_id);
end
$$;

-- The earliest expiry anew, once the known lower bound has passed.
create or replace function sharequeue.renew_next_expiry(p_share_partition_id bigint) returns void
language sql volatile as $$
    update sharequeue.share_partitions set next_expiry = (
        select l.expires_at from sharequeue.leases l where l.share_partition_id = p_share_partition_id
        order by l.share_partition_id, l.expires_at limit 1)
    where share_partition_id = p_share_partition_id
$$;
