-- Records the broker's current data about logs (R-LS): their start, their end, their last stable offset. A log start past
-- SPSO moves SPSO. Records that were not processed are counted as lost. Leases keep their records until they are
-- acknowledged or lapse; these records are counted as lost too, until the holder accepts them. Dead letters that are
-- being written are still written. The same topic name with another id is another topic: nothing moves, and nothing
-- is leased until an operator resets the offsets. An observation of the old topic id changes nothing, also after the
-- offsets were reset to the new topic.
--
-- Returns the status of each share-partition, null if it is not initialised. A row is written only if its data have changed. If
-- nothing has changed and the call names every share-partition of the group's topic, one row of observations is written. If it
-- names only some of them, as a worker does, an unchanged row is written once in ten seconds.
create or replace function sharequeue.observe_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_topic_ids text[], p_log_starts bigint[],
    p_log_ends bigint[], p_last_stable_offsets bigint[]
) returns setof sharequeue.observed_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_at timestamptz;
    v_new record;
    v_whole text[];
    v_ids bigint[];
    v_short boolean;
    v_written bigint;
begin
    perform sharequeue_internal.authorise_topics(p_group_id, 'READ', p_topics);
    perform sharequeue_internal.check_present('the group id', p_group_id);
    perform sharequeue_internal.check_many(10000, p_topics, p_partitions, coalesce(cardinality(p_topic_ids), 0),
        coalesce(cardinality(p_log_starts), 0), coalesce(cardinality(p_log_ends), 0),
        coalesce(cardinality(p_last_stable_offsets), 0));
    -- The broker was asked for the three at three moments. The last stable offset lies between the start and the end: past the
    -- end, a read_committed reader would lease records that nobody has seen.
    p_last_stable_offsets := array(
        select case when n.stable >= 0 then least(greatest(n.stable, n.log_start), n.log_end) else n.stable end
        from unnest(p_log_starts, p_log_ends, p_last_stable_offsets) with ordinality
            as n (log_start, log_end, stable, place)
        order by n.place);
    v_at := sharequeue.clock();
    v_whole := array(
        select sp.topic from sharequeue.share_partitions sp
        left join unnest(p_topics, p_partitions) as n (topic, partition)
            on n.topic = sp.topic and n.partition = sp.partition
        where sp.group_id = p_group_id and sp.topic = any (p_topics)
        group by sp.topic having bool_and(n.topic is not null) order by sp.topic);
    -- Rows that must be written, by id, and whether one of their logs ended below delivered records. The call does not wait for the
    -- others.
    select coalesce(array_agg(due.share_partition_id), '{}'), coalesce(bool_or(due.short), false) into v_ids, v_short
    from (
        select sp.share_partition_id, sp.log_end < sp.speo as short
        from sharequeue.share_partitions sp
        join unnest(p_topics, p_partitions, p_topic_ids, p_log_starts, p_log_ends, p_last_stable_offsets)
            as n (topic, partition, topic_id, log_start, log_end, stable) using (topic, partition)
        where sp.group_id = p_group_id and not (sp.status = 'topic_recreated' and sp.topic_id <> n.topic_id)
            and ((sp.log_start, sp.log_end, sp.last_stable_offset, sp.topic_id, sp.status)
                    is distinct from (n.log_start, n.log_end, n.stable, n.topic_id, 'active')
                or sp.observed_at is null or sharequeue_internal.is_ahead(sp.observed_at, v_at) or n.log_start > sp.spso
                or (sp.topic <> all (v_whole) and greatest(sp.observed_at, (
                    select o.observed_at from sharequeue.observations o
                    where o.group_id = p_group_id and o.topic = sp.topic)) not between v_at - interval '10 seconds' and v_at + interval '1 second'))
        order by sp.share_partition_id for no key update of sp) as due;
    -- Almost always only the end of the log has moved: one statement. observe_log handles log starts that move SPSO, topics that
    -- were created again, and invalid logs.
    for v_new in
        with moved as (
            update sharequeue.share_partitions sp
            set log_start = n.log_start, log_end = n.log_end, last_stable_offset = n.stable, observed_at = v_at
            from unnest(p_topics, p_partitions, p_topic_ids, p_log_starts, p_log_ends, p_last_stable_offsets)
                as n (topic, partition, topic_id, log_start, log_end, stable)
            where sp.share_partition_id = any (v_ids) and sp.topic = n.topic and sp.partition = n.partition
                and sp.status = 'active' and sp.topic_id = n.topic_id and n.log_start between 0 and sp.spso
                and n.log_end >= n.log_start and n.stable >= 0
            returning sp.share_partition_id
        )
        select n.*, sp.status, sp.share_partition_id in (select share_partition_id from moved)
            or (coalesce(sp.share_partition_id, 0) <> all (v_ids) and n.log_end >= n.log_start and n.log_start >= 0
                and n.stable >= 0) as done, n.log_end < sp.speo as short
        from unnest(p_topics, p_partitions, p_topic_ids, p_log_starts, p_log_ends, p_last_stable_offsets)
            as n (topic, partition, topic_id, log_start, log_end, stable)
        left join sharequeue.share_partitions sp
            on sp.group_id = p_group_id and sp.topic = n.topic and sp.partition = n.partition
        order by sp.share_partition_id
    loop
        v_short := v_short or coalesce(v_new.short, false);
        if not coalesce(v_new.done, false) then
            v_new.status := sharequeue_internal.observe_log(p_group_id, v_new.topic, v_new.partition, v_new.topic_id,
                v_new.log_start, v_new.log_end, v_new.stable);
        end if;
        return next row(v_new.topic, v_new.partition, v_new.status)::sharequeue.observed_of;
    end loop;
    if v_short then
        perform sharequeue_internal.remember_truncation(v_ids, v_at);
    end if;
    update sharequeue.observations o set observed_at = v_at
    from (
        select k.topic from sharequeue.observations k
        where k.group_id = p_group_id and k.topic = any (v_whole)
            and (k.observed_at < v_at or sharequeue_internal.is_ahead(k.observed_at, v_at))
        order by k.topic for no key update of k) as due
    where o.group_id = p_group_id and o.topic = due.topic;
    get diagnostics v_written = row_count;
    if v_written < cardinality(v_whole) then
        -- A new row refers to the group, which another call may have deleted since.
        insert into sharequeue.observations as o (group_id, topic, observed_at)
        select g.group_id, w.topic, v_at from unnest(v_whole) as w (topic)
        join (select k.group_id from sharequeue.share_groups k where k.group_id = p_group_id for key share of k) as g on true
        order by w.topic
        on conflict on constraint observations_pkey do update set observed_at = excluded.observed_at
        where o.observed_at < excluded.observed_at or sharequeue_internal.is_ahead(o.observed_at, v_at);
    end if;
end
$$;

-- Remembers which logs end below delivered records. A worker's older answer of the broker may replace a newer one until the next
-- look, seconds later: a log that is long enough again within ten seconds is forgotten.
create or replace function sharequeue_internal.remember_truncation(p_ids bigint[], p_at timestamptz) returns void
language plpgsql volatile as $$
begin
    insert into sharequeue.truncated_logs as t (share_partition_id, log_end, delivered, truncated_at)
    select share_partition_id, log_end, speo, p_at from sharequeue.share_partitions
    where share_partition_id = any (p_ids) and status = 'active' and log_end < speo order by share_partition_id
    on conflict on constraint truncated_logs_pkey do update set log_end = excluded.log_end
    where t.log_end > excluded.log_end;
    delete from sharequeue.truncated_logs t using sharequeue.share_partitions sp
    where t.share_partition_id = any (p_ids) and sp.share_partition_id = t.share_partition_id and sp.log_end >= sp.speo
        and t.truncated_at between p_at - interval '10 seconds' and p_at;
end
$$;

-- Records the data about one log, whatever they are.
create or replace function sharequeue_internal.observe_log(
    p_group_id text, p_topic text, p_partition integer, p_topic_id text,
    p_log_start bigint, p_log_end bigint, p_last_stable_offset bigint
) returns text
language plpgsql volatile as $$
declare
    v_sp sharequeue.share_partitions;
begin
    perform sharequeue_internal.check_name('the topic id', p_topic_id);
    if not coalesce(p_topic_id is not null and p_log_start >= 0 and p_last_stable_offset >= 0
            and p_log_end between p_log_start and 9223372036854775807, false) then
        raise exception 'the log is not valid (start %, last stable offset %, end %, topic id %): expected offsets of 0 or more, and an '
            'end at or after the start', p_log_start, p_last_stable_offset, p_log_end, p_topic_id using errcode = 'SQ042';
    end if;
    select * into v_sp from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    if not found then
        return null;
    end if;
    if p_topic_id = any (v_sp.replaced_topic_ids) or (v_sp.status = 'topic_recreated' and p_topic_id = v_sp.topic_id) then
        return v_sp.status;
    elsif v_sp.topic_id <> p_topic_id then
        update sharequeue.share_partitions set status = 'topic_recreated', observed_at = sharequeue.clock()
        where share_partition_id = v_sp.share_partition_id;
        return 'topic_recreated';
    end if;
    if p_log_start > v_sp.spso then
        perform sharequeue_internal.advance_log_start(v_sp, p_log_start);
    end if;
    update sharequeue.share_partitions
    set log_start = p_log_start, log_end = p_log_end, last_stable_offset = p_last_stable_offset,
        observed_at = sharequeue.clock()
    where share_partition_id = v_sp.share_partition_id;
    return 'active';
end
$$;

-- Moves SPSO to a log start past it. Finished and unprocessed records below it are removed. Leased records stay with their
-- holder, but only those that it accepts still count. SPSO also passes finished records after the log start.
create or replace function sharequeue_internal.advance_log_start(p_sp sharequeue.share_partitions, p_log_start bigint)
returns void
language plpgsql volatile as $$
declare
    v_id bigint := p_sp.share_partition_id;
    v_gone int8multirange := int8multirange(int8range(null, p_log_start));
    v_part record;
    v_lost bigint := 0;
    v_passed bigint := 0;
begin
    for v_part in
        select first_offset, last_offset, part, state,
            sharequeue_internal.offsets_of(first_offset, last_offset, offsets) * v_gone as offsets
        from sharequeue.in_flight_batches
        where share_partition_id = v_id and first_offset < p_log_start and state <> 3
            and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) && v_gone
    loop
        if v_part.state = 1 then
            -- Only once: below SPSO are the records that an earlier log start has passed.
            v_lost := v_lost + sharequeue.records(v_part.offsets * int8multirange(int8range(p_sp.spso, null)));
            continue;
        elsif v_part.state = 0 then
            v_lost := v_lost + sharequeue.records(v_part.offsets);
        else
            v_passed := v_passed + sharequeue.records(
                v_part.offsets * int8multirange(int8range(p_sp.spso, null)));
        end if;
        perform sharequeue_internal.take(v_id, v_part.first_offset, v_part.part, v_part.offsets);
    end loop;
    update sharequeue.share_partitions
    set spso = p_log_start, speo = greatest(speo, p_log_start),
        lost_records = lost_records + v_lost + greatest(0, p_log_start - speo),
        delivery_complete_count = delivery_complete_count - v_passed
    where share_partition_id = v_id;
    if p_sp.open_key_records > 0 then
        perform sharequeue_internal.keys_below(v_id, p_log_start, sharequeue.clock());
    end if;
    perform sharequeue_internal.advance_spso(v_id);
end
$$;
