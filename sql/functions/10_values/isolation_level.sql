-- Calls that change state run at READ COMMITTED. Every operation takes its lock first and then reads. Under REPEATABLE READ
-- and SERIALIZABLE it would read the data as of the start of the transaction. Then it would miss available records, and a
-- snapshot of the journal would be older than its position in it.

-- Refuses a transaction at any other level, before anything has changed. Called by the functions that such calls call first
-- (lock_share_partition, authorise, authorise_cluster), and by the operations that call none of these.
create or replace function sharequeue.require_read_committed() returns void
language plpgsql stable as $$
begin
    if pg_catalog.current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'this transaction is %, but share-partition state can only be changed at READ COMMITTED: begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED',
            pg_catalog.upper(pg_catalog.current_setting('transaction_isolation')) using errcode = 'SQ042';
    end if;
end
$$;

-- Returns Kafka's name of the level at which records are leased and read (group config share.isolation.level).
create or replace function sharequeue_internal.isolation_level(p_read_committed boolean) returns text
language sql immutable parallel safe as $$
    select case p_read_committed when true then 'read_committed' when false then 'read_uncommitted' end
$$;
