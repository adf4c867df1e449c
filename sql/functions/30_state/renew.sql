-- Renews the lock of all records of a lease, for the full duration from now (KIP-1222, R-RN-1).
create or replace function sharequeue.renew(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, out error_code smallint, out error_message text, out expires_at timestamptz
)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_found record;
    v_at timestamptz;
begin
    select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    error_code := v_found.error_code;
    error_message := v_found.error_message;
    if error_code = 0 then
        select m.error_code, m.error_message into error_code, error_message
        from sharequeue_internal.check_member(p_group_id, p_member_id, p_member_epoch) as m;
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
        perform sharequeue_internal.settle_lapsed((v_found.sp).share_partition_id, v_at);
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
        error_message := 'the lease is no longer held: its lock lapsed, or all its records were acknowledged';
    end if;
    -- The new expiry may be earlier than the previous one: the group's lock duration may have become shorter.
    update sharequeue.share_partitions sp set next_expiry = renew.expires_at
    where sp.share_partition_id = (v_found.sp).share_partition_id and sp.next_expiry > renew.expires_at;
end
$$;
