-- The bare prototype that acknowledge and acquire are measured against: two statements, no rules. No locks that lapse, no
-- members, no delivery counts, no fencing, no lost replies; one row per in-flight batch.
create schema bare;

create table bare.share_partitions (
    share_partition_id integer constraint share_partitions_pkey primary key,
    spso bigint not null,
    speo bigint not null
) with (fillfactor = 50);

create table bare.batches (
    share_partition_id integer not null,
    first_offset bigint not null,
    last_offset bigint not null,
    member_id text not null,
    expires_at timestamptz not null,
    constraint batches_pkey primary key (share_partition_id, first_offset)
) with (fillfactor = 70);

insert into bare.share_partitions select number, 0, 0 from generate_series(1, 8) as number;

-- Accepts one batch and leases the next.
create function bare.fetch(
    p_id integer, p_first bigint, p_last bigint, p_records bigint, out first_offset bigint, out last_offset bigint
)
language plpgsql as $$
begin
    update bare.share_partitions
    set spso = case when spso = p_first then p_last + 1 else spso end, speo = speo + p_records
    where share_partition_id = p_id
    returning speo - p_records, speo - 1 into first_offset, last_offset;
    with gone as (delete from bare.batches b where b.share_partition_id = p_id and b.first_offset = p_first)
    insert into bare.batches values (p_id, first_offset, last_offset, 'member', clock_timestamp() + interval '30 s');
end
$$;
