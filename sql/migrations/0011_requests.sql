-- The answers of calls are kept by share-partition, operation and member, and no longer by the request id alone: the same id
-- elsewhere got the first one's lease and token. What was kept until now is not found any more, and goes within the hour.
alter table sharequeue.requests rename column request_id to request_key;

-- Their successors have other arguments.
drop function if exists sharequeue.acknowledge(text, text, integer, integer, text, integer, uuid, uuid, int8multirange,
    int8multirange, int8multirange, int8multirange, jsonb, int8multirange, timestamptz, bigint);
drop function if exists sharequeue.remember(uuid, text, jsonb);
