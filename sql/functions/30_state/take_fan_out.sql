-- Leases records under fan_out, for batch members. Suspects come in a lease of their own, in parts of
-- bounded size. Then come the records that an acknowledgement has released, together, and then fresh records. Fresh records are
-- limited to share.partition.max.record.locks between SPSO and SPEO; redelivery inside that window is not limited.
create or replace function sharequeue_internal.take_fan_out(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_max_records bigint, p_read_end bigint,
    p_lease_id bigint, p_at timestamptz, p_leave_out int8multirange
) returns sharequeue.taken
language plpgsql volatile as $$
declare
    v_id bigint := p_sp.share_partition_id;
    v_head record;
    v_first bigint;
    v_part record;
    v_offsets int8multirange;
    v_budget bigint := p_max_records;
    v_count smallint;
    v_fresh_to bigint;
    v_taken sharequeue.taken;
    -- Records past the readable end are not redelivered. After a change to read_committed a reader would not see the records
    -- of an open transaction, and would take them for gaps.
    v_leave_out int8multirange := case when p_read_end < p_sp.speo
        then p_leave_out + int8multirange(int8range(p_read_end, null)) else p_leave_out end;
begin
    if p_sp.redeliverable then
        v_first := sharequeue_internal.next_available(v_id, 0, p_at, v_leave_out);
        select f.isolate, f.delivery_count into v_head
        from sharequeue.in_flight_batches f
        where f.share_partition_id = v_id and f.first_offset = v_first and f.state = 0
            and (f.not_before is null or f.not_before <= p_at)
            and not sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) <@ v_leave_out
        -- The lowest offset that may be delivered: offsets that are left out do not decide the kind of the lease.
        order by lower(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) - v_leave_out) limit 1;
        if v_first is null then
            update sharequeue.share_partitions set redeliverable = false
            where share_partition_id = v_id and not exists (
                select from sharequeue.in_flight_batches where share_partition_id = v_id and state = 0);
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
                select f.part, f.last_offset, f.delivery_count, f.offsets,
                    sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) * v_offsets as taken
                from sharequeue.in_flight_batches f
                where f.share_partition_id = v_id and f.first_offset = v_first and f.state = 0
                    and (f.not_before is null or f.not_before <= p_at) and f.isolate is not distinct from v_head.isolate
                    and (f.isolate is null or f.delivery_count = v_head.delivery_count)
                    and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) && v_offsets
            loop
                v_count := sharequeue_internal.next_delivery(
                    v_part.delivery_count, v_head.isolate, p_settings.delivery_count_limit);
                if v_part.offsets is null
                        and v_part.taken = int8multirange(int8range(v_first, v_part.last_offset + 1)) then
                    update sharequeue.in_flight_batches
                    set state = 1, delivery_count = v_count, lease_id = p_lease_id, isolate = null, not_before = null
                    where share_partition_id = v_id and first_offset = v_first;
                else
                    perform sharequeue_internal.take(v_id, v_first, v_part.part, v_part.taken);
                    perform sharequeue_internal.place(v_id, v_first, v_part.last_offset, 1::smallint, v_count, v_part.taken,
                        p_lease_id);
                end if;
            end loop;
            v_budget := v_budget - sharequeue.records(coalesce(v_offsets, '{}'));
            v_first := sharequeue_internal.next_available(v_id, v_first + 1, p_at, v_leave_out);
        end loop;
        if v_head.isolate is not null then
            v_budget := 0;
        end if;
    end if;
    -- Numbers of records are compared, not offsets: near 2^63 a sum would overflow.
    v_fresh_to := p_sp.speo + least(p_read_end - p_sp.speo, v_budget,
        p_settings.max_record_locks - sharequeue_internal.in_flight_span(p_sp, p_at));
    if v_fresh_to > p_sp.speo then
        insert into sharequeue.in_flight_batches
            (share_partition_id, first_offset, last_offset, state, delivery_count, lease_id)
        values (v_id, p_sp.speo, v_fresh_to - 1, 1, 1, p_lease_id);
        update sharequeue.share_partitions set speo = v_fresh_to
        where share_partition_id = v_id;
    end if;
    select array_agg(t.delivery_count order by t.delivery_count), array_agg(t.offsets order by t.delivery_count)
    into v_taken.delivery_counts, v_taken.offsets
    from (
        select delivery_count, range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)) as offsets
        from sharequeue.in_flight_batches where lease_id = p_lease_id group by delivery_count
    ) as t;
    return v_taken;
end
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
