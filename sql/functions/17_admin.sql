-- What an administrator may do to the state: reset offsets, delete them, delete a group, pause and resume.

-- Resets a share-partition to an offset (R-EP-3): nothing is in flight afterwards, and the state epoch rises, so that
-- holders from before are fenced. Creates it where it is not initialised yet. Answers the new state epoch.
create or replace function sharequeue.alter_offsets(
    p_group_id text, p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint,
    p_state_epoch integer default null
) returns integer
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_sp sharequeue.share_partitions;
begin
    if p_start_offset is null or p_start_offset not between 0 and 9223372036854775806 then
        raise exception 'a start offset lies between 0 and 2^63 - 2, not at %', p_start_offset
            using errcode = 'invalid_parameter_value';
    end if;
    if sharequeue.initialize(p_group_id, p_topic, p_partition, p_topic_id, p_start_offset, coalesce(p_state_epoch, 1)) then
        return coalesce(p_state_epoch, 1);
    end if;
    select * into v_sp from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    delete from sharequeue.in_flight_batches where share_partition_id = v_sp.share_partition_id;
    delete from sharequeue.leases where share_partition_id = v_sp.share_partition_id;
    delete from sharequeue.dead_letter_batches
    where share_partition_id = v_sp.share_partition_id and written_at is null;
    update sharequeue.share_partitions
    set spso = p_start_offset, speo = p_start_offset, delivery_complete_count = 0, redeliverable = false,
        next_expiry = null, topic_id = p_topic_id, status = 'active',
        log_end = case when topic_id = p_topic_id then log_end else p_start_offset end,
        last_stable_offset = case when topic_id = p_topic_id then last_stable_offset else p_start_offset end,
        state_epoch = greatest(v_sp.state_epoch + 1, coalesce(p_state_epoch, 0))
    where share_partition_id = v_sp.share_partition_id
    returning state_epoch into v_sp.state_epoch;
    return v_sp.state_epoch;
end
$$;

-- Forgets a group's share-partitions of a topic; answers how many there were.
create or replace function sharequeue.delete_offsets(p_group_id text, p_topic text) returns integer
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_deleted integer;
begin
    delete from sharequeue.share_partitions where group_id = p_group_id and topic = p_topic;
    get diagnostics v_deleted = row_count;
    return v_deleted;
end
$$;

-- Deletes a group with all it has; answers whether there was one.
create or replace function sharequeue.delete_group(p_group_id text) returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
begin
    delete from sharequeue.share_groups where group_id = p_group_id;
    return found;
end
$$;

-- Stops leasing from a group, or from one of its share-partitions, for a reason that describe shows; what is leased may
-- still be answered. A null reason resumes.
create or replace function sharequeue.pause(
    p_group_id text, p_reason text, p_topic text default null, p_partition integer default null
) returns integer
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_paused integer;
begin
    if p_topic is null then
        update sharequeue.group_settings set paused_reason = p_reason where group_id = p_group_id;
    else
        update sharequeue.share_partitions set paused_reason = p_reason
        where group_id = p_group_id and topic = p_topic and (p_partition is null or partition = p_partition);
    end if;
    get diagnostics v_paused = row_count;
    return v_paused;
end
$$;

-- After a restore of the database from a backup: every holder from before is fenced, everything leased comes again.
create or replace function sharequeue.raise_state_epochs() returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_id bigint;
    v_lease_id bigint;
    v_completed bigint;
    v_raised bigint := 0;
begin
    for v_id in select share_partition_id from sharequeue.share_partitions order by share_partition_id for no key update
    loop
        v_completed := 0;
        for v_lease_id in select lease_id from sharequeue.leases where share_partition_id = v_id loop
            v_completed := v_completed + (select e.completed from sharequeue.end_unanswered(v_id, v_lease_id) as e);
        end loop;
        perform sharequeue.advance_spso(v_id, v_completed);
        update sharequeue.share_partitions set state_epoch = state_epoch + 1, next_expiry = null
        where share_partition_id = v_id;
        v_raised := v_raised + 1;
    end loop;
    return v_raised;
end
$$;
