-- What tells a crash recovery from going on, and a replica identity for every table.

-- One row as long as Postgres has not recovered from a crash, written with the service's beats. An unlogged table is empty
-- after a recovery and after a failover; the server's start time stays as it was when the kill of one backend made it
-- recover. What was there before this migration is no crash.
create unlogged table sharequeue.service_run (
    singleton boolean constraint service_run_pkey primary key default true
        constraint service_run_singleton check (singleton)
);
insert into sharequeue.service_run default values;

-- Under a publication for all tables Postgres refuses to change or delete rows that it could not name. The whole row
-- names those of tables without a key; it is written to the WAL only where that is read logically.
do $$
declare
    v_table text;
begin
    for v_table in
        select c.relname from pg_class c
        where c.relnamespace = 'sharequeue'::regnamespace and c.relkind in ('r', 'p') and c.relreplident = 'd'
            and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
        order by c.oid
    loop
        execute format('alter table sharequeue.%I replica identity full', v_table);
    end loop;
end
$$;
