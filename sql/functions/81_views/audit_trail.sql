-- Every administrative change: its time, principal, login role, action and group, and the values before and after.
create or replace view sharequeue.audit_trail as
select audit_id, happened_at, principal, role_name, act, group_id, before, after from sharequeue.audit_log;
