-- What an operation costs. Sets of offsets are stored as they are: compressing 50,000 ranges took 56 ms, writing them 4.
alter table sharequeue.in_flight_batches alter column offsets set storage external;

-- What waits for its time, by time: the in-flight bound leaves it out, and summed over every available batch to find it.
create index in_flight_batches_not_before on sharequeue.in_flight_batches (share_partition_id, not_before)
    where not_before is not null;

-- Their successors have other arguments or other names.
drop function if exists sharequeue.answer_part(bigint, bigint, bigint, integer, smallint, boolean, int8multirange,
    smallint, text, timestamptz, text);
drop function if exists sharequeue.check_batches(bigint[], bigint[], smallint[], integer[], boolean);
