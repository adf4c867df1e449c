-- A share-partition comes to life (R-IN): its start offset is known, resolved by the caller from the group's reset policy;
-- nothing is in flight. Doing it again changes nothing.
create or replace function sharequeue.initialize(
    p_group_id text, p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint, p_state_epoch integer
) returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
begin
    insert into sharequeue.share_partitions
        (group_id, topic, partition, topic_id, state_epoch, spso, speo, log_end, last_stable_offset)
    values (p_group_id, p_topic, p_partition, p_topic_id, p_state_epoch, p_start_offset, p_start_offset,
        p_start_offset, p_start_offset)
    on conflict on constraint share_partitions_name do nothing;
    return found;
end
$$;
