-- Notifies waiting consumers that records of a group can be leased that could not be leased before. Each group has a channel,
-- sharequeue_ and the digest of the group's id, because every login may listen: a consumer that has stopped is sent nothing of
-- other groups. The payload is empty or, if the records wait for a time, the seconds until it. Only changes that make records
-- available send a notification: a commit with one waits for the previous such commit, and calls that only acquire and accept
-- must not wait. While the server's queue of notifications is half full, because some program listens and does not read, none
-- is sent: a full queue would fail the commit, and consumers also poll.
create or replace function sharequeue_internal.wake_consumers() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_group_id text;
    v_wait text := '';
begin
    if pg_notification_queue_usage() >= 0.5 then
        return null;
    end if;
    if tg_table_name = 'in_flight_batches' then
        select sp.group_id into v_group_id from sharequeue.share_partitions sp
        where sp.share_partition_id = new.share_partition_id;
        if new.not_before is not null then
            v_wait := round(extract(epoch from new.not_before - sharequeue.clock()), 3);
        end if;
    else
        v_group_id := new.group_id;
    end if;
    perform pg_notify('sharequeue_' || left(encode(sha256(convert_to(v_group_id, 'UTF8')), 'hex'), 32), v_wait);
    return null;
end
$$;
create or replace trigger wake_consumers after insert or update on sharequeue.in_flight_batches
    for each row when (new.state = 0) execute function sharequeue_internal.wake_consumers();
-- A reset of offsets raises the state epoch. The trigger names columns, because acquires and acknowledgements set none of these.
create or replace trigger wake_consumers after update of log_end, paused_reason, state_epoch on sharequeue.share_partitions
    for each row when (new.log_end > old.log_end or (new.paused_reason is null and old.paused_reason is not null)
        or new.state_epoch <> old.state_epoch)
    execute function sharequeue_internal.wake_consumers();
create or replace trigger wake_consumers after update of paused_reason on sharequeue.group_settings
    for each row when (new.paused_reason is null and old.paused_reason is not null)
    execute function sharequeue_internal.wake_consumers();
