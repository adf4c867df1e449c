-- A set of a million ranges is 21 MB. To compress it takes Postgres 0.8 s each time it is stored, which is more than all else
-- that is done with it, and to write it out as it is 0.1 s. Sets that fit into their row are not concerned.
alter table sharequeue.in_flight_batches alter column offsets set storage external;
alter table sharequeue.journal alter column offsets set storage external;

-- The sets of offsets of a stored result, apart from it, so that they need not be written as JSON. In the order of its rows.
alter table sharequeue.requests add column sets int8multirange[];
alter table sharequeue.requests alter column sets set storage external;
-- Its successor takes the sets, too.
drop function if exists sharequeue_internal.remember(uuid, text, jsonb);
