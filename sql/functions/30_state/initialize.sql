-- Creates a share-partition (R-IN). The caller has determined its start offset from the group's reset policy;
-- nothing is in flight. A second call changes nothing.
create or replace function sharequeue.initialize(
    p_group_id text, p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint, p_state_epoch integer
) returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise_topics(p_group_id, 'READ', array[p_topic]);
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_start(p_topic, p_partition, p_topic_id, p_start_offset);
    perform sharequeue_internal.check_between('the state epoch', p_state_epoch, 0, 2147483647);
    if not sharequeue_internal.lock_group(p_group_id) then
        raise exception 'there is no share group %', p_group_id using errcode = 'SQ069';
    end if;
    insert into sharequeue.share_partitions
        (group_id, topic, partition, topic_id, state_epoch, spso, speo, log_end, last_stable_offset)
    values (p_group_id, p_topic, p_partition, p_topic_id, p_state_epoch, p_start_offset, p_start_offset,
        p_start_offset, p_start_offset)
    on conflict on constraint share_partitions_name do nothing;
    return found;
end
$$;

-- Checks the arguments of a new share-partition. SQLSTATE SQnnn is Kafka's error nnn, here and everywhere.
create or replace function sharequeue_internal.check_start(
    p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint
) returns void
language plpgsql immutable as $$
begin
    if not coalesce(p_topic ~ '^[a-zA-Z0-9._-]{1,249}$' and p_topic_id <> '' and p_partition >= 0, false) then
        raise exception 'share-partition %-% of topic id % is not valid: expected a topic (1 to 249 letters, digits, dots, underscores '
            'and hyphens), a partition of 0 or more, and the id of the topic', left(p_topic, 300), p_partition, left(p_topic_id, 300)
            using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.check_name('the topic id', p_topic_id);
    if p_start_offset is null or p_start_offset not between 0 and 9223372036854775806 then
        raise exception 'start offset % is out of range: expected 0 to 2^63 - 2', p_start_offset using errcode = 'SQ042';
    end if;
end
$$;
