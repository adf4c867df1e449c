-- renew, for many leases of one member.
create or replace function sharequeue.renew_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_state_epochs integer[], p_member_id text,
    p_member_epoch integer, p_tokens uuid[]
) returns setof sharequeue.renewed_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_there boolean[];
    v_place integer;
    v_renewed record;
begin
    v_there := sharequeue_internal.lock_share_partitions(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_state_epochs), 0), coalesce(cardinality(p_tokens), 0));
    for v_place in 1 .. cardinality(p_topics) loop
        if v_there[v_place] then
            select * into v_renewed
            from sharequeue.renew(p_group_id, p_topics[v_place], p_partitions[v_place], p_state_epochs[v_place],
                p_member_id, p_member_epoch, p_tokens[v_place]);
        else
            select *, cast(null as timestamptz) as expires_at into v_renewed
            from sharequeue_internal.absent(p_group_id, p_topics[v_place], p_partitions[v_place], 'READ');
        end if;
        return next row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place], v_renewed.error_code,
            v_renewed.error_message, v_renewed.expires_at)::sharequeue.renewed_of;
    end loop;
end
$$;
