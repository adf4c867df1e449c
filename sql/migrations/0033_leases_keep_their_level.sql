-- A lease is read at the isolation level at which it was acquired: acquire returns the level, and the lease keeps it.

alter type sharequeue.acquired add attribute isolation_level text;
alter type sharequeue.acquired_of add attribute isolation_level text;
alter type sharequeue.acknowledged_and_acquired add attribute isolation_level text;

-- Null for leases that are older than the column.
alter table sharequeue.leases add column read_committed boolean;
alter table sharequeue.journal add column read_committed boolean;

-- What is folded keeps its level in its row, and the journal did not hear of it: these leases have none either.
do $$
declare
    v_id bigint;
begin
    for v_id in
        select share_partition_id from sharequeue.share_partitions
        where folded_lease_id is not null order by share_partition_id for no key update
    loop
        perform sharequeue_internal.unfold(v_id);
    end loop;
end
$$;

-- It returns the level, too.
drop function if exists sharequeue.replay_leases(bigint, bigint, bigint);
