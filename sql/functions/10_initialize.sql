-- A share-partition comes to life (R-IN): its start offset is known, nothing is in flight. Doing it again with a
-- state epoch not higher than the present one changes nothing.
create or replace function sharequeue.initialize(
    p_group_id text, p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint, p_state_epoch integer
) returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
begin
    insert into sharequeue.share_partitions
        (group_id, topic, partition, topic_id, state_epoch, spso, speo, log_end, last_stable_offset)
    values (p_group_id, p_topic, p_partition, p_topic_id, p_state_epoch, p_start_offset, p_start_offset,
        p_start_offset, p_start_offset)
    on conflict on constraint share_partitions_name do nothing;
    return found;
end
$$;

-- What the broker said of the log (R-LS): its start, its end, its last stable offset, seen now. A log start past SPSO
-- moves SPSO: records nobody had processed are counted as lost, leases keep what they hold until they answer or
-- lapse, dead letters on their way stay on it. The same topic name under another id is another topic: nothing moves,
-- and leasing stops until somebody decides.
create or replace function sharequeue.observe(
    p_group_id text, p_topic text, p_partition integer, p_topic_id text,
    p_log_start bigint, p_log_end bigint, p_last_stable_offset bigint
) returns text
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_sp sharequeue.share_partitions;
    v_gone int8multirange := int8multirange(int8range(null, p_log_start));
    v_lost bigint;
begin
    select * into v_sp from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for update;
    if not found then
        return null;
    end if;
    if v_sp.topic_id <> p_topic_id then
        update sharequeue.share_partitions set status = 'topic_recreated', observed_at = sharequeue.clock()
        where share_partition_id = v_sp.share_partition_id;
        return 'topic_recreated';
    end if;
    if p_log_start > v_sp.spso then
        select coalesce(sum(sharequeue.records(offsets * v_gone)), 0) + greatest(0, p_log_start - v_sp.speo)
        into v_lost
        from sharequeue.in_flight
        where share_partition_id = v_sp.share_partition_id and state = 0 and offsets && v_gone;
        delete from sharequeue.in_flight
        where share_partition_id = v_sp.share_partition_id and state in (0, 2, 4) and offsets <@ v_gone;
        update sharequeue.in_flight set offsets = offsets - v_gone
        where share_partition_id = v_sp.share_partition_id and state in (0, 2, 4) and offsets && v_gone;
        update sharequeue.share_partitions
        set spso = p_log_start, speo = greatest(speo, p_log_start), lost_records = lost_records + v_lost
        where share_partition_id = v_sp.share_partition_id;
        perform sharequeue.advance_spso(v_sp.share_partition_id);
    end if;
    update sharequeue.share_partitions
    set log_start = p_log_start, log_end = p_log_end, last_stable_offset = p_last_stable_offset,
        status = 'active', observed_at = sharequeue.clock()
    where share_partition_id = v_sp.share_partition_id;
    return 'active';
end
$$;
