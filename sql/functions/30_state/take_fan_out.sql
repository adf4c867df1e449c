-- Leases records that were delivered before, under fan_out, for batch members. Suspects come in a lease of their own, in parts
-- of bounded size. Otherwise these are the records that an acknowledgement has released. Returns how many fresh records may
-- come with them: none in a lease of suspects.
create or replace function sharequeue_internal.take_fan_out(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_max_records bigint, p_lease_id bigint,
    p_at timestamptz, p_leave_out int8multirange
) returns bigint
language plpgsql volatile as $$
declare
    v_id bigint := p_sp.share_partition_id;
    v_leave_out int8multirange := sharequeue_internal.left_out(p_sp, p_settings, p_leave_out);
    v_head record;
    v_first bigint;
    v_part record;
    v_offsets int8multirange;
    v_budget bigint := p_max_records;
begin
    if not p_sp.redeliverable then
        return v_budget;
    end if;
    select * into v_head from sharequeue_internal.next_part(v_id, p_at, v_leave_out);
    v_first := v_head.first_offset;
    if v_first is null then
        perform sharequeue_internal.clear_redeliverable(v_id);
    elsif v_head.isolate is not null then
        -- The last attempt is leased alone, also if the limit was lowered after the part was made.
        v_budget := least(v_budget, case when v_head.delivery_count >= p_settings.delivery_count_limit - 1 then 1
            else v_head.isolate end);
    end if;
    while v_first is not null and v_budget > 0 loop
        select sharequeue_internal.first_records(
            range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets) - v_leave_out), v_budget)
        into v_offsets
        from sharequeue.in_flight_batches
        where share_partition_id = v_id and first_offset = v_first and state = 0
            and (not_before is null or not_before <= p_at) and isolate is not distinct from v_head.isolate
            and (isolate is null or delivery_count = v_head.delivery_count);
        for v_part in
            select f.part, f.last_offset, sharequeue_internal.next_delivery(
                    f.delivery_count, v_head.isolate, p_settings.delivery_count_limit) as delivery_count,
                sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) * v_offsets as taken
            from sharequeue.in_flight_batches f
            where f.share_partition_id = v_id and f.first_offset = v_first and f.state = 0
                and (f.not_before is null or f.not_before <= p_at) and f.isolate is not distinct from v_head.isolate
                and (f.isolate is null or f.delivery_count = v_head.delivery_count)
                and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) && v_offsets
        loop
            perform sharequeue_internal.put_into_lease(v_id, v_first, v_part.last_offset, v_part.part, v_part.taken,
                v_part.delivery_count, p_lease_id);
        end loop;
        v_budget := v_budget - sharequeue.records(coalesce(v_offsets, '{}'));
        v_first := sharequeue_internal.next_available(v_id, v_first + 1, p_at, v_leave_out);
    end loop;
    return case when v_head.isolate is null then v_budget else 0 end;
end
$$;

-- Returns the offsets that are not redelivered now: those that the caller leaves out, and those past the readable end. After a
-- change to read_committed a reader would not see the records of an open transaction, and would take them for gaps.
create or replace function sharequeue_internal.left_out(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_leave_out int8multirange
) returns int8multirange
language sql immutable parallel safe as $$
    select case when sharequeue_internal.read_end(p_sp, p_settings) < p_sp.speo
        then p_leave_out + int8multirange(int8range(sharequeue_internal.read_end(p_sp, p_settings), null)) else p_leave_out end
$$;

-- Returns the part that has the lowest offset to be delivered now: offsets that are left out do not decide the kind of a lease.
create or replace function sharequeue_internal.next_part(
    p_share_partition_id bigint, p_at timestamptz, p_leave_out int8multirange,
    out first_offset bigint, out isolate bigint, out delivery_count smallint
)
language plpgsql stable as $$
begin
    first_offset := sharequeue_internal.next_available(p_share_partition_id, 0, p_at, p_leave_out);
    select f.isolate, f.delivery_count into isolate, delivery_count
    from sharequeue.in_flight_batches f
    where f.share_partition_id = p_share_partition_id and f.first_offset = next_part.first_offset and f.state = 0
        and (f.not_before is null or f.not_before <= p_at)
        and not sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) <@ p_leave_out
    order by lower(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) - p_leave_out) limit 1;
end
$$;

-- Returns what would be leased next under fan_out: whether these are suspects, and whether it is their last attempt. A lease for
-- a last attempt has one record, and a worker that dies on it must hold nothing else.
create or replace function sharequeue_internal.next_suspects(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_at timestamptz, p_leave_out int8multirange,
    out suspects boolean, out last_attempt boolean
)
language plpgsql stable as $$
declare
    v_next record;
begin
    suspects := false;
    last_attempt := false;
    if p_sp.redeliverable then
        select * into v_next from sharequeue_internal.next_part(
            p_sp.share_partition_id, p_at, sharequeue_internal.left_out(p_sp, p_settings, p_leave_out));
        suspects := v_next.isolate is not null;
        last_attempt := suspects and v_next.delivery_count >= p_settings.delivery_count_limit - 1;
    end if;
end
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

-- Returns the first batch from an offset on that has records to deliver now, without those to be left out.
create or replace function sharequeue_internal.next_available(
    p_share_partition_id bigint, p_from bigint, p_at timestamptz, p_leave_out int8multirange default '{}'
) returns bigint
language sql stable as $$
    select first_offset from sharequeue.in_flight_batches
    where share_partition_id = p_share_partition_id and state = 0 and first_offset >= p_from
        and (not_before is null or not_before <= p_at)
        and (isempty(p_leave_out) or not sharequeue_internal.offsets_of(first_offset, last_offset, offsets) <@ p_leave_out)
    order by share_partition_id, state, first_offset limit 1
$$;

-- Records that nothing can be redelivered, unless something can later.
create or replace function sharequeue_internal.clear_redeliverable(p_share_partition_id bigint) returns void
language sql volatile as $$
    update sharequeue.share_partitions set redeliverable = false
    where share_partition_id = p_share_partition_id and not exists (
        select from sharequeue.in_flight_batches where share_partition_id = p_share_partition_id and state = 0)
$$;
