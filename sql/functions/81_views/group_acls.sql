-- The ACLs on groups, as kafka-acls.sh lists them.
create or replace view sharequeue.group_acls as
select pattern_type, resource_name, principal, permission, operation from sharequeue.acls;
