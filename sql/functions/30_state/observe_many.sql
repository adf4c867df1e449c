-- observe, for many logs. A share-partition's row is written only if its data have changed. If nothing has changed and
-- the call names every share-partition of the group's topic, one row of observations is written. If it names only some
-- of them, as a worker does, an unchanged row is written once in ten seconds.
create or replace function sharequeue.observe_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_topic_ids text[], p_log_starts bigint[],
    p_log_ends bigint[], p_last_stable_offsets bigint[]
) returns setof sharequeue.observed_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_at timestamptz;
    v_new record;
    v_whole text[];
    v_ids bigint[];
begin
    perform sharequeue_internal.authorise_topics(p_group_id, 'READ', p_topics);
    perform sharequeue_internal.check_present('the group id', p_group_id);
    perform sharequeue_internal.check_many(10000, p_topics, p_partitions, coalesce(cardinality(p_topic_ids), 0),
        coalesce(cardinality(p_log_starts), 0), coalesce(cardinality(p_log_ends), 0),
        coalesce(cardinality(p_last_stable_offsets), 0));
    v_at := sharequeue.clock();
    v_whole := array(
        select sp.topic from sharequeue.share_partitions sp
        left join unnest(p_topics, p_partitions) as n (topic, partition)
            on n.topic = sp.topic and n.partition = sp.partition
        where sp.group_id = p_group_id and sp.topic = any (p_topics)
        group by sp.topic having bool_and(n.topic is not null) order by sp.topic);
    -- Rows that must be written, by id. The call does not wait for the others.
    v_ids := array(
        select sp.share_partition_id
        from sharequeue.share_partitions sp
        join unnest(p_topics, p_partitions, p_topic_ids, p_log_starts, p_log_ends, p_last_stable_offsets)
            as n (topic, partition, topic_id, log_start, log_end, stable) using (topic, partition)
        where sp.group_id = p_group_id and not (sp.status = 'topic_recreated' and sp.topic_id <> n.topic_id)
            and ((sp.log_start, sp.log_end, sp.last_stable_offset, sp.topic_id, sp.status)
                    is distinct from (n.log_start, n.log_end, n.stable, n.topic_id, 'active')
                or sp.observed_at is null or n.log_start > sp.spso
                or (sp.topic <> all (v_whole) and v_at - interval '10 seconds' > greatest(sp.observed_at, (
                    select o.observed_at from sharequeue.observations o
                    where o.group_id = p_group_id and o.topic = sp.topic))))
        order by sp.share_partition_id for no key update of sp);
    -- Almost always only the end of the log has moved: one statement. The single operation handles log starts that move SPSO,
    -- topics that were created again, and invalid logs.
    for v_new in
        with moved as (
            update sharequeue.share_partitions sp
            set log_start = n.log_start, log_end = n.log_end, last_stable_offset = n.stable, observed_at = v_at
            from unnest(p_topics, p_partitions, p_topic_ids, p_log_starts, p_log_ends, p_last_stable_offsets)
                as n (topic, partition, topic_id, log_start, log_end, stable)
            where sp.share_partition_id = any (v_ids) and sp.topic = n.topic and sp.partition = n.partition
                and sp.status = 'active' and sp.topic_id = n.topic_id and n.log_start between 0 and sp.spso
                and n.log_end >= n.log_start and n.stable >= 0
            returning sp.share_partition_id
        )
        select n.*, sp.status, sp.share_partition_id in (select share_partition_id from moved)
            or (coalesce(sp.share_partition_id, 0) <> all (v_ids) and n.log_end >= n.log_start and n.log_start >= 0
                and n.stable >= 0) as done
        from unnest(p_topics, p_partitions, p_topic_ids, p_log_starts, p_log_ends, p_last_stable_offsets)
            as n (topic, partition, topic_id, log_start, log_end, stable)
        left join sharequeue.share_partitions sp
            on sp.group_id = p_group_id and sp.topic = n.topic and sp.partition = n.partition
        order by sp.share_partition_id
    loop
        if not coalesce(v_new.done, false) then
            v_new.status := sharequeue.observe(p_group_id, v_new.topic, v_new.partition, v_new.topic_id,
                v_new.log_start, v_new.log_end, v_new.stable);
        end if;
        return next row(v_new.topic, v_new.partition, v_new.status)::sharequeue.observed_of;
    end loop;
    insert into sharequeue.observations as o (group_id, topic, observed_at)
    select p_group_id, w.topic, v_at from unnest(v_whole) as w (topic) order by w.topic
    on conflict on constraint observations_pkey do update set observed_at = excluded.observed_at
    where o.observed_at < excluded.observed_at;
end
$$;
