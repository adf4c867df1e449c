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
end
$$;

-- Gives back, without an answer, what a member holds in a group; or what one of its leases holds. Counts stay (R-RL-6).
create or replace function sharequeue.release(p_group_id text, p_member_id text, p_token uuid default null)
returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_id bigint;
    v_lease_id bigint;
    v_ended record;
    v_completed bigint;
    v_released bigint := 0;
begin
    for v_id in
        select share_partition_id from sharequeue.share_partitions
        where group_id = p_group_id and next_expiry is not null and exists (
            select from sharequeue.leases l where l.share_partition_id = share_partitions.share_partition_id
                and l.member_id = p_member_id and (p_token is null or l.token = p_token))
        order by share_partition_id
        for no key update
    loop
        v_completed := 0;
        for v_lease_id in
            select l.lease_id from sharequeue.leases l
            where l.share_partition_id = v_id and l.member_id = p_member_id and (p_token is null or l.token = p_token)
            order by l.lease_id
        loop
            select e.held, e.completed into v_ended from sharequeue.end_unanswered(v_id, v_lease_id) as e;
            v_released := v_released + v_ended.held;
            v_completed := v_completed + v_ended.completed;
        end loop;
        perform sharequeue.advance_spso(v_id, v_completed);
    end loop;
    return v_released;
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
    delete from sharequeue.requests where request_id in (
        select r.request_id from sharequeue.requests r where r.answered_at < v_at - interval '1 hour'
        order by r.answered_at limit 10000);
end
$$;

-- After an outage of the database: every lock gets so much longer, before anything may treat one as lapsed.
create or replace function sharequeue.extend_locks(p_amount interval) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_extended bigint;
begin
    perform from sharequeue.share_partitions where next_expiry is not null
    order by share_partition_id for no key update;
    update sharequeue.leases set expires_at = expires_at + p_amount;
    get diagnostics v_extended = row_count;
    update sharequeue.share_partitions set next_expiry = next_expiry + p_amount where next_expiry is not null;
    return v_extended;
end
$$;
