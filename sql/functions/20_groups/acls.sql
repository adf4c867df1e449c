-- Changes of ACLs. Only super users can make them, and the audit log has each of them. Adding an existing ACL, or removing
-- one that does not exist, changes nothing.

-- Checks the parts of an ACL, like the constraints of the table.
create or replace function sharequeue_internal.check_acl(
    p_principal text, p_operation text, p_permission text, p_pattern_type text, p_resource_type text
) returns void
language plpgsql immutable as $$
begin
    if not coalesce(p_principal like 'User:_%' and sharequeue_internal.check_name('the principal', p_principal) is not null
            and (p_resource_type = 'GROUP'
                    and p_operation in ('ALL', 'READ', 'DESCRIBE', 'ALTER', 'DELETE', 'ALTER_CONFIGS', 'DESCRIBE_CONFIGS')
                or p_resource_type = 'TOPIC' and p_operation in ('ALL', 'READ', 'DESCRIBE'))
            and p_permission in ('ALLOW', 'DENY') and p_pattern_type in ('LITERAL', 'PREFIXED'), false) then
        raise exception 'the ACL is not valid: expected the principal User:<name>, the resource type GROUP or TOPIC, the operation '
            'ALL, READ or DESCRIBE, for a group also ALTER, DELETE, ALTER_CONFIGS or DESCRIBE_CONFIGS, the permission ALLOW '
            'or DENY, and the pattern type LITERAL or PREFIXED'
            using errcode = 'SQ042';
    end if;
end
$$;

-- Adds an ACL. Returns whether it was new.
create or replace function sharequeue.add_acl(
    p_principal text, p_operation text, p_permission text, p_pattern_type text, p_resource_name text,
    p_resource_type text default 'GROUP'
) returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_acl(p_principal, p_operation, p_permission, p_pattern_type, p_resource_type),
        sharequeue_internal.check_name('the resource name', p_resource_name);
    lock table sharequeue.acls in share row exclusive mode;
    insert into sharequeue.acls (principal, operation, permission, pattern_type, resource_name, resource_type)
    values (p_principal, p_operation, p_permission, p_pattern_type, p_resource_name, p_resource_type)
    on conflict on constraint acls_pkey do nothing;
    if found then
        perform sharequeue_internal.audit('add_acl', null, null, jsonb_build_object('principal', p_principal,
            'operation', p_operation, 'permission', p_permission, 'pattern_type', p_pattern_type,
            'resource_name', p_resource_name, 'resource_type', p_resource_type));
        return true;
    end if;
    return false;
end
$$;

-- Removes the ACLs that match all given arguments; null matches any. Returns them, or with p_dry_run those that it
-- would remove.
create or replace function sharequeue.remove_acls(
    p_principal text, p_operation text, p_permission text, p_pattern_type text, p_resource_name text,
    p_dry_run boolean default false, p_resource_type text default null
) returns setof sharequeue.acls
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_acls sharequeue.acls[];
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_present('p_dry_run', p_dry_run);
    if not p_dry_run then
        lock table sharequeue.acls in share row exclusive mode;
    end if;
    v_acls := array(
        select a from sharequeue.acls a
        where principal = coalesce(p_principal, principal) and operation = coalesce(p_operation, operation)
            and permission = coalesce(p_permission, permission) and pattern_type = coalesce(p_pattern_type, pattern_type)
            and resource_name = coalesce(p_resource_name, resource_name)
            and resource_type = coalesce(p_resource_type, resource_type)
        order by principal, operation, permission, pattern_type, resource_name, resource_type);
    if not p_dry_run then
        -- All in one statement, so that the groups that they cover are locked together and in order.
        delete from sharequeue.acls a where a = any (v_acls);
        perform sharequeue_internal.audit('remove_acl', null, to_jsonb(a), null) from unnest(v_acls) as a;
    end if;
    return query select * from unnest(v_acls);
end
$$;

-- Sets Kafka's allow.everyone.if.no.acl.found: whether a group or topic without an ACL is open to all. Returns the
-- old value.
create or replace function sharequeue.allow_everyone_if_no_acl_found(p_allow boolean) returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_before boolean := coalesce((select allow_everyone_if_no_acl_found from sharequeue.authorizer), true);
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_present('p_allow', p_allow);
    lock table sharequeue.acls in share row exclusive mode;
    insert into sharequeue.authorizer (allow_everyone_if_no_acl_found) values (p_allow)
    on conflict on constraint authorizer_pkey do update
        set allow_everyone_if_no_acl_found = excluded.allow_everyone_if_no_acl_found;
    if p_allow <> v_before then
        perform sharequeue_internal.audit('allow_everyone_if_no_acl_found', null, to_jsonb(v_before), to_jsonb(p_allow));
    end if;
    return v_before;
end
$$;
