-- Functions of the group coordinator (R-GR). Each expects the group's row to be locked.

-- Returns the share-partitions that may be assigned: initialised, active, of a topic to which a member subscribes, and of a
-- partition that the topic had when it was last seen: with the same id, and below its number of partitions (0 if it was gone).
-- The topics are an array that is built once: with `in (select …)` the members are read again for each share-partition, and 50
-- groups of 200 members and 200 share-partitions take 640 ms instead of 30.
create or replace function sharequeue.assignable_share_partitions(p_group_id text)
returns table (topic text, share_partition_id bigint)
language sql stable set search_path = pg_catalog as $$
    select sp.topic, sp.share_partition_id
    from sharequeue.share_partitions sp
    left join sharequeue.topics t on t.topic = sp.topic
    where sp.group_id = p_group_id and sp.status = 'active'
        and (t.topic is null or (t.topic_id = sp.topic_id and sp.partition < t.partitions))
        and sp.topic = any (array(
            select distinct unnest(m.subscribed_topic_names) from sharequeue.members m where m.group_id = p_group_id))
$$;

-- Returns the topics to which a group's members subscribe, as one text. When it changes, the group epoch is raised.
create or replace function sharequeue.metadata_hash(p_group_id text) returns text
language sql stable set search_path = pg_catalog as $$
    select encode(sha256(convert_to(
        coalesce(string_agg(t.topic || ' ' || t.topic_id || ' ' || t.partitions, ',' order by t.topic), ''), 'UTF8')), 'hex')
    from sharequeue.topics t
    where t.partitions > 0 and t.topic = any (array(
        select distinct unnest(m.subscribed_topic_names) from sharequeue.members m where m.group_id = p_group_id))
$$;

-- Returns the next epoch of a group or a share-partition. In Kafka's protocol an epoch is an int32.
create or replace function sharequeue_internal.next_epoch(p_of_what text, p_epoch integer) returns integer
language plpgsql immutable as $$
begin
    if p_epoch = 2147483647 then
        raise exception '% is at epoch 2147483647, the highest one in Kafka''s protocol. Save the start offsets of the group, stop its members and delete it: a new group starts at epoch 1.',
            p_of_what using errcode = 'SQ042';
    end if;
    return p_epoch + 1;
end
$$;

-- Raises the group epoch by one if there is a reason (R-GR-4): a subscription changed (the caller reports this), the
-- subscribed topics changed, or there are assignable share-partitions without a member and no assignment is pending.
create or replace function sharequeue.raise_group_epoch(p_group_id text, p_subscription_changed boolean) returns integer
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_hash text := sharequeue.metadata_hash(p_group_id);
    v_epoch integer;
begin
    perform sharequeue.require_read_committed();
    update sharequeue.share_groups g
    set group_epoch = sharequeue_internal.next_epoch('Group ' || g.group_id, g.group_epoch), metadata_hash = v_hash
    where g.group_id = p_group_id and (
        p_subscription_changed
        or (exists (select from sharequeue.members m where m.group_id = p_group_id)
            and (g.metadata_hash is distinct from v_hash
                or (g.assignment_epoch = g.group_epoch and exists (
                    select share_partition_id from sharequeue.assignable_share_partitions(p_group_id)
                    except
                    select a.share_partition_id from sharequeue.assignments a where a.group_id = p_group_id)))))
    returning g.group_epoch into v_epoch;
    return v_epoch;
end
$$;
