-- Puts dead letters back in numbered batches, so that each is sent once, also when a process dies.

-- The batch to send next: the open one again if there is one, whoever opened it, else the lowest of the wanted letters
-- that were never sent. No row when none is left. A caller that wants them in another order asks for a few at a time.
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

-- Some letters of the open batch cannot be sent, because their originals are gone: it goes on with what is left.
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

-- The broker has confirmed the batch. Returns the number of letters; 0 when it was closed before.
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

-- Topics that have records put back for another group alone: a reader of this group passes over those records.
create or replace function sharequeue.topics_redriven_for_others(p_group_id text) returns setof text
language sql stable set search_path = pg_catalog as $$
    select distinct t.topic from sharequeue.redrives r cross join unnest(r.target_topics) as t (topic)
    where r.only_group is not null and r.only_group <> p_group_id
$$;

-- The share groups that get what is sent to these topics: those that have a share-partition of one.
create or replace function sharequeue.groups_of_topics(p_topics text[]) returns table (group_id text, topic text)
language sql stable set search_path = pg_catalog as $$
    select distinct sp.group_id, sp.topic from sharequeue.share_partitions sp where sp.topic = any (p_topics)
$$;
