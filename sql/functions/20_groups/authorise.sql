-- The principal of a call, and its rights: Kafka's ACLs on groups and topics
-- (org.apache.kafka.metadata.authorizer.StandardAuthorizer). The functions themselves check them, so that an SQL client gets
-- the same results as a client of the service.

-- Returns whether the login role may act for other principals: the service's role and the owner of the schema may.
create or replace function sharequeue_internal.is_trusted() returns boolean
language plpgsql stable as $$
declare
    v_service oid := to_regrole(quote_ident(coalesce(
        (select role_name from sharequeue.roles where purpose = 'service'), 'sharequeue_service')));
begin
    if v_service is not null and pg_has_role(session_user, v_service, 'MEMBER') then
        return true;
    end if;
    return pg_has_role(session_user,
        (select nspowner from pg_catalog.pg_namespace where nspname = 'sharequeue'), 'MEMBER');
end
$$;

-- Returns the principal of the call: the one that a trusted role has set for this transaction
-- (set_config('sharequeue.principal', 'User:…', true)), otherwise the role that is logged in. The setting is ignored
-- for any other role.
create or replace function sharequeue.principal() returns text
language plpgsql stable as $$
declare
    v_passed_on text := current_setting('sharequeue.principal', true);
begin
    if v_passed_on <> '' and sharequeue_internal.is_trusted() then
        return v_passed_on;
    end if;
    return 'User:' || cast(session_user as text);
end
$$;

-- Returns whether the caller is one of Kafka's super.users: a trusted role that acts for itself.
create or replace function sharequeue_internal.is_super_user() returns boolean
language plpgsql stable as $$
begin
    return coalesce(current_setting('sharequeue.principal', true), '') = '' and sharequeue_internal.is_trusted();
end
$$;

-- Returns whether an ACL's pattern covers a group or a topic. Its form lets the index acls_by_resource be used.
create or replace function sharequeue_internal.covers(p_pattern_type text, p_resource_name text, p_name text) returns boolean
language sql immutable parallel safe as $$
    select p_pattern_type = 'LITERAL' and p_resource_name in (p_name, '*')
        or p_pattern_type = 'PREFIXED' and pg_catalog.starts_with(p_name, p_resource_name)
$$;

-- Returns whether ACLs may refuse any operation on a group, or on a topic that it reads. If so, every operation checks them.
create or replace function sharequeue_internal.acls_apply(p_group_id text) returns boolean
language sql stable as $$
    select not coalesce((select allow_everyone_if_no_acl_found from sharequeue.authorizer), true)
        or exists (select from sharequeue.acls where resource_type = 'TOPIC')
        or exists (select from sharequeue.acls
            where resource_type = 'GROUP' and sharequeue_internal.covers(pattern_type, resource_name, p_group_id))
$$;

-- Returns whether a principal may do an operation on a group or a topic. DENY takes precedence. Without any ACL on the
-- resource, allow.everyone.if.no.acl.found decides. The right to read, alter or delete includes the right to describe.
create or replace function sharequeue_internal.allowed(
    p_resource_type text, p_name text, p_operation text, p_principal text
) returns boolean
language plpgsql stable as $$
declare
    v_found record;
begin
    select count(*) as acls,
        coalesce(bool_or(mine and permission = 'DENY' and operation in (p_operation, 'ALL')), false) as denied,
        coalesce(bool_or(mine and permission = 'ALLOW' and (operation in (p_operation, 'ALL')
            or (p_operation = 'DESCRIBE' and operation in ('READ', 'ALTER', 'DELETE'))
            or (p_operation = 'DESCRIBE_CONFIGS' and operation = 'ALTER_CONFIGS'))), false) as allowed
    into v_found
    from (
        select operation, permission, principal in (p_principal, 'User:*') as mine
        from sharequeue.acls
        where resource_type = p_resource_type and sharequeue_internal.covers(pattern_type, resource_name, p_name)
    ) as a;
    if v_found.acls = 0 then
        return coalesce((select allow_everyone_if_no_acl_found from sharequeue.authorizer), true);
    end if;
    return v_found.allowed and not v_found.denied;
end
$$;

-- Returns whether the caller may do an operation on a group.
create or replace function sharequeue_internal.authorised(p_group_id text, p_operation text) returns boolean
language sql stable as $$
    select sharequeue_internal.is_super_user()
        or sharequeue_internal.allowed('GROUP', p_group_id, p_operation, sharequeue.principal())
$$;

-- The same for a topic: READ is needed to process its records, DESCRIBE to see it.
create or replace function sharequeue_internal.topic_authorised(p_topic text, p_operation text) returns boolean
language sql stable as $$
    select sharequeue_internal.is_super_user()
        or sharequeue_internal.allowed('TOPIC', p_topic, p_operation, sharequeue.principal())
$$;

-- Returns the operations that the principal may do on a group (AuthorizedOperations of Kafka's ShareGroupDescribe),
-- of p_operations, or of all operations.
create or replace function sharequeue.authorized_operations(p_group_id text, p_operations text[] default null) returns text[]
language sql stable as $$
    select coalesce(array_agg(operation order by at), '{}')
    from unnest(array['READ', 'DESCRIBE', 'ALTER', 'DELETE', 'ALTER_CONFIGS', 'DESCRIBE_CONFIGS'])
        with ordinality as known (operation, at)
    where (p_operations is null or operation = any (p_operations)) and sharequeue_internal.authorised(p_group_id, operation)
$$;

-- Checks the right to an operation that changes state, if its result has no column for an error: raises Kafka's error number
-- as SQLSTATE SQ030. First checks the isolation level of the transaction.
create or replace function sharequeue_internal.authorise(p_group_id text, p_operation text) returns void
language plpgsql stable as $$
begin
    perform sharequeue.require_read_committed();
    if coalesce((select not acls_apply from sharequeue.group_settings where group_id = p_group_id), false) then
        return;
    end if;
    if not sharequeue_internal.authorised(p_group_id, p_operation) then
        raise exception '% may not % group %', sharequeue.principal(), p_operation, p_group_id using errcode = 'SQ030';
    end if;
end
$$;

-- The same for an operation on topics of a group, which also needs READ on each of them: SQLSTATE SQ029.
create or replace function sharequeue_internal.authorise_topics(p_group_id text, p_operation text, p_topics text[])
returns void
language plpgsql stable as $$
declare
    v_topic text;
begin
    perform sharequeue_internal.authorise(p_group_id, p_operation);
    if coalesce((select not acls_apply from sharequeue.group_settings where group_id = p_group_id), false) then
        return;
    end if;
    foreach v_topic in array array(select distinct t.name from unnest(p_topics) as t (name) order by 1) loop
        if not sharequeue_internal.topic_authorised(v_topic, 'READ') then
            raise exception '% may not READ topic %', sharequeue.principal(), v_topic using errcode = 'SQ029';
        end if;
    end loop;
end
$$;

-- Returns the operations that the caller may do on a topic, of READ and DESCRIBE.
create or replace function sharequeue.authorized_topic_operations(p_topic text) returns text[]
language sql stable as $$
    select coalesce(array_agg(operation order by at), '{}')
    from unnest(array['READ', 'DESCRIBE']) with ordinality as known (operation, at)
    where sharequeue_internal.topic_authorised(p_topic, operation)
$$;

-- Checks the right to change something for the whole cluster (ACLs, all state epochs, all locks): only super users have it.
create or replace function sharequeue_internal.authorise_cluster() returns void
language plpgsql stable as $$
begin
    perform sharequeue.require_read_committed();
    if not sharequeue_internal.is_super_user() then
        raise exception '% may not alter the cluster', sharequeue.principal() using errcode = 'SQ031';
    end if;
end
$$;

-- Records for a new group whether ACLs apply to it.
create or replace function sharequeue_internal.group_settings_learn_acls() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
begin
    new.acls_apply := sharequeue_internal.acls_apply(new.group_id);
    return new;
end
$$;
create or replace trigger group_settings_acls before insert on sharequeue.group_settings
    for each row execute function sharequeue_internal.group_settings_learn_acls();

-- Records it again for all groups when ACLs change. The lock on the table keeps out groups that are being created: without
-- it one of them could miss an ACL that is committed at the same time.
create or replace function sharequeue_internal.groups_learn_acls() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue.require_read_committed();
    lock table sharequeue.group_settings in share row exclusive mode;
    perform sharequeue_internal.lock_in_order(
        array(select group_id from sharequeue.group_settings where acls_apply <> sharequeue_internal.acls_apply(group_id)),
        true, true);
    update sharequeue.group_settings set acls_apply = not acls_apply
    where acls_apply <> sharequeue_internal.acls_apply(group_id);
    return null;
end
$$;
create or replace trigger acls_learned after insert or update or delete or truncate on sharequeue.acls
    for each statement execute function sharequeue_internal.groups_learn_acls();
create or replace trigger authorizer_learned after insert or update or delete or truncate on sharequeue.authorizer
    for each statement execute function sharequeue_internal.groups_learn_acls();
