-- Publications of replays, and redrives of the same records. A record that is published has a row in the output, and one
-- that is redriven gets another one when the group processes it again. So each refuses what the other has begun, and a
-- redrive leaves out what was published. Both lock sharequeue.publications: whichever comes second sees the first.

-- Records that a replay is about to replace the rows of these records: p_offsets of each topic and partition. Returns its
-- id. Raises INVALID_REQUEST while a redrive that would give the group one of these records again has begun and not ended;
-- one whose letters were all sent, by whomever, or discarded, delays nobody.
create or replace function sharequeue.begin_publication(
    p_group_id text, p_sink text, p_replay text, p_topics text[], p_topic_ids text[], p_partitions integer[],
    p_offsets int8multirange[]
) returns uuid
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_publication_id constant uuid := gen_random_uuid();
    v_redrive record;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_name('the group id', p_group_id), sharequeue_internal.check_name('the sink', p_sink),
        sharequeue_internal.check_name('the replay', p_replay);
    perform sharequeue_internal.check_published(p_topics, p_partitions, p_offsets);
    perform sharequeue_internal.check_present('the topic ids', p_topic_ids);
    if cardinality(p_topic_ids) <> cardinality(p_topics) then
        raise exception 'there are % topics and % topic ids: expected one for each', cardinality(p_topics),
            cardinality(p_topic_ids) using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.check_name('a topic id', i.id) from unnest(p_topic_ids) as i (id);
    lock table sharequeue.publications in share row exclusive mode;
    select r.redrive_id, r.dead_letter_topic, r.requested_by, r.requested_at,
        sharequeue.records(range_agg(p.source_offsets * o.offsets)) as records into v_redrive
    from unnest(p_topics, p_partitions, p_offsets) as o (topic, partition, offsets)
    join sharequeue.redrive_plans p on p.group_id = p_group_id and p.source_topic = o.topic
        and p.source_partition = o.partition and p.source_offsets && o.offsets
    join sharequeue.redrives r using (redrive_id)
    left join sharequeue.redriven d on d.dead_letter_topic = r.dead_letter_topic and d.topic_id = r.topic_id
        and d.partition = p.partition
    where r.ended_at is null and not p.letters <@ coalesce(d.offsets + d.discarded, '{}')
        and sharequeue_internal.comes_back(p_group_id, p.source_topic, r.target_topic, r.only_group)
    group by r.redrive_id order by r.requested_at limit 1;
    if found then
        raise exception 'Group % gets records of replay % again: redrive % of %, begun at % UTC by %, has not ended, and '
            'has planned to send % of them. Publish when it has ended. If its process is gone, do the same redrive '
            'again, or end it: select sharequeue.end_redrive(''%'')',
            p_group_id, p_replay, v_redrive.redrive_id, v_redrive.dead_letter_topic,
            to_char(v_redrive.requested_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS'), v_redrive.requested_by,
            v_redrive.records, v_redrive.redrive_id using errcode = 'SQ042';
    end if;
    insert into sharequeue.publications (publication_id, group_id, sink, replay, requested_by, begun_at)
    values (v_publication_id, p_group_id, p_sink, p_replay, session_user, sharequeue.clock());
    insert into sharequeue.published_records (publication_id, topic, topic_id, partition, offsets)
    select v_publication_id, o.* from unnest(p_topics, p_topic_ids, p_partitions, p_offsets) as o (topic, id, partition, offsets);
    return v_publication_id;
end
$$;

-- Records that the rows were replaced; p_offsets of each topic and partition have rows now. Publications of the same replay
-- that were killed have ended with it. Returns the number of records with rows.
create or replace function sharequeue.end_publication(
    p_publication_id uuid, p_topics text[], p_partitions integer[], p_offsets int8multirange[]
) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_publication sharequeue.publications;
    v_records bigint;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_present('the publication id', p_publication_id);
    perform sharequeue_internal.check_published(p_topics, p_partitions, p_offsets);
    lock table sharequeue.publications in share row exclusive mode;
    update sharequeue.publications u set ended_at = sharequeue.clock()
    where u.publication_id = p_publication_id and u.ended_at is null returning u.* into v_publication;
    if not found then
        raise exception 'there is no publication % under way', p_publication_id using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.authorise(v_publication.group_id, 'READ');
    delete from sharequeue.publications u
    where u.group_id = v_publication.group_id and u.sink = v_publication.sink and u.replay = v_publication.replay
        and u.ended_at is null;
    -- A record whose rows this one has removed, and not replaced, may be redriven again.
    update sharequeue.published_records e set with_rows = e.with_rows - n.offsets
    from sharequeue.published_records n, sharequeue.publications u
    where n.publication_id = p_publication_id and u.publication_id = e.publication_id
        and u.group_id = v_publication.group_id and u.sink = v_publication.sink
        and (e.topic, e.topic_id, e.partition) = (n.topic, n.topic_id, n.partition) and e.with_rows && n.offsets;
    update sharequeue.published_records n set with_rows = n.offsets * o.offsets
    from unnest(p_topics, p_partitions, p_offsets) as o (topic, partition, offsets)
    where n.publication_id = p_publication_id and n.topic = o.topic and n.partition = o.partition;
    select coalesce(sum(sharequeue.records(n.with_rows)), 0) into v_records
    from sharequeue.published_records n where n.publication_id = p_publication_id;
    return v_records;
end
$$;

-- Forgets a publication that was refused before it changed anything.
create or replace function sharequeue.forget_publication(p_publication_id uuid) returns void
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_group_id text;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_present('the publication id', p_publication_id);
    select u.group_id into v_group_id from sharequeue.publications u
    where u.publication_id = p_publication_id and u.ended_at is null for update;
    if not found then
        raise exception 'there is no publication % under way', p_publication_id using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.authorise(v_group_id, 'READ');
    delete from sharequeue.publications u where u.publication_id = p_publication_id;
end
$$;

-- Requires offsets of partitions, each of which has a topic.
create or replace function sharequeue_internal.check_published(
    p_topics text[], p_partitions integer[], p_offsets int8multirange[]
) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.check_present('the topics', p_topics), sharequeue_internal.check_present('the partitions', p_partitions),
        sharequeue_internal.check_present('the offsets', p_offsets);
    if cardinality(p_partitions) <> cardinality(p_topics) or cardinality(p_offsets) <> cardinality(p_topics) or (
            select count(*) <> count(distinct (o.topic, o.partition)) from unnest(p_topics, p_partitions) as o (topic, partition)) then
        raise exception 'there are % topics, % partitions and % sets of offsets: expected as many of each, and no '
            'partition twice', cardinality(p_topics), cardinality(p_partitions), cardinality(p_offsets)
            using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.check_name('a topic', o.topic),
        sharequeue_internal.check_between('a partition', o.partition, 0, 2147483647),
        sharequeue_internal.check_offsets(o.offsets)
    from unnest(p_topics, p_partitions, p_offsets) as o (topic, partition, offsets);
end
$$;

-- Returns whether a group gets a record of a topic again if it is redriven: to its own topic or to p_target_topic, for all
-- groups or for p_only_group.
create or replace function sharequeue_internal.comes_back(
    p_group_id text, p_topic text, p_target_topic text, p_only_group text
) returns boolean
language sql stable set search_path = pg_catalog as $$
    select (p_only_group is null or p_only_group = p_group_id) and exists (
        select from sharequeue.share_partitions sp
        where sp.group_id = p_group_id and sp.topic = coalesce(p_target_topic, p_topic))
$$;
