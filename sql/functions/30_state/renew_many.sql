-- Renews the locks of all records of leases of one member, for the full duration from now (KIP-1222, R-RN-1).
create or replace function sharequeue.renew_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_state_epochs integer[], p_member_id text,
    p_member_epoch integer, p_tokens uuid[]
) returns setof sharequeue.renewed_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_sps sharequeue.share_partitions[];
    v_sp sharequeue.share_partitions;
    v_settings sharequeue.group_settings;
    v_member record;
    v_fault record;
    v_at timestamptz;
    v_expires_at timestamptz;
begin
    v_sps := sharequeue_internal.lock_share_partitions(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_state_epochs), 0), coalesce(cardinality(p_tokens), 0));
    select * into v_settings from sharequeue.group_settings where group_id = p_group_id;
    v_member := sharequeue_internal.check_member(p_group_id, p_member_id, p_member_epoch);
    v_at := sharequeue.clock();
    for v_place in 1 .. cardinality(p_topics) loop
        v_sp := v_sps[v_place];
        v_expires_at := null;
        select * into v_fault from sharequeue_internal.share_partition_fault(
            v_sp, v_settings, p_group_id, p_topics[v_place], p_partitions[v_place], p_state_epochs[v_place], 'READ');
        if v_fault.error_code = 0 then
            v_fault := v_member;
        end if;
        if v_fault.error_code = 0 and not v_settings.renew_enabled then
            select 121::smallint as error_code, 'Renewing acquisition locks is not enabled for the group.' as error_message into v_fault;
        elsif v_fault.error_code = 0 then
            v_sp := sharequeue_internal.settled(v_sp, v_at);
            with renewed as (
                update sharequeue.leases l
                set locked_at = v_at, expires_at = v_at + interval '1 millisecond'
                    * case when l.own_lock_duration then l.lock_duration_ms else v_settings.lock_duration_ms end
                where l.token = p_tokens[v_place] and l.share_partition_id = v_sp.share_partition_id
                    and l.member_id = p_member_id
                returning l.expires_at
            )
            select min(r.expires_at) into v_expires_at from renewed as r;
            if v_expires_at is null then
                select 121::smallint as error_code, 'the lease is no longer held: its lock lapsed, or all its records were acknowledged' as error_message
                into v_fault;
            end if;
            -- The new expiry may be earlier than the previous one: the group's lock duration may have become shorter.
            update sharequeue.share_partitions sp set next_expiry = v_expires_at
            where sp.share_partition_id = v_sp.share_partition_id and sp.next_expiry > v_expires_at;
        end if;
        return next row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place], v_fault.error_code, v_fault.error_message,
            v_expires_at)::sharequeue.renewed_of;
    end loop;
end
$$;
