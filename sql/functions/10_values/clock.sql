-- Returns the time by the only clock that operations use. now() does not change inside a transaction, and with the time of a
-- caller other members' locks could lapse. It runs as the owner (99_permissions.sql). It has no SET, because that would make
-- every operation slower; so every name in it is qualified, also the operator.
create or replace function sharequeue.clock() returns timestamptz
language plpgsql volatile as $$
begin
    return pg_catalog.clock_timestamp() operator(pg_catalog.+) coalesce(
        (select amount from sharequeue.clock_offset), pg_catalog.make_interval());
end
$$;

-- Sets how far the clock is ahead of real time. For tests; only the owner of the schema can write the table.
create or replace function sharequeue.set_clock_offset(p_amount interval) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue.require_read_committed();
    insert into sharequeue.clock_offset (amount) values (p_amount)
    on conflict on constraint clock_offset_pkey do update set amount = excluded.amount;
end
$$;
