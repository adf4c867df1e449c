-- renew_many for one lease.
create or replace function sharequeue.renew(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, out error_code smallint, out error_message text, out expires_at timestamptz
)
language sql volatile set search_path = pg_catalog as $$
    select r.error_code, r.error_message, r.expires_at
    from sharequeue.renew_many(p_group_id, array[p_topic], array[p_partition], array[p_state_epoch], p_member_id, p_member_epoch,
        array[p_token]) as r
$$;
