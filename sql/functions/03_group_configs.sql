-- Group configs as the state functions need them: the group's own value, else Kafka's default. Names, defaults and
-- bounds for people are in sharequeue/configs.py; a test holds the two against each other.
create or replace function sharequeue.group_config(p_group_id text, p_name text) returns text
language sql stable set search_path = pg_catalog as $$
    select coalesce(
        (select value from sharequeue.group_configs where group_id = p_group_id and name = p_name),
        case p_name
            when 'share.delivery.count.limit' then '5'
            when 'share.record.lock.duration.ms' then '30000'
            when 'share.partition.max.record.locks' then '2000'
            when 'share.isolation.level' then 'read_uncommitted'
            when 'share.renew.acknowledge.enable' then 'true'
            when 'errors.deadletterqueue.topic.name' then ''
            -- Bounds of the lock duration that one acquire may ask for: Kafka's widest.
            when 'group.share.min.record.lock.duration.ms' then '1000'
            when 'group.share.max.record.lock.duration.ms' then '3600000'
        end
    )
$$;

-- The same, compiled into the group's row of group_settings. An acquire that asked group_config five times paid 45 µs
-- for it; the row costs 2.
create or replace function sharequeue.compile_group_settings(p_group_id text) returns void
language sql volatile set search_path = pg_catalog as $$
    insert into sharequeue.group_settings as s (group_id, delivery_count_limit, lock_duration_ms, min_lock_duration_ms,
        max_lock_duration_ms, max_record_locks, read_committed, renew_enabled, dead_letters)
    select g.group_id,
        sharequeue.group_config(g.group_id, 'share.delivery.count.limit')::integer,
        sharequeue.group_config(g.group_id, 'share.record.lock.duration.ms')::integer,
        sharequeue.group_config(g.group_id, 'group.share.min.record.lock.duration.ms')::integer,
        sharequeue.group_config(g.group_id, 'group.share.max.record.lock.duration.ms')::integer,
        sharequeue.group_config(g.group_id, 'share.partition.max.record.locks')::bigint,
        sharequeue.group_config(g.group_id, 'share.isolation.level') = 'read_committed',
        sharequeue.group_config(g.group_id, 'share.renew.acknowledge.enable') <> 'false',
        sharequeue.group_config(g.group_id, 'errors.deadletterqueue.topic.name') <> ''
    from sharequeue.share_groups g where g.group_id = p_group_id
    on conflict on constraint group_settings_pkey do update set
        delivery_count_limit = excluded.delivery_count_limit, lock_duration_ms = excluded.lock_duration_ms,
        min_lock_duration_ms = excluded.min_lock_duration_ms, max_lock_duration_ms = excluded.max_lock_duration_ms,
        max_record_locks = excluded.max_record_locks, read_committed = excluded.read_committed,
        renew_enabled = excluded.renew_enabled, dead_letters = excluded.dead_letters
$$;

create or replace function sharequeue.group_settings_follow() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
begin
    if tg_op <> 'INSERT' then
        perform sharequeue.compile_group_settings(old.group_id);
    end if;
    if tg_op <> 'DELETE' then
        perform sharequeue.compile_group_settings(new.group_id);
    end if;
    return null;
end
$$;

create or replace trigger share_groups_settings after insert on sharequeue.share_groups
    for each row execute function sharequeue.group_settings_follow();
create or replace trigger group_configs_settings after insert or update or delete on sharequeue.group_configs
    for each row execute function sharequeue.group_settings_follow();

-- Groups that were there before, and defaults that changed with this file.
select sharequeue.compile_group_settings(group_id) from sharequeue.share_groups;

-- A share-partition that goes takes its in-flight state and leases along. Not by foreign keys: their checks made every
-- acquire 15 µs dearer.
create or replace function sharequeue.share_partition_gone() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
begin
    delete from sharequeue.in_flight_batches where share_partition_id = old.share_partition_id;
    delete from sharequeue.leases where share_partition_id = old.share_partition_id;
    return null;
end
$$;
create or replace trigger share_partitions_gone after delete on sharequeue.share_partitions
    for each row execute function sharequeue.share_partition_gone();
