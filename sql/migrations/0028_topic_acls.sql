-- ACLs on topics beside those on groups, and as whom a member joined.
alter table sharequeue.acls
    add column resource_type text not null default 'GROUP'
        constraint acls_resource_type_known check (resource_type in ('GROUP', 'TOPIC')),
    drop constraint acls_pkey,
    add constraint acls_pkey primary key (principal, operation, permission, resource_type, pattern_type, resource_name),
    add constraint acls_operation_of_topic check (resource_type = 'GROUP' or operation in ('ALL', 'READ', 'DESCRIBE'));

-- Null: it joined before this was kept, or a super user has it.
alter table sharequeue.members add column principal text;

drop function if exists sharequeue.add_acl(text, text, text, text, text);
drop function if exists sharequeue.remove_acls(text, text, text, text, text, boolean);
drop function if exists sharequeue.heartbeat(
    text, text, integer, text, text[], text, text, integer, integer[], integer[], integer[], boolean);
drop function if exists sharequeue.leave_group(text, text);
drop function if exists sharequeue_internal.check_acl(text, text, text, text);
drop function if exists sharequeue_internal.covers(text, text, text);
