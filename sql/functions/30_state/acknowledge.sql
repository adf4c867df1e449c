-- acknowledge_many for one lease.
create or replace function sharequeue.acknowledge(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_accept int8multirange, p_release int8multirange, p_reject int8multirange,
    p_gap int8multirange, p_outputs jsonb default '[]', p_not_before timestamptz default null, p_backoff boolean default false
) returns sharequeue.acknowledged
language sql volatile set search_path = pg_catalog as $$
    select row(error_code, error_message, spso, lag, accepted, released, rejected, gaps, exhausted)::sharequeue.acknowledged
    from sharequeue.acknowledge_many(p_group_id, array[p_topic], array[p_partition], array[p_state_epoch], p_member_id,
        p_member_epoch, array[p_token], p_request_id, array[p_accept], array[p_release], array[p_reject], array[p_gap],
        jsonb_build_array(p_outputs), array[p_not_before], p_backoff)
$$;
