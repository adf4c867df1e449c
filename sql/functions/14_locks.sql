-- Acquisition locks after they were taken: renewed, released unanswered, swept, extended after an outage.

-- A full lock duration from now for everything under the lease (KIP-1222, R-RN-1).
create or replace function sharequeue.renew(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, out error_code smallint, out error_message text, out expires_at timestamptz
)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_found record;
    v_at timestamptz;
begin
    select * into v_found from sharequeue.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    error_code := v_found.error_code;
    error_message := v_found.error_message;
    if error_code = 0 then
        select m.error_code, m.error_message into error_code, error_message
        from sharequeue.check_member(p_group_id, p_member_id, p_member_epoch) as m;
    end if;
    if error_code = 0 and not (v_found.settings).renew_enabled then
        error_code := 121;
        error_message := 'Renewing acquisition locks is not enabled for the group.';
    end if;
    if error_code <> 0 then
        return;
    end if;
    v_at := sharequeue.clock();
    if (v_found.sp).next_expiry <= v_at then
        perform sharequeue.settle_lapsed((v_found.sp).share_partition_id, v_at);
    end if;
    with renewed as (
        update sharequeue.leases l
        set expires_at = v_at + interval '1 millisecond'
            * case when l.own_lock_duration then l.lock_duration_ms else (v_found.settings).lock_duration_ms end
        where l.token = p_token and l.share_partition_id = (v_found.sp).share_partition_id
            and l.member_id = p_member_id
        returning l.expires_at
    )
    select min(r.expires_at) into expires_at from renewed as r;
    if expires_at is null then
        error_code := 121;
        error_message := 'the lease is no longer held: its lock lapsed, or all of it was answered';
    end if;
    -- Sooner than before, where the group's lock duration has become shorter since.
    update sharequeue.share_partitions sp set next_expiry = renew.expires_at
    where sp.share_partition_id = (v_found.sp).share_partition_id and sp.next_expiry > renew.expires_at;
end
$$;

-- Gives back, without an answer, what a member holds in a group; or what one of its leases holds. Counts stay (R-RL-6),
-- unless a person or the scheduler cancelled the run (p_cancelled) and the group refunds that; and cancelled records are
-- no suspects. p_refund gives the delivery back whatever the group says: no record was at fault.
create or replace function sharequeue.release(
    p_group_id text, p_member_id text, p_token uuid default null, p_cancelled boolean default false,
    p_refund boolean default false
) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_id bigint;
    v_released bigint := 0;
begin
    perform sharequeue.authorise(p_group_id, 'READ');
    perform sharequeue.check_present('the group id', p_group_id), sharequeue.check_present('the member id', p_member_id),
        sharequeue.check_present('whether the run was cancelled', p_cancelled),
        sharequeue.check_present('whether deliveries are given back', p_refund);
    for v_id in
        -- Not exists: that was made a hash of all leases of all groups.
        select share_partition_id from sharequeue.share_partitions
        where group_id = p_group_id and next_expiry is not null and ((
            select true from sharequeue.leases l where l.share_partition_id = share_partitions.share_partition_id
                and l.member_id = p_member_id and (p_token is null or l.token = p_token) limit 1)
            or (folded_member_id = p_member_id and (p_token is null or folded_token = p_token)))
        order by share_partition_id
        for no key update
    loop
        v_released := v_released + sharequeue.release_of(v_id, p_member_id, p_token, p_cancelled, p_refund);
    end loop;
    return v_released;
end
$$;

-- The same for one share-partition, whose row is locked.
create or replace function sharequeue.release_of(
    p_share_partition_id bigint, p_member_id text, p_token uuid, p_cancelled boolean, p_refund boolean
) returns bigint
language plpgsql volatile as $$
declare
    v_lease_id bigint;
    v_ended record;
    v_completed bigint := 0;
    v_released bigint := 0;
begin
    perform sharequeue.unfold(p_share_partition_id);
    for v_lease_id in
        select l.lease_id from sharequeue.leases l
        where l.share_partition_id = p_share_partition_id and l.member_id = p_member_id
            and (p_token is null or l.token = p_token)
        order by l.lease_id
    loop
        if p_cancelled or p_refund then
            select e.held, e.completed into v_ended
            from sharequeue.end_cancelled(p_share_partition_id, v_lease_id, p_refund) as e;
        else
            select e.held, e.completed into v_ended from sharequeue.end_unanswered(p_share_partition_id, v_lease_id) as e;
        end if;
        v_released := v_released + v_ended.held;
        v_completed := v_completed + v_ended.completed;
    end loop;
    perform sharequeue.advance_spso(p_share_partition_id, v_completed);
    return v_released;
end
$$;

-- Ends the lease of a cancelled run. With refunds its records come back as if it had not been; without, they have lost a
-- delivery, but the last one: nothing becomes a dead letter because a person stopped a run.
create or replace function sharequeue.end_cancelled(
    p_share_partition_id bigint, p_lease_id bigint, p_refund boolean, out held bigint, out completed bigint
)
language plpgsql volatile as $$
declare
    v_sp record;
    v_refund boolean;
    v_part record;
begin
    held := 0;
    completed := 0;
    select sp.spso, s.delivery_count_limit, s.dead_letters, s.refund_cancelled into v_sp
    from sharequeue.share_partitions sp join sharequeue.group_settings s using (group_id)
    where sp.share_partition_id = p_share_partition_id;
    v_refund := p_refund or v_sp.refund_cancelled;
    if v_sp.dead_letters and not v_refund then
        perform sharequeue.note_attempts(p_share_partition_id, array[p_lease_id]);
    end if;
    delete from sharequeue.leases where lease_id = p_lease_id;
    for v_part in
        select first_offset, last_offset, part, delivery_count,
            sharequeue.offsets_of(first_offset, last_offset, offsets) as offsets
        from sharequeue.in_flight_batches where lease_id = p_lease_id order by first_offset, part
    loop
        held := held + sharequeue.records(v_part.offsets);
        perform sharequeue.take(p_share_partition_id, v_part.first_offset, v_part.part, v_part.offsets);
        perform sharequeue.place(p_share_partition_id, v_part.first_offset, v_part.last_offset, 0::smallint,
            least(v_part.delivery_count - v_refund::integer, v_sp.delivery_count_limit - 1)::smallint,
            v_part.offsets * int8multirange(int8range(v_sp.spso, null)));
    end loop;
    update sharequeue.share_partitions set redeliverable = true
    where share_partition_id = p_share_partition_id and not redeliverable and held > completed;
end
$$;

-- Settles lapsed locks of share-partitions that nobody touches, oldest lapse first, at most p_limit leases a call, leaving
-- alone share-partitions another call is at work on (that call settles them itself). Also forgets answers older than an
-- hour, ten thousand a call.
create or replace function sharequeue.sweep(p_limit integer, out leases bigint, out records bigint)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_at timestamptz := sharequeue.clock();
    v_id bigint;
    v_settled record;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue.check_between('the limit of leases', p_limit, 1, 2147483647);
    leases := 0;
    records := 0;
    for v_id in
        select sp.share_partition_id from sharequeue.share_partitions sp
        where sp.next_expiry <= v_at order by sp.next_expiry limit p_limit
    loop
        exit when leases >= p_limit;
        perform from sharequeue.share_partitions where share_partition_id = v_id for no key update skip locked;
        continue when not found;
        select s.leases, s.records into v_settled
        from sharequeue.settle_lapsed(v_id, v_at, p_limit - leases) as s;
        leases := leases + v_settled.leases;
        records := records + v_settled.records;
    end loop;
    -- By address: by request id it read the whole table each time.
    delete from sharequeue.requests where ctid = any (array(
        select r.ctid from sharequeue.requests r where r.answered_at < v_at - interval '1 hour'
        order by r.answered_at limit 10000));
end
$$;
