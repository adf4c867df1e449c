-- Accepted rows that go on from files into a table of a lakehouse, which has transactions of its own. Which folders go
-- together, under which number, is written here before the table is touched: whoever repeats it repeats exactly that.
create table sharequeue.transfers (
    group_id text not null,
    sink text not null,
    -- Rises with each transfer; the table has the number of the last one that it took.
    number bigint not null,
    -- What is under way; empty when nothing is.
    locations text[] not null,
    records bigint not null,
    -- Until then others leave it to whoever began it.
    claimed_until timestamptz not null,
    constraint transfers_pkey primary key (group_id, sink)
);
create index lease_outputs_pending on sharequeue.lease_outputs (group_id, sink)
    where starts_with(location, 'sink:pending:');

-- The columns of a sink's files with their types, as far as leases have written them.
create table sharequeue.sink_columns (
    group_id text not null,
    sink text not null,
    columns text not null,
    constraint sink_columns_pkey primary key (group_id, sink)
);
