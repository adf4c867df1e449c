-- observe_many for one log. Returns the status of the share-partition, null if it is not initialised.
create or replace function sharequeue.observe(
    p_group_id text, p_topic text, p_partition integer, p_topic_id text,
    p_log_start bigint, p_log_end bigint, p_last_stable_offset bigint
) returns text
language sql volatile set search_path = pg_catalog as $$
    select status from sharequeue.observe_many(p_group_id, array[p_topic], array[p_partition], array[p_topic_id],
        array[p_log_start], array[p_log_end], array[p_last_stable_offset])
$$;
