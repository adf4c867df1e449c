-- Pauses leasing from a group, from a topic, or from one of its share-partitions, for a reason that describe shows.
-- Leased records may still be acknowledged. A null reason resumes, and closes the circuit breaker. Returns the number of
-- changed rows.
create or replace function sharequeue.pause(
    p_group_id text, p_reason text, p_topic text default null, p_partition integer default null
) returns integer
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_before jsonb;
    v_ids bigint[];
    v_paused integer;
begin
    perform sharequeue_internal.authorise(p_group_id, 'ALTER');
    if p_reason is not null then
        perform sharequeue_internal.check_text('the reason', p_reason, 10000);
    end if;
    if p_reason = '' or (p_topic is null and p_partition is not null) then
        raise exception 'the arguments of pause are not valid: the reason must not be empty, and a partition needs a topic'
            using errcode = 'SQ042';
    elsif not exists (select from sharequeue.share_groups where group_id = p_group_id) then
        raise exception 'there is no share group %', p_group_id using errcode = 'SQ069';
    end if;
    v_ids := sharequeue_internal.lock_in_order(
        array[p_group_id], p_topic is null, p_topic is not null or p_reason is null, p_topic, p_partition);
    if p_reason is null then
        delete from sharequeue.circuit_breakers where share_partition_id = any (v_ids);
    end if;
    if p_topic is null then
        select jsonb_build_object('reason', paused_reason) into v_before
        from sharequeue.group_settings where group_id = p_group_id;
        update sharequeue.group_settings set paused_reason = p_reason where group_id = p_group_id;
    else
        select jsonb_agg(jsonb_build_object('topic', topic, 'partition', partition, 'reason', paused_reason))
        into v_before from sharequeue.share_partitions where share_partition_id = any (v_ids);
        update sharequeue.share_partitions set paused_reason = p_reason where share_partition_id = any (v_ids);
    end if;
    get diagnostics v_paused = row_count;
    if v_paused = 0 then
        raise exception 'group % has no share-partition %-%', p_group_id, p_topic, coalesce(p_partition::text, '*')
            using errcode = 'SQ003';
    end if;
    perform sharequeue_internal.audit(case when p_reason is null then 'resume' else 'pause' end, p_group_id, v_before,
        jsonb_build_object('topic', p_topic, 'partition', p_partition, 'reason', p_reason));
    return v_paused;
end
$$;
