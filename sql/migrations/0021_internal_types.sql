-- What a call's result is kept under says so, and the circuit breaker counts records, however their delivery ended.
alter table sharequeue.requests rename column answer to result;
alter table sharequeue.requests rename column answered_at to finished_at;
alter table sharequeue.circuit_breakers rename column answered to records;

-- What belongs together goes through the internal functions as one argument.

-- The member that calls, and the token of its lease.
create type sharequeue_internal.holder as (member_id text, member_epoch integer, token uuid);

-- How an acquire shall be done, as sharequeue.acquire says.
create type sharequeue_internal.fetch_options as (
    lock_duration_ms integer, redelivery text, mode text, batch_size bigint, log_firsts bigint[], log_lasts bigint[],
    aborted int8multirange, leave_out int8multirange
);

-- Batches as Kafka's clients acknowledge them, as sharequeue.acknowledge_batches says.
create type sharequeue_internal.batches as (
    firsts bigint[], lasts bigint[], types smallint[], type_counts integer[]
);

-- Their successors take these types.
do $$
declare
    v_signature text;
begin
    for v_signature in
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = to_regnamespace('sharequeue_internal') and p.proname = any (array[
            'acknowledge_under_lock', 'acquire_under_lock', 'batch_fault', 'check_acquire', 'fetch_fault',
            'fetch_whole_batch', 'first_failure', 'read_batches', 'runs', 'take_fresh', 'take_kafka'])
    loop
        execute 'drop function ' || v_signature;
    end loop;
end
$$;
