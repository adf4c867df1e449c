-- What the group coordinator asks of the tables (kafka-semantics 2.14); each expects the group's row to be locked.

-- Share-partitions that may be assigned: initialised, active, subscribed by somebody, and partitions that the topic has
-- as it was last seen: under the same id, and not beyond its number of partitions (0 when it was seen to be gone).
-- The topics are an array, made once: as `in (select …)` the members are read again for each share-partition, and a look at 50
-- groups of 200 members and 200 share-partitions takes 640 ms, not 30.
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

-- The topics that a group's members subscribe to, as one text: another one means another group epoch.
create or replace function sharequeue.metadata_hash(p_group_id text) returns text
language sql stable set search_path = pg_catalog as $$
    select md5(coalesce(string_agg(t.topic || ' ' || t.topic_id || ' ' || t.partitions, ',' order by t.topic), ''))
    from sharequeue.topics t
    where t.partitions > 0 and t.topic = any (array(
        select distinct unnest(m.subscribed_topic_names) from sharequeue.members m where m.group_id = p_group_id))
$$;

-- The epoch after this one, of a group or a share-partition. In Kafka's protocol an epoch is an int32.
create or replace function sharequeue_internal.next_epoch(p_of_what text, p_epoch integer) returns integer
language plpgsql immutable as $$
begin
    if p_epoch = 2147483647 then
        raise exception '% is at epoch 2147483647, the last one of Kafka''s protocol. Note the start offsets of the group, stop its members and delete it: one that is made anew begins at epoch 1.',
            p_of_what using errcode = 'SQ042';
    end if;
    return p_epoch + 1;
end
$$;

-- Raises the group epoch by one when there is any reason to (R-GR, rule 4): a subscription changed (the caller knows),
-- the subscribed topics changed, or share-partitions are assignable, unassigned and no assignment is pending.
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
