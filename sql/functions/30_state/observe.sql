-- Records the broker's current data about the log (R-LS): its start, its end, its last stable offset. A log start past
-- SPSO moves SPSO. Records that were not processed are counted as lost. Leases keep their records until they are
-- acknowledged or lapse; these records are counted as lost too, until the holder accepts them. Dead letters that are
-- being written are still written. The same topic name with another id is another topic: nothing moves, and nothing
-- is leased until an operator resets the offsets. An observation of the old topic id changes nothing, also after the
-- offsets were reset to the new topic.
create or replace function sharequeue.observe(
    p_group_id text, p_topic text, p_partition integer, p_topic_id text,
    p_log_start bigint, p_log_end bigint, p_last_stable_offset bigint
) returns text
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_sp sharequeue.share_partitions;
begin
    perform sharequeue_internal.authorise_topics(p_group_id, 'READ', array[p_topic]);
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the topic', p_topic),
        sharequeue_internal.check_present('the partition', p_partition);
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
    set log_start = p_log_start, log_end = p_log_end,
        last_stable_offset = least(p_last_stable_offset, p_log_end),
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
    perform sharequeue_internal.advance_spso(v_id);
end
$$;
