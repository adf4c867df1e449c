-- Releases the records that a member holds in a group, or under one of its leases, without an acknowledgement. Delivery counts
-- stay (R-RL-6). p_cancelled: a person or the scheduler cancelled the run. Its records are not suspects, and get their delivery
-- back if the group is configured so. p_refund: no record was the cause; all get their delivery back.
create or replace function sharequeue.release(
    p_group_id text, p_member_id text, p_token uuid default null, p_cancelled boolean default false,
    p_refund boolean default false
) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the member id', p_member_id),
        sharequeue_internal.check_present('p_cancelled', p_cancelled),
        sharequeue_internal.check_present('p_refund', p_refund);
    return sharequeue_internal.release_held(p_group_id, array[p_member_id], p_token, p_cancelled, p_refund);
end
$$;

-- The same for several members at once: one share-partition after the other, in the order of the ids, with all of its holders.
-- One member after the other would return to the first share-partition while the last one is locked.
create or replace function sharequeue_internal.release_held(
    p_group_id text, p_member_ids text[], p_token uuid default null, p_cancelled boolean default false,
    p_refund boolean default false, p_reason text default null
) returns bigint
language plpgsql volatile as $$
declare
    v_id bigint;
    v_member_id text;
    v_released bigint := 0;
begin
    for v_id in
        -- Read without a lock. Not with exists: the planner would make a hash of all leases of all groups.
        select share_partition_id from sharequeue.share_partitions
        where group_id = p_group_id and next_expiry is not null and (
            select true from sharequeue.leases l where l.share_partition_id = share_partitions.share_partition_id
                and l.member_id = any (p_member_ids) and (p_token is null or l.token = p_token) limit 1)
        order by share_partition_id
    loop
        perform from sharequeue.share_partitions where share_partition_id = v_id for no key update;
        continue when not found;
        foreach v_member_id in array p_member_ids loop
            v_released := v_released + sharequeue_internal.release_of(
                v_id, v_member_id, p_token, p_cancelled, p_refund, false, p_reason);
        end loop;
    end loop;
    return v_released;
end
$$;

-- The same for one share-partition, whose row is locked. p_suspects: the records that return after a cancelled run or with a
-- refund were suspects when they were leased. They are suspects again, in parts of the same size. p_reason: as in end_leases.
create or replace function sharequeue_internal.release_of(
    p_share_partition_id bigint, p_member_id text, p_token uuid, p_cancelled boolean, p_refund boolean,
    p_suspects boolean, p_reason text
) returns bigint
language plpgsql volatile as $$
declare
    v_lease_id bigint;
    v_ended record;
    v_completed bigint := 0;
    v_released bigint := 0;
begin
    for v_lease_id in
        select l.lease_id from sharequeue.leases l
        where l.share_partition_id = p_share_partition_id and l.member_id = p_member_id
            and (p_token is null or l.token = p_token)
        order by l.lease_id
    loop
        if p_cancelled or p_refund then
            select e.held, e.completed into v_ended
            from sharequeue_internal.end_cancelled(p_share_partition_id, v_lease_id, p_refund, p_suspects) as e;
        else
            select e.held, e.completed into v_ended
            from sharequeue_internal.end_unacknowledged(p_share_partition_id, v_lease_id, p_reason) as e;
        end if;
        v_released := v_released + v_ended.held;
        v_completed := v_completed + v_ended.completed;
    end loop;
    perform sharequeue_internal.advance_spso(p_share_partition_id, v_completed);
    return v_released;
end
$$;

-- Ends the lease of a cancelled run. With refunds its records return as if it had not been leased. Otherwise they lose a
-- delivery, except the last one: no record becomes a dead letter because a person stopped a run. No record becomes a suspect;
-- suspects stay suspects (p_suspects).
create or replace function sharequeue_internal.end_cancelled(
    p_share_partition_id bigint, p_lease_id bigint, p_refund boolean, p_suspects boolean, out held bigint, out completed bigint
)
language plpgsql volatile as $$
declare
    v_sp record;
    v_refund boolean;
    v_part record;
    v_isolate bigint;
begin
    held := 0;
    completed := 0;
    select sp.spso, s.delivery_count_limit, s.dead_letters, s.refund_cancelled into v_sp
    from sharequeue.share_partitions sp join sharequeue.group_settings s using (group_id)
    where sp.share_partition_id = p_share_partition_id;
    v_refund := p_refund or v_sp.refund_cancelled;
    if v_sp.dead_letters and not v_refund then
        perform sharequeue_internal.note_attempts(p_share_partition_id, array[p_lease_id]);
    end if;
    if p_suspects then
        select sum(sharequeue.records(sharequeue_internal.offsets_of(first_offset, last_offset, offsets))) into v_isolate
        from sharequeue.in_flight_batches where lease_id = p_lease_id;
    end if;
    delete from sharequeue.leases where lease_id = p_lease_id;
    for v_part in
        select first_offset, last_offset, part, delivery_count,
            sharequeue_internal.offsets_of(first_offset, last_offset, offsets) as offsets
        from sharequeue.in_flight_batches where lease_id = p_lease_id order by first_offset, part
    loop
        held := held + sharequeue.records(v_part.offsets);
        perform sharequeue_internal.take(p_share_partition_id, v_part.first_offset, v_part.part, v_part.offsets);
        perform sharequeue_internal.place(p_share_partition_id, v_part.first_offset, v_part.last_offset, 0::smallint,
            least(v_part.delivery_count - v_refund::integer, v_sp.delivery_count_limit - 1)::smallint,
            v_part.offsets * int8multirange(int8range(v_sp.spso, null)), p_isolate => v_isolate);
    end loop;
    update sharequeue.share_partitions set redeliverable = true
    where share_partition_id = p_share_partition_id and not redeliverable and held > completed;
    perform sharequeue_internal.lose_keys(p_share_partition_id, sharequeue.clock());
end
$$;
