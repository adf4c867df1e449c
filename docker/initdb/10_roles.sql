-- Logins, group roles and databases, least privilege: one login for each kind of process. Postgres' image runs this
-- once, when its volume is empty. On a server of yours run it by hand; once more is harmless, and sets the passwords anew:
--     psql -v ON_ERROR_STOP=1 -v secrets=docker/secrets -f docker/initdb/10_roles.sql 'postgresql://postgres@…/postgres'
-- The group roles are those of `sharequeue migrate --roles`, which the login `sharequeue_migrate` then runs: it needs no
-- superuser, because it finds the roles here. What each of them may do is in sql/functions/99_permissions.sql.

-- The passwords: the last field of each password file.
\if :{?secrets}
\else
\set secrets /run/secrets
\endif
\set migrate `sed 's/.*://' :'secrets'/migrate.pgpass`
\set serve `sed 's/.*://' :'secrets'/serve.pgpass`
\set jobs `sed 's/.*://' :'secrets'/jobs.pgpass`
\set reports `sed 's/.*://' :'secrets'/reports.pgpass`
\set dagster `sed 's/.*://' :'secrets'/dagster.pgpass`

select format('create role %I', name) from unnest(array[
    'sharequeue_owner', 'sharequeue_service', 'sharequeue_worker', 'sharequeue_reader',
    'sharequeue_migrate', 'sharequeue_serve', 'sharequeue_jobs', 'sharequeue_reports', 'dagster']) as names (name)
where to_regrole(name) is null \gexec

alter role sharequeue_migrate login password :'migrate';
alter role sharequeue_serve login password :'serve';
alter role sharequeue_jobs login password :'jobs';
alter role sharequeue_reports login password :'reports';
alter role dagster login password :'dagster';
grant sharequeue_owner to sharequeue_migrate;
grant sharequeue_service to sharequeue_serve;
grant sharequeue_worker, sharequeue_reader to sharequeue_jobs;
grant sharequeue_reader to sharequeue_reports;

select 'create database sharequeue' where not exists (select from pg_database where datname = 'sharequeue') \gexec
select 'create database dagster' where not exists (select from pg_database where datname = 'dagster') \gexec
alter database sharequeue owner to sharequeue_owner;
alter database dagster owner to dagster;
-- Otherwise every login could connect to both, and create temporary tables there.
revoke all on database sharequeue, dagster from public;
grant connect on database sharequeue to sharequeue_service, sharequeue_worker, sharequeue_reader;
