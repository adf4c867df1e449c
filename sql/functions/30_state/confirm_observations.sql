-- Compares the broker's current data about all logs with the recorded data, for all groups in one call. Returns the
-- groups with changes: each of them is observed separately (observe_many). For a topic without changes in a group,
-- the time of the check is recorded at most every five seconds; a row that another call holds is left to that call.
-- Topics for which the broker returned nothing are not changed. No share-partition is locked.
create or replace function sharequeue.confirm_observations(
    p_topics text[], p_partitions integer[], p_topic_ids text[], p_log_starts bigint[], p_log_ends bigint[],
    p_last_stable_offsets bigint[]
) returns text[]
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_at timestamptz;
    v_new record;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_many(2147483647, p_topics, p_partitions, coalesce(cardinality(p_topic_ids), 0),
        coalesce(cardinality(p_log_starts), 0), coalesce(cardinality(p_log_ends), 0),
        coalesce(cardinality(p_last_stable_offsets), 0));
    v_at := sharequeue.clock();
    select array_agg(t.group_id order by t.group_id, t.topic) filter (where t.same) as groups,
        array_agg(t.topic order by t.group_id, t.topic) filter (where t.same) as topics,
        coalesce(array_agg(distinct t.group_id) filter (where not t.same), '{}') as due
    into v_new
    from (
        select sp.group_id, sp.topic, o.observed_at is not null and bool_and(case sp.status
            when 'topic_recreated' then sp.topic_id <> n.topic_id
            else coalesce((sp.log_start, sp.log_end, sp.last_stable_offset, sp.topic_id)
                = (n.log_start, n.log_end, least(n.stable, n.log_end), n.topic_id)
                and not sharequeue_internal.is_ahead(sp.observed_at, v_at) and n.log_start <= sp.spso, false) end) as same
        from sharequeue.share_partitions sp
        left join unnest(p_topics, p_partitions, p_topic_ids, p_log_starts, p_log_ends, p_last_stable_offsets)
            as n (topic, partition, topic_id, log_start, log_end, stable)
            on n.topic = sp.topic and n.partition = sp.partition
        left join sharequeue.observations o on o.group_id = sp.group_id and o.topic = sp.topic
        group by sp.group_id, sp.topic, o.observed_at
        having bool_or(n.topic is not null)) as t;
    update sharequeue.observations o set observed_at = v_at
    where o.ctid = any (array(
        select s.ctid from sharequeue.observations s
        join unnest(v_new.groups, v_new.topics) as c (group_id, topic) using (group_id, topic)
        where s.observed_at < v_at - interval '5 seconds' or sharequeue_internal.is_ahead(s.observed_at, v_at) order by s.group_id, s.topic for update of s skip locked));
    return v_new.due;
end
$$;
