-- Records that a pipeline processes a group, unless another pipeline does; p_replaces is one that it replaces. Returns the
-- pipeline that processes the group now; null if there is no such group.
create or replace function sharequeue.claim_group(p_group_id text, p_pipeline text, p_replaces text default null)
returns text
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_before text;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id);
    perform sharequeue_internal.check_name('the pipeline name', p_pipeline);
    select pipeline into v_before from sharequeue.share_groups where group_id = p_group_id;
    if not found or v_before = p_pipeline then
        return v_before;
    end if;
    -- Of two concurrent calls, the second one finds the first.
    select pipeline into v_before from sharequeue.share_groups where group_id = p_group_id for no key update;
    if not found or v_before <> p_pipeline and v_before is distinct from p_replaces then
        return v_before;
    end if;
    update sharequeue.share_groups set pipeline = p_pipeline where group_id = p_group_id and pipeline is distinct from p_pipeline;
    if v_before <> p_pipeline then
        perform sharequeue_internal.audit('replace_pipeline', p_group_id, jsonb_build_object('pipeline', v_before),
            jsonb_build_object('pipeline', p_pipeline));
    end if;
    return p_pipeline;
end
$$;
