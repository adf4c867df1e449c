-- Returns a config of a group for the state functions: the group's own value, else the service's, else the default
-- (group_config_defaults.sql).
create or replace function sharequeue_internal.group_config(p_group_id text, p_name text) returns text
language sql stable set search_path = pg_catalog as $$
    select coalesce(
        (select value from sharequeue.group_configs
            where group_id = p_group_id and name = p_name),
        (select value from sharequeue.service_configs
            where name = case when p_name like 'share.%' then 'group.' || p_name else p_name end),
        sharequeue_internal.group_config_default(p_name))
$$;

-- Returns the configs that a group has set. Workers, which cannot read tables, need them, and so do callers that may
-- only describe or alter configs.
create or replace function sharequeue.stored_configs(p_group_id text) returns table (name text, value text)
language plpgsql stable set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise(p_group_id, case
        when sharequeue_internal.authorised(p_group_id, 'DESCRIBE_CONFIGS') then 'DESCRIBE_CONFIGS' else 'DESCRIBE' end);
    perform sharequeue_internal.check_present('the group id', p_group_id);
    return query select c.name, c.value from sharequeue.group_configs c where c.group_id = p_group_id order by c.name;
end
$$;

-- Returns the configs of the service. A job that writes dead letters uses them too.
create or replace function sharequeue.stored_service_configs() returns table (name text, value text)
language sql stable set search_path = pg_catalog as $$
    select name, value from sharequeue.service_configs order by name
$$;

-- Returns a numeric config of a group, moved into the service's bounds if these changed after it was set (Kafka's
-- GroupConfigManager). Bounds that are not set have no effect, except those of a lock's duration.
create or replace function sharequeue_internal.bounded_group_config(p_group_id text, p_name text) returns bigint
language sql stable set search_path = pg_catalog as $$
    select least(
        greatest(sharequeue_internal.group_config(p_group_id, p_name)::bigint,
            sharequeue_internal.group_config(p_group_id, 'group.share.min.' || substr(p_name, length('share.') + 1))::bigint),
        sharequeue_internal.group_config(p_group_id, 'group.share.max.' || substr(p_name, length('share.') + 1))::bigint)
$$;

-- Writes a group's effective configs into its row of group_settings, so that an acquire reads one row and does not call
-- group_config five times.
create or replace function sharequeue_internal.compile_group_settings(p_group_id text) returns void
language sql volatile set search_path = pg_catalog as $$
    -- First, so that it waits for a transaction that is changing configs, and then reads the new values.
    select sharequeue_internal.lock_in_order(array[p_group_id], true, false);
    insert into sharequeue.group_settings as s (group_id, delivery_count_limit, lock_duration_ms, min_lock_duration_ms,
        max_lock_duration_ms, max_record_locks, read_committed, renew_enabled, dead_letters, breaker_percent,
        breaker_min_records, breaker_window_records, breaker_probe_records, breaker_open_ms, refund_cancelled,
        retry_backoff_ms, retry_backoff_max_ms, ordered, hold_dead_letters, max_open_keys)
    select g.group_id,
        sharequeue_internal.bounded_group_config(g.group_id, 'share.delivery.count.limit')::integer,
        sharequeue_internal.bounded_group_config(g.group_id, 'share.record.lock.duration.ms')::integer,
        sharequeue_internal.group_config(g.group_id, 'group.share.min.record.lock.duration.ms')::integer,
        sharequeue_internal.group_config(g.group_id, 'group.share.max.record.lock.duration.ms')::integer,
        sharequeue_internal.bounded_group_config(g.group_id, 'share.partition.max.record.locks'),
        sharequeue_internal.group_config(g.group_id, 'share.isolation.level') = 'read_committed',
        sharequeue_internal.group_config(g.group_id, 'share.renew.acknowledge.enable') <> 'false',
        sharequeue_internal.group_config(g.group_id, 'errors.deadletterqueue.topic.name') <> '',
        sharequeue_internal.group_config(g.group_id, 'sharequeue.circuit.breaker.failure.percent')::integer,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.circuit.breaker.min.records')::bigint,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.circuit.breaker.window.records')::bigint,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.circuit.breaker.probe.records')::bigint,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.circuit.breaker.open.ms')::integer,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.cancelled.run.refund.enable') = 'true',
        sharequeue_internal.group_config(g.group_id, 'sharequeue.retry.backoff.ms')::integer,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.retry.backoff.max.ms')::integer,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.order') = 'key',
        sharequeue_internal.group_config(g.group_id, 'sharequeue.order.on.dead.letter') = 'hold',
        sharequeue_internal.group_config(g.group_id, 'sharequeue.order.max.open.keys')::bigint
    from sharequeue.share_groups g where g.group_id = p_group_id
    on conflict on constraint group_settings_pkey do update set
        delivery_count_limit = excluded.delivery_count_limit, lock_duration_ms = excluded.lock_duration_ms,
        min_lock_duration_ms = excluded.min_lock_duration_ms, max_lock_duration_ms = excluded.max_lock_duration_ms,
        max_record_locks = excluded.max_record_locks, read_committed = excluded.read_committed,
        renew_enabled = excluded.renew_enabled, dead_letters = excluded.dead_letters,
        breaker_percent = excluded.breaker_percent, breaker_min_records = excluded.breaker_min_records,
        breaker_window_records = excluded.breaker_window_records,
        breaker_probe_records = excluded.breaker_probe_records, breaker_open_ms = excluded.breaker_open_ms,
        refund_cancelled = excluded.refund_cancelled, retry_backoff_ms = excluded.retry_backoff_ms,
        retry_backoff_max_ms = excluded.retry_backoff_max_ms, ordered = excluded.ordered,
        hold_dead_letters = excluded.hold_dead_letters, max_open_keys = excluded.max_open_keys
$$;

-- Requires configs of the service: a text for each name, and a whole number where the state functions read one.
-- sharequeue/groups/configs/ checks the bounds.
create or replace function sharequeue_internal.check_service_configs(p_configs jsonb) returns void
language plpgsql immutable as $$
declare
    v_config record;
begin
    if p_configs is null or jsonb_typeof(p_configs) <> 'object' then
        raise exception 'the service configs are not valid: expected one object of names and values' using errcode = 'SQ040';
    end if;
    for v_config in select key, value, p_configs->>key as text from jsonb_each(p_configs) loop
        -- No backslash: with standard_conforming_strings off, it would escape in the literal.
        if v_config.key !~ '^(group[.]share|share[.]coordinator|errors[.]deadletterqueue|journal|deleted[.]topics)[.]'
                '[a-z.]{1,200}$' then
            raise exception 'there is no service config %', left(v_config.key, 300) using errcode = 'SQ040';
        elsif jsonb_typeof(v_config.value) <> 'string' then
            raise exception 'service config % must be a text', v_config.key using errcode = 'SQ040';
        elsif v_config.key ~ '[.](ms|limit|locks|size|minutes|snapshot)$' and not (v_config.text ~ '^[0-9]{1,10}$'
                and (v_config.text)::bigint <= 2147483647) then
            raise exception 'service config % must be a whole number of at most 2147483647', v_config.key
                using errcode = 'SQ040';
        end if;
    end loop;
end
$$;

-- Stores all configs of the service at once; sharequeue/groups/configs/ checks names and values. The groups'
-- settings are updated if something has changed.
create or replace function sharequeue.set_service_configs(p_configs jsonb) returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_before jsonb;
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_service_configs(p_configs);
    lock table sharequeue.service_configs in share row exclusive mode;
    select coalesce(jsonb_object_agg(name, value), '{}') into v_before from sharequeue.service_configs;
    if v_before = p_configs then
        -- The first call is in the audit log too, so that a later call with other values can name its predecessor.
        if not exists (select from sharequeue.audit_log where group_id is null and act = 'set_service_configs') then
            perform sharequeue_internal.audit('set_service_configs', null, v_before, p_configs);
        end if;
        return false;
    end if;
    delete from sharequeue.service_configs;
    insert into sharequeue.service_configs (name, value) select key, value from jsonb_each_text(p_configs);
    perform sharequeue_internal.lock_in_order(null, true, true);
    perform sharequeue_internal.compile_group_settings(group_id) from sharequeue.share_groups order by group_id;
    perform sharequeue_internal.audit('set_service_configs', null, v_before, p_configs);
    return true;
end
$$;

create or replace function sharequeue_internal.group_settings_follow() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue.require_read_committed();
    if tg_op <> 'INSERT' then
        perform sharequeue_internal.compile_group_settings(old.group_id);
    end if;
    if tg_op <> 'DELETE' then
        perform sharequeue_internal.compile_group_settings(new.group_id);
    end if;
    return null;
end
$$;

create or replace trigger share_groups_settings after insert on sharequeue.share_groups
    for each row execute function sharequeue_internal.group_settings_follow();
-- The service's role and the owner change group configs as rows of the table. This trigger refuses an unknown name, and locks
-- the group first.
create or replace function sharequeue_internal.group_configs_lock_group() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
begin
    if tg_op = 'DELETE' then
        perform sharequeue_internal.lock_group(old.group_id);
        return old;
    end if;
    if new.name <> all (sharequeue_internal.group_config_names()) then
        raise exception 'there is no group config %: expected one of %', left(new.name, 300),
            array_to_string(sharequeue_internal.group_config_names(), ', ') using errcode = 'SQ040';
    end if;
    perform sharequeue_internal.lock_group(new.group_id);
    return new;
end
$$;
create or replace trigger group_configs_in_order before insert or update or delete on sharequeue.group_configs
    for each row execute function sharequeue_internal.group_configs_lock_group();
create or replace trigger group_configs_settings after insert or update or delete on sharequeue.group_configs
    for each row execute function sharequeue_internal.group_settings_follow();
