-- acquire_many for one share-partition. p_leave_out are offsets that this caller does not want again. Other callers may lease them.
create or replace function sharequeue.acquire(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text,
    p_member_epoch integer, p_max_records bigint, p_lock_duration_ms integer default null,
    p_request_id uuid default null, p_redelivery text default 'kafka', p_mode text default 'batch_optimized',
    p_batch_size bigint default null, p_log_firsts bigint[] default null, p_log_lasts bigint[] default null,
    p_aborted int8multirange default '{}', p_leave_out int8multirange default '{}'
) returns setof sharequeue.acquired
language sql volatile set search_path = pg_catalog as $$
    select error_code, error_message, lease_id, token, state_epoch, lock_duration_ms, expires_at, delivery_count, offsets,
        isolation_level
    from sharequeue.acquire_many(p_group_id, array[p_topic], array[p_partition], p_member_id, p_member_epoch, p_max_records,
        p_lock_duration_ms, p_request_id, p_redelivery, p_mode, null, null, array[p_leave_out], 1, true, p_state_epoch,
        row(p_batch_size, p_log_firsts, p_log_lasts, p_aborted))
$$;
