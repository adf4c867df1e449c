-- acknowledge_and_acquire with all that a ShareFetch may carry: acknowledge_batches, then acquire, in one commit.
create or replace function sharequeue.acknowledge_and_fetch(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[],
    p_max_records bigint, p_lock_duration_ms integer default null, p_redelivery text default 'kafka',
    p_mode text default 'batch_optimized', p_batch_size bigint default null, p_log_firsts bigint[] default null,
    p_log_lasts bigint[] default null, p_aborted int8multirange default '{}', p_renew_allowed boolean default false,
    p_not_before timestamptz default null
) returns setof sharequeue.acknowledged_and_acquired
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_acknowledged sharequeue.acknowledged;
    v_acquired sharequeue.acquired;
    v_row sharequeue.acknowledged_and_acquired;
    v_rows integer := 0;
    v_result jsonb := '[]';
    v_found record;
    v_key uuid;
    v_stored jsonb;
begin
    if p_request_id is not null then
        select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
        v_key := sharequeue_internal.request_key(
            (v_found.sp).share_partition_id, 'acknowledge_and_acquire', p_member_id, p_request_id);
        v_stored := sharequeue_internal.stored_result(v_key);
        if v_found.error_code <> 30 and v_stored is not null then
            return query select * from jsonb_populate_recordset(null::sharequeue.acknowledged_and_acquired, v_stored);
            return;
        end if;
    end if;
    v_acknowledged := sharequeue.acknowledge_batches(p_group_id, p_topic, p_partition, p_state_epoch, p_member_id,
        p_member_epoch, p_token, null, p_firsts, p_lasts, p_types, p_type_counts, p_renew_allowed, p_not_before);
    v_row.acknowledge_error_code := (v_acknowledged).error_code;
    v_row.acknowledge_error_message := (v_acknowledged).error_message;
    v_row.spso := (v_acknowledged).spso;
    v_row.lag := (v_acknowledged).lag;
    for v_acquired in
        select * from sharequeue.acquire(p_group_id, p_topic, p_partition, p_state_epoch, p_member_id, p_member_epoch,
            p_max_records, p_lock_duration_ms, null, p_redelivery, p_mode, p_batch_size, p_log_firsts, p_log_lasts,
            p_aborted)
        where not p_renew_allowed
    loop
        v_rows := v_rows + 1;
        v_row.error_code := (v_acquired).error_code;
        v_row.error_message := (v_acquired).error_message;
        v_row.lease_id := (v_acquired).lease_id;
        v_row.token := (v_acquired).token;
        v_row.state_epoch := (v_acquired).state_epoch;
        v_row.lock_duration_ms := (v_acquired).lock_duration_ms;
        v_row.expires_at := (v_acquired).expires_at;
        v_row.delivery_count := (v_acquired).delivery_count;
        v_row.offsets := (v_acquired).offsets;
        v_row.isolation_level := (v_acquired).isolation_level;
        v_result := v_result || to_jsonb(v_row);
        return next v_row;
    end loop;
    if v_rows = 0 then
        v_result := v_result || to_jsonb(v_row);
        return next v_row;
    end if;
    -- One half may be refused while the other has taken effect. A repeated call must do neither a second time.
    if (v_row).acknowledge_error_code = 0 or (v_row).lease_id is not null then
        perform sharequeue_internal.remember(v_key, 'acknowledge_and_acquire', v_result);
    end if;
end
$$;

-- The result of the usual fetch that is kept for a request of this member; null when there is none, or the caller may not
-- read the group and the topic. It is kept with the lease while that exists, and then in requests.
create or replace function sharequeue_internal.stored_fetch(
    p_group_id text, p_topic text, p_partition integer, p_request_id uuid, p_member_id text, p_token uuid, p_first bigint
) returns sharequeue.acknowledged_and_acquired
language plpgsql volatile as $$
declare
    v_sp sharequeue.share_partitions;
    v_result sharequeue.acknowledged_and_acquired;
begin
    select * into v_sp from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    if coalesce((select acls_apply from sharequeue.group_settings where group_id = p_group_id), true)
            and not (sharequeue_internal.authorised(p_group_id, 'READ')
                and sharequeue_internal.topic_authorised(p_topic, 'READ')) then
        return null;
    elsif v_sp.folded_request_id = p_request_id and v_sp.folded_member_id = p_member_id then
        return sharequeue_internal.folded_fetch(v_sp);
    end if;
    select (fetched).* into v_result from sharequeue.requests
    where request_key = sharequeue_internal.request_key(
        v_sp.share_partition_id, 'acknowledge_and_acquire', p_member_id, p_request_id);
    if v_result.acknowledge_error_code is null and not exists (
        -- What it acknowledges is still held: it has not been done before. Spares a walk over the leases.
        select from sharequeue.in_flight_batches f
        where f.share_partition_id = v_sp.share_partition_id and f.first_offset = p_first and f.part = 0
            and f.state = 1 and p_token is not null and sharequeue_internal.is_holder(f.lease_id, p_member_id, p_token)
    ) then
        select (l.fetched).* into v_result from sharequeue.leases l
        where l.share_partition_id = v_sp.share_partition_id and l.request_id = p_request_id
            and l.member_id = p_member_id;
    end if;
    return v_result;
end
$$;
