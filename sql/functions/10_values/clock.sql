-- The one clock. Never now(), which stands still inside a transaction, and never a caller's own time,
-- which could lapse other members' locks. Every name in it is qualified, the operator too, because it runs as the owner
-- (99_permissions.sql) and carries no SET: that made each call 3 µs dearer, and every operation asks it once.
create or replace function sharequeue.clock() returns timestamptz
language plpgsql volatile as $$
begin
    return pg_catalog.clock_timestamp() operator(pg_catalog.+) coalesce(
        (select amount from sharequeue.clock_offset), pg_catalog.make_interval());
end
$$;

-- Moves the clock to so much ahead of real time. For tests; only the owner of the schema can write the table.
create or replace function sharequeue.set_clock_offset(p_amount interval) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue.require_read_committed();
    insert into sharequeue.clock_offset (amount) values (p_amount)
    on conflict on constraint clock_offset_pkey do update set amount = excluded.amount;
end
$$;
