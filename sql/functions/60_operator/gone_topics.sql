-- Topics that the broker no longer has: the time since which it reports this, and the removal of their state. Kafka's share
-- coordinator removes the state of a deleted topic at once. Here the broker must have reported for a configured time, without a
-- break, that the topic id is gone. A missing reply, or a refusal for lack of rights, does not count.

-- Returns the longest break between two reports of the broker after which the time still continues.
create or replace function sharequeue_internal.gone_topic_silence() returns interval
language sql immutable parallel safe as $$ select pg_catalog.make_interval(mins => 1) $$;

-- Records the broker's current data about topics: p_topic_ids has the current id of each, null if the topic does not
-- exist. Do not name topics for which the broker returned nothing.
create or replace function sharequeue.note_topics(p_topics text[], p_topic_ids text[]) returns void
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_at timestamptz;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise_cluster();
    if p_topics is null or cardinality(p_topics) is distinct from cardinality(p_topic_ids)
            or array_position(p_topics, null) is not null then
        raise exception 'the topics are not valid: expected a name for each, and its id or null' using errcode = 'SQ042';
    end if;
    v_at := sharequeue.clock();
    delete from sharequeue.gone_topics where ctid = any (array(
        select g.ctid from sharequeue.gone_topics g
        where exists (select from unnest(p_topics, p_topic_ids) as n (topic, topic_id)
                where n.topic = g.topic and n.topic_id = g.topic_id)
            or not exists (select from sharequeue.share_partitions sp where sp.topic = g.topic and sp.topic_id = g.topic_id)
        order by g.topic, g.topic_id for update));
    -- Every ten seconds is enough: readers check whether the last report is at most a minute old.
    insert into sharequeue.gone_topics as g (topic, topic_id, gone_since, said_at)
    select distinct sp.topic, sp.topic_id, v_at, v_at
    from unnest(p_topics, p_topic_ids) as n (topic, topic_id) join sharequeue.share_partitions sp on sp.topic = n.topic
    where n.topic_id is distinct from sp.topic_id order by sp.topic, sp.topic_id
    on conflict on constraint gone_topics_pkey do update
        -- A report in the future was stored before the clock was set back: how long the topic is gone is not known.
        set gone_since = case when g.said_at >= v_at - sharequeue_internal.gone_topic_silence()
                    and not sharequeue_internal.is_ahead(g.said_at, v_at) then g.gone_since else v_at end,
            said_at = v_at
        where g.said_at < v_at - interval '10 seconds' or sharequeue_internal.is_ahead(g.said_at, v_at);
end
$$;

-- Returns the share-partitions of topic ids that are gone for p_gone_for at p_at, and that the broker still reports as gone; of
-- one group, or of all.
create or replace function sharequeue_internal.of_gone_topics(p_gone_for interval, p_group_id text, p_at timestamptz)
returns table (share_partition_id bigint, group_id text, gone_since timestamptz)
language sql stable as $$
    select sp.share_partition_id, sp.group_id, g.gone_since
    from sharequeue.gone_topics g
    join sharequeue.share_partitions sp on sp.topic = g.topic and sp.topic_id = g.topic_id
    where (p_group_id is null or sp.group_id = p_group_id) and g.gone_since <= p_at - p_gone_for
        and g.said_at >= p_at - sharequeue_internal.gone_topic_silence() and not sharequeue_internal.is_ahead(g.said_at, p_at)
$$;

-- Removes the state of topic ids that the broker has reported as gone for p_gone_for and still does, of one group or
-- of all; without p_execute it only returns what it would remove. One row for each group and topic id. The groups
-- continue: if members subscribe to a topic that was created again, it starts as a new topic of the group.
create or replace function sharequeue.remove_deleted_topics(
    p_gone_for interval, p_execute boolean, p_group_id text default null
) returns table (topic text, topic_id text, gone_since timestamptz, group_id text, share_partitions bigint)
language plpgsql volatile set search_path = pg_catalog as $$
#variable_conflict use_column
declare
    v_at timestamptz;
    v_groups text[];
    v_ids bigint[];
    v_due bigint[];
    v_found record;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_span('the time since the deletion of a topic', p_gone_for),
        sharequeue_internal.check_present('p_execute', p_execute);
    v_at := sharequeue.clock();
    if p_execute then
        -- All groups, then all share-partitions (lock_order.sql). Share-partitions that another call has reset or deleted before
        -- the lock are not in the query below.
        v_groups := array(
            select g.group_id from sharequeue.share_groups g
            where g.group_id in (select o.group_id from sharequeue_internal.of_gone_topics(p_gone_for, p_group_id, v_at) as o)
            order by g.group_id for no key update);
        v_ids := array(
            select sp.share_partition_id from sharequeue.share_partitions sp
            where sp.group_id = any (v_groups) and sp.share_partition_id in (
                select o.share_partition_id from sharequeue_internal.of_gone_topics(p_gone_for, p_group_id, v_at) as o)
            order by sp.share_partition_id for update);
    end if;
    for v_found in
        select sp.group_id, sp.topic, sp.topic_id, o.gone_since,
            array_agg(sp.share_partition_id order by sp.share_partition_id) as ids,
            jsonb_agg(jsonb_build_object('topic', sp.topic, 'topic_id', sp.topic_id, 'partition', sp.partition,
                'start_offset', sp.spso, 'end_offset', sp.speo, 'state_epoch', sp.state_epoch) order by sp.partition) as before
        from sharequeue_internal.of_gone_topics(p_gone_for, p_group_id, v_at) as o
        join sharequeue.share_partitions sp using (share_partition_id)
        where not p_execute or sp.share_partition_id = any (v_ids)
        group by sp.group_id, sp.topic, sp.topic_id, o.gone_since order by sp.group_id, sp.topic, sp.topic_id
    loop
        if p_execute then
            v_due := v_due || v_found.ids;
            perform sharequeue_internal.audit('remove_deleted_topic', v_found.group_id, v_found.before,
                jsonb_build_object('gone_since', v_found.gone_since));
        end if;
        return query select v_found.topic, v_found.topic_id, v_found.gone_since, v_found.group_id,
            cardinality(v_found.ids)::bigint;
    end loop;
    if v_due is not null then
        perform sharequeue_internal.delete_share_partitions(array(select d from unnest(v_due) as d order by d));
        -- Rows that another call has locked are left to that call.
        delete from sharequeue.gone_topics g where ctid = any (array(
            select n.ctid from sharequeue.gone_topics n
            where not exists (
                select from sharequeue.share_partitions sp where sp.topic = n.topic and sp.topic_id = n.topic_id)
            order by n.topic, n.topic_id for update skip locked));
    end if;
end
$$;
