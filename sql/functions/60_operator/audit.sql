-- The audit log of administrative acts: principal, time, act, and the values before and after.

-- Records one administrative act, in the transaction of the act, so that both count or neither. p_before and p_after
-- have only what the act changed; either may be null.
create or replace function sharequeue_internal.audit(p_act text, p_group_id text, p_before jsonb, p_after jsonb) returns void
language plpgsql volatile as $$
begin
    insert into sharequeue.audit_log (happened_at, principal, role_name, act, group_id, before, after)
    values (sharequeue.clock(), sharequeue.principal(), session_user, p_act, p_group_id, p_before, p_after);
end
$$;

-- Refuses updates and deletes, also for the owner.
create or replace function sharequeue_internal.audit_log_is_append_only() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
begin
    raise exception 'the audit log is append-only: its rows cannot be changed or deleted'
        using errcode = 'insufficient_privilege';
end
$$;
create or replace trigger audit_log_append_only before update or delete or truncate on sharequeue.audit_log
    for each statement execute function sharequeue_internal.audit_log_is_append_only();

-- Records changes of group configs, which are changed as rows of the table.
create or replace function sharequeue_internal.audit_group_config() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
begin
    if tg_op = 'UPDATE' and old.value = new.value then
        return null;
    end if;
    perform sharequeue_internal.audit('alter_group_config', coalesce(new.group_id, old.group_id),
        case when tg_op <> 'INSERT' then jsonb_build_object(old.name, old.value) end,
        case when tg_op <> 'DELETE' then jsonb_build_object(new.name, new.value) end);
    return null;
end
$$;
create or replace trigger group_configs_audit after insert or update or delete on sharequeue.group_configs
    for each row execute function sharequeue_internal.audit_group_config();
