-- Sends dead letters back in numbered batches, so that each is sent once, also if a process dies. Discards those that are never
-- to be sent.

-- Raises INVALID_REQUEST unless a selection of letters is an object with the names of conditions.
create or replace function sharequeue_internal.check_selection(p_selection jsonb) returns void
language plpgsql immutable as $$
declare
    v_unknown text;
begin
    if jsonb_typeof(p_selection) is distinct from 'object' then
        raise exception 'the selection is %: expected an object', coalesce(p_selection::text, 'missing') using errcode = 'SQ042';
    end if;
    select k.name into v_unknown from jsonb_object_keys(p_selection) as k (name)
    where k.name <> all (array['cause', 'since', 'until', 'group_id', 'source_topic', 'source_partition', 'header_name',
        'header_value', 'offsets']);
    if found then
        raise exception 'the selection has an unknown condition "%": expected columns of sharequeue.redrives', v_unknown
            using errcode = 'SQ042';
    end if;
end
$$;

-- Records that the role that is logged in requests a redrive, before anything of it is sent. Returns its id. p_selection
-- chooses the letters, by the names of the columns of sharequeue.redrives; a condition that is absent holds for all. p_target_logs
-- has the topic_id of each target topic and the ends of its partitions, so that what is sent can be found.
create or replace function sharequeue.begin_redrive(
    p_topic text, p_topic_id text, p_target_topic text, p_only_group text, p_target_topics text[], p_by_key boolean,
    p_selection jsonb, p_target_logs jsonb
) returns uuid
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_redrive_id constant uuid := gen_random_uuid();
    v_unknown text;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_name('the topic', p_topic), sharequeue_internal.check_name('the topic id', p_topic_id),
        sharequeue_internal.check_present('the target topics', p_target_topics),
        sharequeue_internal.check_present('p_by_key', p_by_key), sharequeue_internal.check_selection(p_selection);
    perform sharequeue_internal.check_name('a target topic', t.name) from unnest(p_target_topics) as t (name);
    if p_target_topic is not null then
        perform sharequeue_internal.check_name('the target topic', p_target_topic);
    end if;
    if p_only_group is not null then
        perform sharequeue_internal.check_group_id(p_only_group);
    end if;
    if jsonb_typeof(p_target_logs) is distinct from 'object' then
        raise exception 'the target logs are %: expected an object', coalesce(p_target_logs::text, 'missing')
            using errcode = 'SQ042';
    end if;
    select t.name into v_unknown from jsonb_each(p_target_logs) as t (name, log)
    where case
        when jsonb_typeof(t.log -> 'topic_id') = 'string' and jsonb_typeof(t.log -> 'ends') = 'object' then exists (
            select from jsonb_each_text(t.log -> 'ends') as e (at, log_end)
            where e.at !~ '^[0-9]{1,9}$' or coalesce(e.log_end, '') !~ '^[0-9]{1,18}$')
        else true end;
    if found then
        raise exception 'the target log of "%" is not known: expected its topic_id, and its ends by partition', v_unknown
            using errcode = 'SQ042';
    end if;
    insert into sharequeue.redrives (
        redrive_id, dead_letter_topic, topic_id, target_topic, only_group, target_topics, target_logs, by_key, requested_at, requested_by,
        cause, since, until, group_id, source_topic, source_partition, header_name, header_value, offsets)
    select v_redrive_id, p_topic, p_topic_id, p_target_topic, p_only_group, p_target_topics, p_target_logs, p_by_key,
        sharequeue.clock(), session_user, s.*
    from jsonb_to_record(p_selection) as s (
        cause text, since timestamptz, until timestamptz, group_id text, source_topic text, source_partition integer,
        header_name text, header_value text, offsets jsonb);
    return v_redrive_id;
end
$$;

-- Records the letters that a redrive is about to send: p_letters of p_partitions of the dead-letter topic, and where their
-- source records are. Raises INVALID_REQUEST if a replay with one of these records was published, or is being published,
-- so that the group would have it twice; nothing is recorded then (50_outputs/publications.sql).
create or replace function sharequeue.plan_redrive(
    p_redrive_id uuid, p_partitions integer[], p_letters int8multirange[], p_group_ids text[], p_topics text[],
    p_source_partitions integer[], p_offsets int8multirange[]
) returns void
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_redrive sharequeue.redrives;
    v_publication record;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_present('the partitions', p_partitions), sharequeue_internal.check_present('the letters', p_letters),
        sharequeue_internal.check_present('the group ids', p_group_ids), sharequeue_internal.check_present('the topics', p_topics),
        sharequeue_internal.check_present('the source partitions', p_source_partitions),
        sharequeue_internal.check_present('the offsets', p_offsets);
    if cardinality(p_partitions) <> all (array[cardinality(p_letters), cardinality(p_group_ids), cardinality(p_topics),
            cardinality(p_source_partitions), cardinality(p_offsets)]) then
        raise exception 'there are % partitions, % sets of letters, % groups, % topics, % source partitions and % sets of '
            'offsets: expected as many of each', cardinality(p_partitions), cardinality(p_letters),
            cardinality(p_group_ids), cardinality(p_topics), cardinality(p_source_partitions), cardinality(p_offsets)
            using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.check_between('a partition', l.partition, 0, 2147483647), sharequeue_internal.check_offsets(l.letters),
        sharequeue_internal.check_group_id(l.group_id), sharequeue_internal.check_name('a topic', l.topic),
        sharequeue_internal.check_between('a source partition', l.source_partition, 0, 2147483647),
        sharequeue_internal.check_offsets(l.offsets)
    from unnest(p_partitions, p_letters, p_group_ids, p_topics, p_source_partitions, p_offsets)
        as l (partition, letters, group_id, topic, source_partition, offsets);
    lock table sharequeue.publications in share row exclusive mode;
    select r.* into v_redrive from sharequeue.redrives r where r.redrive_id = p_redrive_id;
    if not found then
        raise exception 'there is no redrive %', p_redrive_id using errcode = 'SQ042';
    end if;
    select u.*, r.topic, r.partition into v_publication
    from unnest(p_group_ids, p_topics, p_source_partitions, p_offsets) as l (group_id, topic, source_partition, offsets)
    join sharequeue.publications u on u.group_id = l.group_id
    join sharequeue.published_records r on r.publication_id = u.publication_id and r.topic = l.topic
        and r.partition = l.source_partition
        and case when u.ended_at is null then r.offsets else r.with_rows end && l.offsets
    where sharequeue_internal.comes_back(l.group_id, l.topic, v_redrive.target_topic, v_redrive.only_group)
        and not exists (select from sharequeue.share_partitions sp
            where sp.group_id = l.group_id and sp.topic = r.topic and sp.topic_id <> r.topic_id)
    limit 1;
    if found then
        raise exception 'Replay % of group %, with records of %-%, % by % at % UTC: the group would have them twice. %',
            v_publication.replay, v_publication.group_id, v_publication.topic, v_publication.partition,
            case when v_publication.ended_at is null then 'is being published' else 'was published' end,
            v_publication.requested_by, to_char(v_publication.begun_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS'),
            case when v_publication.ended_at is null then 'Redrive when it has ended; if its process is gone, publish it again.'
                else 'Plan the redrive again.' end using errcode = 'SQ042';
    end if;
    insert into sharequeue.redrive_plans
        (redrive_id, partition, letters, group_id, source_topic, source_partition, source_offsets)
    select p_redrive_id, l.partition, range_agg(l.letters), l.group_id, l.topic, l.source_partition, range_agg(l.offsets)
    from unnest(p_partitions, p_letters, p_group_ids, p_topics, p_source_partitions, p_offsets)
        as l (partition, letters, group_id, topic, source_partition, offsets)
    group by l.partition, l.group_id, l.topic, l.source_partition
    on conflict on constraint redrive_plans_pkey do update
    set letters = redrive_plans.letters + excluded.letters,
        source_offsets = redrive_plans.source_offsets + excluded.source_offsets;
end
$$;

-- Records that a redrive sends nothing more: all is done, or it was given up. A process that goes on all the same cannot
-- open another batch.
create or replace function sharequeue.end_redrive(p_redrive_id uuid) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue.require_read_committed();
    update sharequeue.redrives r set ended_at = sharequeue.clock() where r.redrive_id = p_redrive_id;
    if not found then
        raise exception 'there is no redrive %', p_redrive_id using errcode = 'SQ042';
    end if;
end
$$;

-- Returns the batch to send next: the open one if there is one, also of another caller, else the lowest of the wanted letters
-- that were never sent nor discarded; is_new is true for that one, of which nothing can be in its target topics yet. No row if none is left. A
-- caller that needs another order requests a few at a time.
create or replace function sharequeue.open_redrive(
    p_topic text, p_topic_id text, p_partition integer, p_redrive_id uuid, p_wanted int8multirange, p_max_records bigint
) returns table (
    sequence bigint, redrive_id uuid, target_topic text, only_group text, by_key boolean, offsets int8multirange,
    target_logs jsonb, is_new boolean
)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_is_ended boolean;
    v_redriven sharequeue.redriven;
    v_taken int8multirange;
    v_is_new boolean;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_name('the topic', p_topic), sharequeue_internal.check_name('the topic id', p_topic_id),
        sharequeue_internal.check_between('the partition', p_partition, 0, 2147483647);
    perform sharequeue_internal.check_offsets(p_wanted), sharequeue_internal.check_between('the number of letters', p_max_records, 1,
        4611686018427387904);
    select r.ended_at is not null into v_is_ended from sharequeue.redrives r where r.redrive_id = p_redrive_id for share;
    if not found then
        raise exception 'there is no redrive %', p_redrive_id using errcode = 'SQ042';
    elsif v_is_ended then
        raise exception 'redrive % has ended: do the rest with another one', p_redrive_id using errcode = 'SQ042';
    end if;
    insert into sharequeue.redriven (dead_letter_topic, topic_id, partition) values (p_topic, p_topic_id, p_partition)
    on conflict on constraint redriven_pkey do nothing;
    select r.* into v_redriven from sharequeue.redriven r
    where r.dead_letter_topic = p_topic and r.topic_id = p_topic_id and r.partition = p_partition for update;
    v_is_new := not exists (select from sharequeue.redrive_batches b where b.dead_letter_topic = p_topic
        and b.topic_id = p_topic_id and b.partition = p_partition and b.sent_at is null);
    if v_is_new then
        v_taken := sharequeue_internal.first_records(p_wanted - v_redriven.offsets - v_redriven.discarded, p_max_records);
        if isempty(v_taken) then
            return;
        end if;
        update sharequeue.redriven r set sequence = r.sequence + 1
        where r.dead_letter_topic = p_topic and r.topic_id = p_topic_id and r.partition = p_partition;
        insert into sharequeue.redrive_batches
            (dead_letter_topic, topic_id, partition, sequence, redrive_id, offsets, opened_at)
        values (p_topic, p_topic_id, p_partition, v_redriven.sequence + 1, p_redrive_id, v_taken, sharequeue.clock());
    end if;
    return query
        select b.sequence, b.redrive_id, r.target_topic, r.only_group, r.by_key, b.offsets, r.target_logs, v_is_new
        from sharequeue.redrive_batches b join sharequeue.redrives r using (redrive_id)
        where b.dead_letter_topic = p_topic and b.topic_id = p_topic_id and b.partition = p_partition
            and b.sent_at is null;
end
$$;

-- Reduces the open batch to these letters, before they are sent. The others cannot be sent, or come with a later batch.
create or replace function sharequeue.trim_redrive(
    p_topic text, p_topic_id text, p_partition integer, p_sequence bigint, p_offsets int8multirange
) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_name('the topic', p_topic), sharequeue_internal.check_name('the topic id', p_topic_id),
        sharequeue_internal.check_between('the partition', p_partition, 0, 2147483647);
    perform sharequeue_internal.check_present('the sequence', p_sequence), sharequeue_internal.check_offsets(p_offsets);
    update sharequeue.redrive_batches b set offsets = b.offsets * p_offsets
    where b.dead_letter_topic = p_topic and b.topic_id = p_topic_id and b.partition = p_partition
        and b.sequence = p_sequence and b.sent_at is null;
end
$$;

-- Closes a batch that the broker has confirmed. Returns the number of letters; 0 if it was closed before.
create or replace function sharequeue.close_redrive(
    p_topic text, p_topic_id text, p_partition integer, p_sequence bigint
) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_batch record;
    v_sent bigint;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_name('the topic', p_topic), sharequeue_internal.check_name('the topic id', p_topic_id),
        sharequeue_internal.check_between('the partition', p_partition, 0, 2147483647);
    perform sharequeue_internal.check_present('the sequence', p_sequence);
    perform from sharequeue.redriven r
    where r.dead_letter_topic = p_topic and r.topic_id = p_topic_id and r.partition = p_partition for update;
    update sharequeue.redrive_batches b set sent_at = sharequeue.clock()
    where b.dead_letter_topic = p_topic and b.topic_id = p_topic_id and b.partition = p_partition
        and b.sequence = p_sequence and b.sent_at is null
    returning b.offsets, b.redrive_id into v_batch;
    if not found then
        return 0;
    end if;
    v_sent := sharequeue.records(v_batch.offsets);
    update sharequeue.redriven r set offsets = r.offsets + v_batch.offsets
    where r.dead_letter_topic = p_topic and r.topic_id = p_topic_id and r.partition = p_partition;
    update sharequeue.redrives r set sent = r.sent + v_sent where r.redrive_id = v_batch.redrive_id;
    return v_sent;
end
$$;

-- Records that no redrive sends these letters any more: p_letters of p_partitions of the dead-letter topic. Letters that were sent,
-- that were discarded before, or that are in the open batch of a redrive are left out: a batch that was opened is sent. Returns the
-- number of letters that were discarded. p_selection is how they were chosen, as for begin_redrive; the audit log has it, and
-- the letters.
create or replace function sharequeue.discard_letters(
    p_topic text, p_topic_id text, p_selection jsonb, p_partitions integer[], p_letters int8multirange[]
) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_wanted record;
    v_new int8multirange;
    v_offsets jsonb := '{}';
    v_discarded bigint := 0;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_name('the topic', p_topic), sharequeue_internal.check_name('the topic id', p_topic_id),
        sharequeue_internal.check_selection(p_selection), sharequeue_internal.check_present('the partitions', p_partitions),
        sharequeue_internal.check_present('the letters', p_letters);
    if cardinality(p_partitions) <> cardinality(p_letters) then
        raise exception 'there are % partitions and % sets of letters: expected one for each', cardinality(p_partitions),
            cardinality(p_letters) using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.check_between('a partition', l.partition, 0, 2147483647), sharequeue_internal.check_offsets(l.letters)
    from unnest(p_partitions, p_letters) as l (partition, letters);
    for v_wanted in
        select l.partition, range_agg(l.letters) as letters from unnest(p_partitions, p_letters) as l (partition, letters)
        group by l.partition order by l.partition
    loop
        insert into sharequeue.redriven (dead_letter_topic, topic_id, partition) values (p_topic, p_topic_id, v_wanted.partition)
        on conflict on constraint redriven_pkey do nothing;
        select v_wanted.letters - r.offsets - r.discarded into v_new from sharequeue.redriven r
        where r.dead_letter_topic = p_topic and r.topic_id = p_topic_id and r.partition = v_wanted.partition for update;
        -- A statement of its own, after the lock: the batch may have been opened while this one waited.
        select v_new - coalesce(range_agg(b.offsets), '{}') into v_new from sharequeue.redrive_batches b
        where b.dead_letter_topic = p_topic and b.topic_id = p_topic_id and b.partition = v_wanted.partition
            and b.sent_at is null;
        continue when isempty(v_new);
        update sharequeue.redriven r set discarded = r.discarded + v_new
        where r.dead_letter_topic = p_topic and r.topic_id = p_topic_id and r.partition = v_wanted.partition;
        v_offsets := v_offsets || jsonb_build_object(v_wanted.partition, v_new::text);
        v_discarded := v_discarded + sharequeue.records(v_new);
    end loop;
    if v_discarded > 0 then
        perform sharequeue_internal.audit('discard_letters', p_selection ->> 'group_id', null, jsonb_build_object(
            'dead_letter_topic', p_topic, 'topic_id', p_topic_id, 'selection', jsonb_strip_nulls(p_selection),
            'letters', v_discarded, 'offsets', v_offsets));
    end if;
    return v_discarded;
end
$$;

-- Returns topics with records that were redriven for another group only: a reader of this group skips those records.
create or replace function sharequeue.topics_redriven_for_others(p_group_id text) returns setof text
language sql stable set search_path = pg_catalog as $$
    select distinct t.topic from sharequeue.redrives r cross join unnest(r.target_topics) as t (topic)
    where r.only_group is not null and r.only_group <> p_group_id
$$;

-- Returns the share groups that get the records of these topics: those with a share-partition of one of them.
create or replace function sharequeue.groups_of_topics(p_topics text[]) returns table (group_id text, topic text)
language sql stable set search_path = pg_catalog as $$
    select distinct sp.group_id, sp.topic from sharequeue.share_partitions sp where sp.topic = any (p_topics)
$$;
