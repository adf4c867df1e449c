-- The one clock. Never now(), which stands still inside a transaction, and never a caller's own time,
-- which could lapse other members' locks.
create or replace function sharequeue.clock() returns timestamptz
language sql volatile set search_path = pg_catalog as $$
    select clock_timestamp() + coalesce((select amount from sharequeue.clock_offset), interval '0')
$$;

-- Moves the clock to so much ahead of real time. For tests; only the owner of the schema can write the table.
create or replace function sharequeue.set_clock_offset(p_amount interval) returns void
language sql volatile set search_path = pg_catalog as $$
    insert into sharequeue.clock_offset (amount) values (p_amount)
    on conflict on constraint clock_offset_pkey do update set amount = excluded.amount
$$;
