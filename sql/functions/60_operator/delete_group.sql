-- Deletes a group and its state, but not its configs, as a broker does (R-AD-5): a new group of that
-- name has these configs. Returns whether the group existed.
create or replace function sharequeue.delete_group(p_group_id text) returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_ids bigint[];
    v_before jsonb;
begin
    perform sharequeue_internal.authorise(p_group_id, 'DELETE');
    perform sharequeue_internal.check_present('the group id', p_group_id);
    if not sharequeue_internal.lock_empty_group(p_group_id) then
        return false;
    end if;
    v_ids := sharequeue_internal.lock_in_order(array[p_group_id], true, true);
    select coalesce(jsonb_agg(jsonb_build_object('topic', topic, 'partition', partition, 'start_offset', spso,
        'state_epoch', state_epoch) order by topic, partition), '[]')
    into v_before from sharequeue.share_partitions where group_id = p_group_id;
    perform sharequeue_internal.delete_share_partitions(v_ids);
    delete from sharequeue.share_groups where group_id = p_group_id;
    perform sharequeue_internal.audit('delete_group', p_group_id, v_before, null);
    return true;
end
$$;
