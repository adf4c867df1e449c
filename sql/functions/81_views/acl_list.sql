-- The ACLs on groups and topics, as kafka-acls.sh lists them.
create or replace view sharequeue.acl_list as
select resource_type, pattern_type, resource_name, principal, permission, operation from sharequeue.acls;
