-- Which state this is: outputs carry it in their names, so that another database, or this one made anew, neither
-- overwrites nor sweeps them.
create table sharequeue.state_identity (
    only_row boolean constraint state_identity_pkey primary key default true
        constraint state_identity_one_row check (only_row),
    state_id uuid not null default gen_random_uuid()
);
insert into sharequeue.state_identity default values;
