-- The rights of the roles. Applied last, and again whenever a file before it has changed, because a replaced function loses its
-- security definer.

-- Returns the name of the role for a purpose (sharequeue migrate --roles).
create or replace function sharequeue_internal.role_named(p_purpose text) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select coalesce(
        (select role_name from sharequeue.roles where purpose = p_purpose), 'sharequeue_' || p_purpose)
$$;

-- Returns the release of the schema: the last numbered migration, and a fingerprint of all files.
create or replace function sharequeue.schema_version(out version text, out digest text)
language sql stable set search_path = pg_catalog, pg_temp as $$
    select max(name) filter (where name like 'migrations/%'),
        encode(sha256(convert_to(string_agg(name || ' ' || checksum, ',' order by name collate "C"), 'UTF8')), 'hex')
    from sharequeue.schema_migrations
$$;

-- Revokes everything from PUBLIC, and grants EXECUTE for each function. An operation runs as the schema's owner (security definer) with
-- a search path of its own. pg_temp is named last in it, because it would come first if it were not named. It runs without JIT,
-- which is on by default: the estimates for sets of offsets are far too high, and Postgres 15 compiled one statement of each
-- acknowledgement for 0.2 to 0.5 s. The helper functions of operations are in sharequeue_internal and run with the same rights.
-- No role has USAGE on that schema; EXECUTE is granted on functions that views call, which needs no USAGE. clock() runs as the
-- owner too, but has no SET (10_values/clock.sql).
create or replace function sharequeue.apply_permissions() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    v_worker constant text[] := array[
        'acknowledge', 'acknowledge_batches', 'acquire', 'blocked_keys',
        'check_cluster', 'check_identity', 'close_dead_letters', 'hold_dead_letters', 'initialize', 'observe', 'open_dead_letters',
        'claim_group', 'record_report', 'release', 'remove_reports', 'renew', 'report_losses', 'stored_configs', 'sweep', 'topics_redriven_for_others',
        'acknowledge_many', 'acquire_many', 'observe_many', 'release_many', 'renew_many',
        'alter_offsets', 'delete_group', 'delete_offsets', 'force', 'pause', 'reset_offsets', 'resume_results',
        'begin_compaction', 'commit_compaction', 'commit_replacement', 'forget_compaction', 'mark_sink', 'removable_outputs',
        'begin_transfer', 'end_transfer', 'hold_transfer', 'renew_transfer', 'keep_sink_columns',
        'begin_publication', 'end_publication', 'forget_publication', 'drop_kept', 'kept_of', 'removable_kept',
        'journal_days', 'journal_partitions', 'roll_up_journal'];
    v_service constant text[] := array[
        'add_acl', 'adopt', 'allow_everyone_if_no_acl_found', 'beat', 'begin_redrive', 'clear_other_journal', 'close_redrive', 'confirm_observations', 'create_token',
        'discard_letters', 'drop_journal_partition', 'extend_locks', 'give_back_room', 'groups_of_topics', 'make_journal_partitions',
        'note_topics', 'open_redrive', 'plan_redrive', 'principal_of_token', 'raise_state_epochs', 'remove_acls', 'remove_deleted_topics',
        'revoke_tokens', 'roll_up_due_days',
        'set_service_configs', 'close_letters', 'letters_held', 'take_snapshot', 'take_snapshots', 'trim_redrive',
        'end_redrive', 'end_service_lease', 'hear_replica', 'hold_service_lease', 'note_service_work', 'take_service_lease',
        'assign_share_partitions', 'expire_members', 'heartbeat', 'keep_alive', 'leave_group',
        'raise_group_epoch', 'refresh_group', 'unknown_topics'];
    v_reader constant text[] := array[
        'known_marks', 'needed_outputs', 'replay_batches', 'replay_leases', 'replay_open_keys', 'replay_outcomes', 'replay_share_partition', 'sequences_behind', 'sink_owners', 'snapshots',
        'stored_configs', 'verify', 'verify_journal'];
    v_everybody constant text[] := array['authorized_operations', 'authorized_topic_operations', 'clock', 'identity_found', 'principal', 'schema_version', 'service_writes_letters', 'stored_service_configs'];
    -- The coordinator calls these in its own transactions, on tables that it may read; they need no other rights.
    v_coordinator constant text[] := array[
        'assignable_share_partitions', 'assignment_of', 'metadata_hash', 'require_read_committed'];
    v_coordinator_tables constant text[] := array[
        'group_configs', 'grown_topics', 'share_groups', 'topics'];
    v_all constant text[] := v_worker || v_service || v_reader || v_everybody || v_coordinator;
    v_roles text[];
    v_purpose text;
    v_role text;
    v_function record;
    v_name text;
begin
    v_roles := sharequeue_internal.take_permissions();
    select v.name into v_name from unnest(v_all) as v (name)
    where not exists (select from pg_proc p
        where p.pronamespace = to_regnamespace('sharequeue') and p.proname = v.name);
    if found then
        raise exception '99_permissions.sql names %, which is not a function of the schema: correct the name', v_name;
    end if;
    for v_function in
        select p.proname as name, p.oid::regprocedure as signature,
            p.pronamespace = to_regnamespace('sharequeue')
                    and p.proname = any (v_worker || v_service || v_reader || v_everybody)
                -- Triggers on tables that the coordinator writes itself; those on other tables fire inside operations.
                or exists (select from pg_trigger t join pg_class c on c.oid = t.tgrelid
                    where t.tgfoid = p.oid and c.relnamespace = to_regnamespace('sharequeue')
                        and c.relname = any (v_coordinator_tables)) as definer,
            exists (select from pg_depend d join pg_rewrite r on r.oid = d.objid
                where d.classid = 'pg_rewrite'::regclass and d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid)
                as in_views
        from pg_proc p
        where p.pronamespace in (to_regnamespace('sharequeue'), to_regnamespace('sharequeue_internal')) order by 2
    loop
        execute format('revoke all on function %s from public', v_function.signature);
        if v_function.name = 'clock' then
            execute format('alter function %s security definer', v_function.signature);
        elsif v_function.definer then
            execute format('alter function %s security definer set search_path = pg_catalog, pg_temp set jit = off',
                v_function.signature);
        end if;
        foreach v_purpose in array array['service', 'worker', 'reader'] loop
            v_role := quote_ident(sharequeue_internal.role_named(v_purpose));
            if v_role = any (v_roles) and (
                    v_function.name = any (v_everybody)
                    or (v_purpose = 'service' and v_function.name = any (v_all))
                    or (v_purpose = 'worker' and v_function.name = any (v_worker))
                    or (v_purpose = 'reader' and v_function.name = any (v_reader))
                    or (v_purpose in ('reader', 'service') and v_function.in_views)) then
                execute format('grant execute on function %s to %s', v_function.signature, v_role);
            end if;
        end loop;
    end loop;
    perform sharequeue_internal.grant_tables(v_roles, v_coordinator_tables);
end
$$;

-- Takes all permissions on tables and schemas from PUBLIC, and all from the roles. Returns the roles that exist.
create or replace function sharequeue_internal.take_permissions() returns text[]
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    v_roles text[] := '{}';
    v_purpose text;
    v_role text;
begin
    -- Default privileges of the owner (alter default privileges) may have given them.
    revoke all on schema sharequeue, sharequeue_internal from public;
    revoke all on all tables in schema sharequeue, sharequeue_internal from public;
    revoke all on all sequences in schema sharequeue, sharequeue_internal from public;
    foreach v_purpose in array array['service', 'worker', 'reader'] loop
        v_role := quote_ident(sharequeue_internal.role_named(v_purpose));
        if to_regrole(v_role) is not null then
            v_roles := v_roles || v_role;
            execute format('revoke all on all tables in schema sharequeue from %s', v_role);
            execute format('revoke all on all functions in schema sharequeue, sharequeue_internal from %s', v_role);
            execute format('revoke all on schema sharequeue_internal from %s', v_role);
            execute format('grant usage on schema sharequeue to %s', v_role);
        end if;
    end loop;
    return v_roles;
end
$$;

-- Grants the views to readers, all tables to the service, and to write those of the coordinator.
create or replace function sharequeue_internal.grant_tables(p_roles text[], p_coordinator_tables text[]) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    v_role text := quote_ident(sharequeue_internal.role_named('reader'));
    v_name text;
begin
    if v_role = any (p_roles) then
        for v_name in
            select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where n.nspname = 'sharequeue' and c.relkind = 'v'
        loop
            execute format('grant select on %s to %s', v_name, v_role);
        end loop;
    end if;
    v_role := quote_ident(sharequeue_internal.role_named('service'));
    if v_role = any (p_roles) then
        execute format('grant select on all tables in schema sharequeue to %s', v_role);
        foreach v_name in array p_coordinator_tables loop
            execute format('grant insert, update, delete on sharequeue.%I to %s', v_name, v_role);
        end loop;
        -- A group is deleted by delete_group, which adds it to the audit log.
        execute format('revoke delete on sharequeue.share_groups from %s', v_role);
    end if;
end
$$;

select sharequeue.apply_permissions();
