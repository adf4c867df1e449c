-- Wakes the consumers that wait (LISTEN sharequeue): records of a group may be had that could not be had before. The
-- payload is the digest of the group's id, since every login may listen; and after a space the seconds until then, where
-- the records wait for their time. Only what makes records available sends one: a commit with a notification waits for
-- the one before it, and what only acquires and accepts must not.
create or replace function sharequeue_internal.wake_consumers() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_group_id text;
    v_wait text := '';
begin
    if tg_table_name = 'in_flight_batches' then
        select sp.group_id into v_group_id from sharequeue.share_partitions sp
        where sp.share_partition_id = new.share_partition_id;
        if new.not_before is not null then
            v_wait := ' ' || round(extract(epoch from new.not_before - sharequeue.clock()), 3);
        end if;
    else
        v_group_id := new.group_id;
    end if;
    perform pg_notify('sharequeue', md5(v_group_id) || v_wait);
    return null;
end
$$;
create or replace trigger wake_consumers after insert or update on sharequeue.in_flight_batches
    for each row when (new.state = 0) execute function sharequeue_internal.wake_consumers();
-- An offset that is set back raises the state epoch. By columns: what leases and acknowledges names none of these.
create or replace trigger wake_consumers after update of log_end, paused_reason, state_epoch on sharequeue.share_partitions
    for each row when (new.log_end > old.log_end or (new.paused_reason is null and old.paused_reason is not null)
        or new.state_epoch <> old.state_epoch)
    execute function sharequeue_internal.wake_consumers();
create or replace trigger wake_consumers after update of paused_reason on sharequeue.group_settings
    for each row when (new.paused_reason is null and old.paused_reason is not null)
    execute function sharequeue_internal.wake_consumers();
