-- Who may do what, and who did what: the roles' names, ACLs as Kafka has them on groups, and the audit log.

-- What a role is for, and what it is called here. `sharequeue migrate --roles` fills it; where it is empty, the names
-- are sharequeue_owner, sharequeue_service, sharequeue_worker and sharequeue_reader.
create table sharequeue.roles (
    purpose text constraint roles_pkey primary key
        constraint roles_purpose_known check (purpose in ('owner', 'service', 'worker', 'reader')),
    role_name text not null constraint roles_role_name_not_empty check (role_name <> '')
);

-- Kafka's ACLs (kafka-acls.sh) on resources of type GROUP. A literal resource named * is every group.
create table sharequeue.acls (
    principal text not null
        constraint acls_principal_is_user check (principal like 'User:_%'),
    operation text not null constraint acls_operation_known check (operation in
        ('ALL', 'READ', 'DESCRIBE', 'ALTER', 'DELETE', 'ALTER_CONFIGS', 'DESCRIBE_CONFIGS')),
    permission text not null constraint acls_permission_known check (permission in ('ALLOW', 'DENY')),
    pattern_type text not null constraint acls_pattern_type_known check (pattern_type in ('LITERAL', 'PREFIXED')),
    resource_name text not null constraint acls_resource_name_not_empty check (resource_name <> ''),
    constraint acls_pkey primary key (principal, operation, permission, pattern_type, resource_name)
);

-- Kafka's authorizer settings; one row. A missing row means the default.
create table sharequeue.authorizer (
    singleton boolean constraint authorizer_pkey primary key default true
        constraint authorizer_singleton check (singleton),
    allow_everyone_if_no_acl_found boolean not null default true
);
insert into sharequeue.authorizer default values;

-- Whether somebody may be refused something of this group: an ACL names it, or groups without one are closed. Kept by
-- triggers, so that an operation on a group that nobody restricts asks one boolean.
alter table sharequeue.group_settings add column acls_apply boolean not null default false;

-- Old answers are found by a btree again: a BRIN index reads all that came since the last vacuum, which was 96,000 of
-- 100,000 rows at every sweep.
drop index sharequeue.requests_by_age;
create index requests_by_age on sharequeue.requests (answered_at);

-- Who may do it comes first now: the check takes an argument more.
drop function if exists sharequeue.lock_share_partition(text, text, integer, integer);

-- Every administrative act. Append only: a trigger refuses every update and delete. No foreign key: groups end, what was
-- done to them stays.
create table sharequeue.audit_log (
    audit_id bigint generated always as identity constraint audit_log_pkey primary key,
    happened_at timestamptz not null,
    -- On whose behalf, as ACLs see it; and the role that was logged in.
    principal text not null,
    role_name text not null,
    act text not null,
    group_id text,
    before jsonb,
    after jsonb
);
create index audit_log_by_group on sharequeue.audit_log (group_id, audit_id);
