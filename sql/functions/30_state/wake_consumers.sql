-- Notifies waiting consumers that records of a group can be leased that could not be leased before. Each group has a channel,
-- sharequeue_ and the digest of the group's id, because every login may listen: a consumer that has stopped is sent nothing of
-- other groups. The payload is empty or, if the records wait for a time, the seconds until it. Only changes that make records
-- available send a notification: a commit with one waits for the previous such commit, and calls that only acquire and accept
-- must not wait. While the server's queue of notifications is half full, because some program listens and does not read, none
-- is sent: a full queue would fail the commit, and consumers also poll.
create or replace function sharequeue_internal.notify_consumers(p_group_id text, p_wait text) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    if pg_notification_queue_usage() < 0.5 then
        perform pg_notify('sharequeue_' || left(encode(sha256(convert_to(p_group_id, 'UTF8')), 'hex'), 32), p_wait);
    end if;
end
$$;

-- The same for changes of the state. Held records are not announced: they are, when they are freed.
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
            v_wait := round(extract(epoch from new.not_before - sharequeue.clock()), 3);
        end if;
    else
        v_group_id := new.group_id;
    end if;
    perform sharequeue_internal.notify_consumers(v_group_id, v_wait);
    return null;
end
$$;
create or replace trigger wake_consumers after insert or update on sharequeue.in_flight_batches
    for each row when (new.state = 0 and new.not_before is distinct from sharequeue_internal.no_time()) execute function sharequeue_internal.wake_consumers();
-- A reset of offsets raises the state epoch. The trigger names columns, because acquires and acknowledgements set none of these.
create or replace trigger wake_consumers after update of log_end, paused_reason, state_epoch on sharequeue.share_partitions
    for each row when (new.log_end > old.log_end or (new.paused_reason is null and old.paused_reason is not null)
        or new.state_epoch <> old.state_epoch)
    execute function sharequeue_internal.wake_consumers();
create or replace trigger wake_consumers after update of paused_reason on sharequeue.group_settings
    for each row when (new.paused_reason is null and old.paused_reason is not null)
    execute function sharequeue_internal.wake_consumers();

-- Notifies the other members of share-partitions of a group that is ordered by key, which have no lease any more: the next lease
-- may be made, also if all records were accepted. Where no share-partition has two members, nothing is sent.
create or replace function sharequeue_internal.wake_next(
    p_group_id text, p_sps sharequeue.share_partitions[], p_member_id text
) returns void
language plpgsql volatile as $$
begin
    if exists (
            select from sharequeue.assignments a join unnest(p_sps) as sp using (share_partition_id)
            where a.group_id = p_group_id and a.member_id <> p_member_id and not exists (
                select from sharequeue.leases l where l.share_partition_id = a.share_partition_id)) then
        perform sharequeue_internal.notify_consumers(p_group_id, '');
    end if;
end
$$;
