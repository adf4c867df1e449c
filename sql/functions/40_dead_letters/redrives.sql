-- Sends dead letters back in numbered batches, so that each is sent once, also if a process dies.

-- Records that the role that is logged in requests a redrive, before anything of it is sent. Returns its id. p_selection
-- chooses the letters, by the names of the columns of sharequeue.redrives; a condition that is absent holds for all.
create or replace function sharequeue.begin_redrive(
    p_topic text, p_topic_id text, p_target_topic text, p_only_group text, p_target_topics text[], p_by_key boolean,
    p_selection jsonb
) returns uuid
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_redrive_id constant uuid := gen_random_uuid();
    v_unknown text;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_name('the topic', p_topic), sharequeue_internal.check_name('the topic id', p_topic_id),
        sharequeue_internal.check_present('the target topics', p_target_topics),
        sharequeue_internal.check_present('p_by_key', p_by_key);
    perform sharequeue_internal.check_name('a target topic', t.name) from unnest(p_target_topics) as t (name);
    if p_target_topic is not null then
        perform sharequeue_internal.check_name('the target topic', p_target_topic);
    end if;
    if p_only_group is not null then
        perform sharequeue_internal.check_group_id(p_only_group);
    end if;
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
    insert into sharequeue.redrives (
        redrive_id, dead_letter_topic, topic_id, target_topic, only_group, target_topics, by_key, requested_at, requested_by,
        cause, since, until, group_id, source_topic, source_partition, header_name, header_value, offsets)
    select v_redrive_id, p_topic, p_topic_id, p_target_topic, p_only_group, p_target_topics, p_by_key, sharequeue.clock(),
        session_user, s.*
    from jsonb_to_record(p_selection) as s (
        cause text, since timestamptz, until timestamptz, group_id text, source_topic text, source_partition integer,
        header_name text, header_value text, offsets jsonb);
    return v_redrive_id;
end
$$;

-- Records that everything that was requested is done.
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
-- that were never sent. No row if none is left. A caller that needs another order requests a few at a time.
create or replace function sharequeue.open_redrive(
    p_topic text, p_topic_id text, p_partition integer, p_redrive_id uuid, p_wanted int8multirange, p_max_records bigint
) returns table (
    sequence bigint, redrive_id uuid, target_topic text, only_group text, by_key boolean, offsets int8multirange
)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_redriven sharequeue.redriven;
    v_taken int8multirange;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_name('the topic', p_topic), sharequeue_internal.check_name('the topic id', p_topic_id),
        sharequeue_internal.check_between('the partition', p_partition, 0, 2147483647);
    perform sharequeue_internal.check_offsets(p_wanted), sharequeue_internal.check_between('the number of letters', p_max_records, 1,
        4611686018427387904);
    if not exists (select from sharequeue.redrives r where r.redrive_id = p_redrive_id) then
        raise exception 'there is no redrive %', p_redrive_id using errcode = 'SQ042';
    end if;
    insert into sharequeue.redriven (dead_letter_topic, topic_id, partition) values (p_topic, p_topic_id, p_partition)
    on conflict on constraint redriven_pkey do nothing;
    select r.* into v_redriven from sharequeue.redriven r
    where r.dead_letter_topic = p_topic and r.topic_id = p_topic_id and r.partition = p_partition for update;
    if not exists (select from sharequeue.redrive_batches b where b.dead_letter_topic = p_topic
            and b.topic_id = p_topic_id and b.partition = p_partition and b.sent_at is null) then
        v_taken := sharequeue_internal.first_records(p_wanted - v_redriven.offsets, p_max_records);
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
        select b.sequence, b.redrive_id, r.target_topic, r.only_group, r.by_key, b.offsets
        from sharequeue.redrive_batches b join sharequeue.redrives r using (redrive_id)
        where b.dead_letter_topic = p_topic and b.topic_id = p_topic_id and b.partition = p_partition
            and b.sent_at is null;
end
$$;

-- Removes letters of the open batch that cannot be sent, because their source records are gone; the batch continues
-- with the rest.
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
