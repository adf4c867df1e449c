-- Acquisition locks after they were taken: renewed, released unanswered, swept.

-- A full lock duration from now for everything under the lease (KIP-1222, R-RN-1).
create or replace function sharequeue.renew(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, out error_code smallint, out error_message text, out expires_at timestamptz
)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_found record;
    v_sp sharequeue.share_partitions;
begin
    select * into v_found from sharequeue.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    error_code := v_found.error_code;
    error_message := v_found.error_message;
    v_sp := v_found.share_partition;
    if error_code = 0 then
        select m.error_code, m.error_message into error_code, error_message
        from sharequeue.check_member(p_group_id, p_member_id, p_member_epoch) as m;
    end if;
    if error_code = 0 and sharequeue.group_config(p_group_id, 'share.renew.acknowledge.enable') = 'false' then
        error_code := 121;
        error_message := 'Renewing acquisition locks is not enabled for the group.';
    end if;
    if error_code <> 0 then
        return;
    end if;
    perform sharequeue.settle_lapsed(v_sp.share_partition_id, sharequeue.clock());
    update sharequeue.leases l
    set expires_at = sharequeue.clock() + l.lock_duration_ms * interval '1 millisecond'
    where l.token = p_token and l.share_partition_id = v_sp.share_partition_id and l.member_id = p_member_id
    returning l.expires_at into expires_at;
    if not found then
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
    v_share_partition_id bigint;
    v_released bigint := 0;
begin
    for v_share_partition_id in
        select share_partition_id from sharequeue.share_partitions
        where group_id = p_group_id and share_partition_id in (
            select l.share_partition_id from sharequeue.leases l
            where l.member_id = p_member_id and (p_token is null or l.token = p_token))
        order by share_partition_id
        for update
    loop
        v_released := v_released + coalesce((
            select sum(sharequeue.end_unanswered(l.lease_id)) from sharequeue.leases l
            where l.share_partition_id = v_share_partition_id and l.member_id = p_member_id
                and (p_token is null or l.token = p_token)), 0);
        perform sharequeue.advance_spso(v_share_partition_id);
    end loop;
    return v_released;
end
$$;

-- Settles lapsed locks of share-partitions that nobody touches, oldest lapse first; at most p_limit share-partitions
-- a call, leaving alone those another call is at work on. Also forgets answers older than an hour.
create or replace function sharequeue.sweep(p_limit integer, out leases bigint, out records bigint)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_at timestamptz := sharequeue.clock();
    v_share_partition_id bigint;
    v_settled record;
begin
    leases := 0;
    records := 0;
    for v_share_partition_id in
        select sp.share_partition_id from sharequeue.share_partitions sp
        where sp.share_partition_id in (
            select l.share_partition_id from sharequeue.leases l where l.expires_at <= v_at
            order by l.expires_at limit p_limit)
        order by sp.share_partition_id
        for update skip locked
    loop
        select s.leases, s.records into v_settled from sharequeue.settle_lapsed(v_share_partition_id, v_at) as s;
        leases := leases + v_settled.leases;
        records := records + v_settled.records;
        perform sharequeue.advance_spso(v_share_partition_id);
    end loop;
    delete from sharequeue.requests where answered_at < v_at - interval '1 hour';
end
$$;
