-- Every administrative act: when, who (the principal, and the role that was logged in), what, on which group, before
-- and after.
create or replace view sharequeue.audit_trail as
select audit_id, happened_at, principal, role_name, act, group_id, before, after from sharequeue.audit_log;
