-- The two phases of a dead letter (KIP-1191) as batches with a number, so that it is written to its topic exactly once.

-- Returns the batch to write next: the open one if there is one, else a new one with the lowest ARCHIVING offsets and the next
-- number; is_new is true for that one, of which nothing can be in the dead-letter topic yet. One row per cause and delivery count,
-- each with the failed deliveries of the whole batch (attempts_at); no row if nothing waits.
create or replace function sharequeue.open_dead_letters(
    p_group_id text, p_topic text, p_partition integer, p_max_records bigint
) returns table (sequence bigint, opened_at timestamptz, topic_id text, cause text, delivery_count smallint, offsets int8multirange,
    attempts jsonb, is_new boolean)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_sp sharequeue.share_partitions;
    v_taken int8multirange;
    v_is_new boolean;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the topic', p_topic),
        sharequeue_internal.check_present('the partition', p_partition);
    perform sharequeue_internal.check_between('the number of records', p_max_records, 1, 4611686018427387904);
    select * into v_sp from sharequeue.share_partitions sp
    where sp.group_id = p_group_id and sp.topic = p_topic and sp.partition = p_partition for update;
    v_is_new := not exists (
        select from sharequeue.dead_letter_batches b
        where b.share_partition_id = v_sp.share_partition_id and b.written_at is null);
    if v_is_new then
        select sharequeue_internal.first_records(
            range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)), p_max_records) into v_taken
        from sharequeue.in_flight_batches f where f.share_partition_id = v_sp.share_partition_id and f.state = 3;
        if v_taken is null or isempty(v_taken) then
            return;
        end if;
        update sharequeue.share_partitions set dead_letter_sequence = dead_letter_sequence + 1
        where share_partition_id = v_sp.share_partition_id
        returning dead_letter_sequence into v_sp.dead_letter_sequence;
        insert into sharequeue.dead_letter_batches (share_partition_id, sequence, opened_at)
        values (v_sp.share_partition_id, v_sp.dead_letter_sequence, sharequeue.clock());
        insert into sharequeue.dead_letter_runs (share_partition_id, sequence, cause, delivery_count, offsets)
        select v_sp.share_partition_id, v_sp.dead_letter_sequence, f.cause, f.delivery_count,
            range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)) * v_taken
        from sharequeue.in_flight_batches f
        where f.share_partition_id = v_sp.share_partition_id and f.state = 3
            and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) && v_taken
        group by f.cause, f.delivery_count;
    end if;
    return query
        with batch as materialized (
            select r.sequence, b.opened_at, r.cause, r.delivery_count, r.offsets
            from sharequeue.dead_letter_runs r
            join sharequeue.dead_letter_batches b using (share_partition_id, sequence)
            where b.share_partition_id = v_sp.share_partition_id and b.written_at is null)
        select b.sequence, b.opened_at, v_sp.topic_id, b.cause, b.delivery_count, b.offsets,
            (select sharequeue_internal.attempts_at(v_sp.share_partition_id, range_agg(a.offsets)) from batch a), v_is_new
        from batch b order by b.cause, b.delivery_count;
end
$$;

-- Closes a batch that the broker has confirmed: ARCHIVING becomes ARCHIVED and SPSO may pass. Returns the number of
-- records; 0 if the batch is not open (it was closed before). p_keys, only for groups that are ordered by key and whose dead
-- letters hold their keys, has the keys of the batch's records, as those of one lease in acknowledge_many. With p_opened_at only a
-- batch is closed that was opened then: after its offsets were deleted, a share-partition numbers its batches from 1 on again.
create or replace function sharequeue.close_dead_letters(
    p_group_id text, p_topic text, p_partition integer, p_sequence bigint, p_dropped boolean default false,
    p_keys jsonb default null, p_opened_at timestamptz default null
) returns bigint
language plpgsql volatile set search_path = pg_catalog set enable_seqscan = off as $$
declare
    v_sp sharequeue.share_partitions;
    v_run record;
    v_part record;
    v_records bigint;
    v_closed bigint := 0;
    v_completed bigint := 0;
    v_offsets int8multirange := '{}';
    v_before record;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the topic', p_topic),
        sharequeue_internal.check_present('the partition', p_partition);
    perform sharequeue_internal.check_present('the sequence', p_sequence), sharequeue_internal.check_present('p_dropped', p_dropped);
    select * into v_sp from sharequeue.share_partitions sp
    where sp.group_id = p_group_id and sp.topic = p_topic and sp.partition = p_partition for update;
    update sharequeue.dead_letter_batches set written_at = sharequeue.clock(), dropped = p_dropped
    where share_partition_id = v_sp.share_partition_id and sequence = p_sequence and written_at is null
        and opened_at = coalesce(p_opened_at, opened_at);
    if not found then
        return 0;
    end if;
    delete from sharequeue.held_dead_letters where share_partition_id = v_sp.share_partition_id;
    for v_run in
        select * from sharequeue.dead_letter_runs
        where share_partition_id = v_sp.share_partition_id and sequence = p_sequence
    loop
        for v_part in
            select first_offset, last_offset, part,
                sharequeue_internal.offsets_of(first_offset, last_offset, offsets) * v_run.offsets as offsets
            from sharequeue.in_flight_batches
            where share_partition_id = v_sp.share_partition_id and state = 3 and first_offset < upper(v_run.offsets)
                and cause = v_run.cause and delivery_count = v_run.delivery_count
                and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) && v_run.offsets
        loop
            perform sharequeue_internal.take(
                v_sp.share_partition_id, v_part.first_offset, v_part.part, v_part.offsets);
            v_part.offsets := v_part.offsets * int8multirange(int8range(v_sp.spso, null));
            perform sharequeue_internal.place(v_sp.share_partition_id, v_part.first_offset, v_part.last_offset, 4::smallint,
                v_run.delivery_count, v_part.offsets, null, v_run.cause);
            perform sharequeue_internal.join_terminal(v_sp.share_partition_id, v_part.first_offset, v_part.first_offset);
            v_completed := v_completed + sharequeue.records(v_part.offsets);
        end loop;
        v_records := sharequeue.records(v_run.offsets);
        perform sharequeue_internal.count_outcome(v_sp.share_partition_id, v_run.cause, v_run.delivery_count, v_records);
        v_closed := v_closed + v_records;
        v_offsets := v_offsets + v_run.offsets;
    end loop;
    if v_sp.open_key_records > 0 or p_keys is not null then
        perform sharequeue_internal.keep_letters(
            v_sp, p_sequence, v_offsets, sharequeue_internal.keys_of(p_keys), p_dropped, sharequeue.clock());
    end if;
    -- The last total is stored, so that no query has to read all batches for it.
    select coalesce(max(total_letters), 0) as letters, coalesce(max(total_dropped), 0) as dropped into v_before
    from (
        select total_letters, total_dropped from sharequeue.dead_letter_batches
        where share_partition_id = v_sp.share_partition_id and sequence < p_sequence
        order by sequence desc limit 1
    ) as b;
    update sharequeue.dead_letter_batches
    set total_letters = v_before.letters + case when p_dropped then 0 else v_closed end,
        total_dropped = v_before.dropped + case when p_dropped then v_closed else 0 end
    where share_partition_id = v_sp.share_partition_id and sequence = p_sequence;
    perform sharequeue_internal.advance_spso(v_sp.share_partition_id, v_completed);
    perform sharequeue_internal.forget_attempts(share_partition_id, spso) from sharequeue.share_partitions
    where share_partition_id = v_sp.share_partition_id;
    return v_closed;
end
$$;

-- Records why the waiting dead letters could not be written; null removes the reason. It stays until a batch is
-- closed.
create or replace function sharequeue.hold_dead_letters(
    p_group_id text, p_topic text, p_partition integer, p_reason text
) returns void
language plpgsql volatile set search_path = pg_catalog set enable_seqscan = off as $$
declare
    v_id bigint;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the topic', p_topic),
        sharequeue_internal.check_present('the partition', p_partition);
    if p_reason is not null then
        perform sharequeue_internal.check_text('the reason', p_reason, 10000);
    end if;
    select share_partition_id into v_id from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    if p_reason is null then
        delete from sharequeue.held_dead_letters where share_partition_id = v_id;
    elsif v_id is not null then
        insert into sharequeue.held_dead_letters as h (share_partition_id, reason, since)
        values (v_id, p_reason, sharequeue.clock())
        on conflict on constraint held_dead_letters_pkey do update set reason = excluded.reason;
    end if;
end
$$;
