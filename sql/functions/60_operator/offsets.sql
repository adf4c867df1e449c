-- Administrative changes of the state (R-AD): reset offsets, delete them, delete a group, pause and resume. Each act is
-- written to the audit log, in the same transaction. A refusal of the whole act raises, as SQLSTATE SQ and Kafka's number.

-- Locks the group's row against new members, unless it has members (NON_EMPTY_GROUP). Returns whether the group exists.
create or replace function sharequeue_internal.lock_empty_group(p_group_id text) returns boolean
language plpgsql volatile as $$
declare
    v_members bigint;
begin
    if not sharequeue_internal.lock_group(p_group_id) then
        return false;
    end if;
    select count(*) into v_members from sharequeue.members where group_id = p_group_id;
    if v_members > 0 then
        raise exception 'group % has % members: stop them, or wait until their sessions have expired', p_group_id,
            v_members using errcode = 'SQ068';
    end if;
    return true;
end
$$;

-- Refuses an id that the topic no longer has (UNKNOWN_TOPIC_ID): offsets were reset to another one since, or the broker has
-- another one.
create or replace function sharequeue_internal.check_topic_id(p_sp sharequeue.share_partitions, p_topic_id text)
returns void
language plpgsql immutable as $$
begin
    if p_topic_id = any (p_sp.replaced_topic_ids)
            or (p_sp.status = 'topic_recreated' and p_topic_id = p_sp.topic_id) then
        raise exception 'topic % no longer has the id %: it was deleted and created again. Reset to its current id on the '
            'broker. If that is this id, first delete the group''s offsets of the topic', p_sp.topic, p_topic_id
            using errcode = 'SQ100';
    end if;
end
$$;

-- Resets a share-partition to an offset (R-EP-3): nothing is in flight afterwards, and the state epoch rises, so
-- that holders from before are fenced. Creates the share-partition if it is not initialised yet. Returns the new
-- state epoch.
create or replace function sharequeue.alter_offsets(
    p_group_id text, p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint,
    p_state_epoch integer default null
) returns integer
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_sp sharequeue.share_partitions;
    v_epoch integer;
begin
    perform sharequeue_internal.authorise_topics(p_group_id, 'READ', array[p_topic]);
    if p_state_epoch is not null then
        perform sharequeue_internal.check_between('the state epoch', p_state_epoch, 0, 2147483647);
    end if;
    perform sharequeue_internal.check_start(p_topic, p_partition, p_topic_id, p_start_offset);
    if not sharequeue_internal.lock_empty_group(p_group_id) then
        raise exception 'there is no share group %', p_group_id using errcode = 'SQ069';
    end if;
    v_epoch := coalesce(p_state_epoch, 1);
    if not sharequeue.initialize(p_group_id, p_topic, p_partition, p_topic_id, p_start_offset, v_epoch) then
        select * into v_sp from sharequeue.share_partitions
        where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
        perform sharequeue_internal.check_topic_id(v_sp, p_topic_id);
        delete from sharequeue.in_flight_batches where share_partition_id = v_sp.share_partition_id;
        delete from sharequeue.leases where share_partition_id = v_sp.share_partition_id;
        delete from sharequeue.open_key_records where share_partition_id = v_sp.share_partition_id;
        perform sharequeue_internal.forget_kept(v_sp.share_partition_id);
        delete from sharequeue.circuit_breakers where share_partition_id = v_sp.share_partition_id;
        perform sharequeue_internal.forget_attempts(v_sp.share_partition_id, 9223372036854775807);
        delete from sharequeue.held_dead_letters where share_partition_id = v_sp.share_partition_id;
        delete from sharequeue.truncated_logs where share_partition_id = v_sp.share_partition_id;
        delete from sharequeue.dead_letter_batches
        where share_partition_id = v_sp.share_partition_id and written_at is null;
        update sharequeue.share_partitions
        set spso = p_start_offset, speo = p_start_offset, delivery_complete_count = 0, redeliverable = false,
            next_expiry = null, advance_due = false, topic_id = p_topic_id, status = 'active',
            replaced_topic_ids = case when topic_id = p_topic_id then replaced_topic_ids
                else (topic_id || replaced_topic_ids)[:100] end,
            log_end = case when topic_id = p_topic_id then log_end else p_start_offset end,
            last_stable_offset = case when topic_id = p_topic_id then last_stable_offset else p_start_offset end,
            state_epoch = greatest(sharequeue_internal.next_epoch(
                format('Share-partition %s-%s of group %s', p_topic, p_partition, p_group_id), v_sp.state_epoch), p_state_epoch)
        where share_partition_id = v_sp.share_partition_id
        returning state_epoch into v_epoch;
    end if;
    perform sharequeue_internal.audit('alter_offsets', p_group_id,
        case when v_sp.spso is not null then jsonb_build_object('topic', p_topic, 'partition', p_partition,
            'topic_id', v_sp.topic_id, 'start_offset', v_sp.spso, 'state_epoch', v_sp.state_epoch) end,
        jsonb_build_object('topic', p_topic, 'partition', p_partition, 'topic_id', p_topic_id,
            'start_offset', p_start_offset, 'state_epoch', v_epoch));
    return v_epoch;
end
$$;

-- Raises the epoch of a group without members, and creates the group if it does not exist. The new epoch has nothing to assign.
create or replace function sharequeue_internal.next_epoch_of_empty_group(p_group_id text) returns integer
language plpgsql volatile as $$
declare
    v_epoch integer;
begin
    loop
        insert into sharequeue.share_groups (group_id, group_epoch) values (p_group_id, 0)
        on conflict on constraint share_groups_pkey do nothing;
        -- Meanwhile another call may have created and joined it, or deleted it.
        exit when sharequeue_internal.lock_empty_group(p_group_id);
    end loop;
    select sharequeue_internal.next_epoch('Group ' || g.group_id, g.group_epoch) into v_epoch
    from sharequeue.share_groups g where g.group_id = p_group_id;
    update sharequeue.share_groups set group_epoch = v_epoch, assignment_epoch = v_epoch where group_id = p_group_id;
    return v_epoch;
end
$$;

-- Kafka's AlterShareGroupOffsets: many share-partitions at once, the group is created if it does not exist, and its
-- epoch is raised. An error of one partition does not stop the others. Without p_execute it only returns what it
-- would do.
create or replace function sharequeue.reset_offsets(
    p_group_id text, p_topics text[], p_partitions integer[], p_topic_ids text[], p_start_offsets bigint[],
    p_execute boolean
) returns setof sharequeue.reset
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_epoch integer;
    v_named record;
    v_row sharequeue.reset;
begin
    perform sharequeue_internal.authorise_topics(p_group_id, 'READ', p_topics);
    perform sharequeue_internal.check_group_id(p_group_id);
    if p_topics is null or p_execute is null
            or (cardinality(p_partitions), cardinality(p_topic_ids), cardinality(p_start_offsets))
            is distinct from (cardinality(p_topics), cardinality(p_topics), cardinality(p_topics)) then
        raise exception 'the arrays are not valid: expected a topic, a partition, a topic id and a start offset for each share-partition'
            using errcode = 'SQ042';
    end if;
    select n.topic, n.partition into v_named from unnest(p_topics, p_partitions) as n (topic, partition)
    group by n.topic, n.partition having count(*) > 1 order by n.topic, n.partition limit 1;
    if found then
        raise exception 'partition % of topic % is named twice: give it one start offset', v_named.partition, v_named.topic
            using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.lock_empty_group(p_group_id);
    if p_execute then
        -- Before the first check, so that a refused share-partition cannot change meanwhile.
        perform sharequeue_internal.lock_in_order(array[p_group_id], false, true);
    end if;
    -- In the order of ids, as in every call that locks several share-partitions.
    for v_named in
        select n.topic, n.partition, n.topic_id, n.start_offset, n.number, sp
        from unnest(p_topics, p_partitions, p_topic_ids, p_start_offsets) with ordinality
            as n (topic, partition, topic_id, start_offset, number)
        left join sharequeue.share_partitions sp
            on sp.group_id = p_group_id and sp.topic = n.topic and sp.partition = n.partition
        order by sp.share_partition_id, n.number
    loop
        v_row := row(0, null, v_named.topic, v_named.partition, (v_named.sp).spso, v_named.start_offset, null);
        begin
            perform sharequeue_internal.check_start(v_named.topic, v_named.partition, v_named.topic_id, v_named.start_offset);
            perform sharequeue_internal.check_topic_id(v_named.sp, v_named.topic_id);
        exception when sqlstate 'SQ042' or sqlstate 'SQ100' then
            v_row.error_code := right(sqlstate, 3);
            v_row.error_message := sqlerrm;
        end;
        if v_row.error_code = 0 and p_execute then
            if v_epoch is null then
                v_epoch := sharequeue_internal.next_epoch_of_empty_group(p_group_id);
            end if;
            v_row.state_epoch := sharequeue.alter_offsets(p_group_id, v_named.topic, v_named.partition,
                v_named.topic_id, v_named.start_offset, v_epoch);
        end if;
        return next v_row;
    end loop;
end
$$;

-- Deletes share-partitions with all dependent rows, one after the other in the order of the ids, in which they are locked, so
-- that the dependent rows are locked in that order too.
create or replace function sharequeue_internal.delete_share_partitions(p_ids bigint[]) returns void
language plpgsql volatile as $$
declare
    v_id bigint;
begin
    foreach v_id in array p_ids loop
        delete from sharequeue.share_partitions where share_partition_id = v_id;
    end loop;
end
$$;

-- Deletes a group's share-partitions of a topic. Returns their number.
create or replace function sharequeue.delete_offsets(p_group_id text, p_topic text) returns integer
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_ids bigint[];
    v_deleted jsonb;
begin
    perform sharequeue_internal.authorise_topics(p_group_id, 'DELETE', array[p_topic]);
    perform sharequeue_internal.check_present('the topic', p_topic);
    if not sharequeue_internal.lock_empty_group(p_group_id) then
        raise exception 'there is no share group %', p_group_id using errcode = 'SQ069';
    end if;
    v_ids := sharequeue_internal.lock_in_order(array[p_group_id], false, true, p_topic);
    select coalesce(jsonb_agg(jsonb_build_object('topic', p_topic, 'partition', partition, 'start_offset', spso,
        'state_epoch', state_epoch) order by partition), '[]')
    into v_deleted from sharequeue.share_partitions where share_partition_id = any (v_ids);
    perform sharequeue_internal.delete_share_partitions(v_ids);
    if v_deleted <> '[]' then
        perform sharequeue_internal.audit('delete_offsets', p_group_id, v_deleted, null);
    end if;
    return jsonb_array_length(v_deleted);
end
$$;
