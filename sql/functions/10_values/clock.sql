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

-- Returns whether a stored time is in the future: the clock was set back since. Calls read the clock at slightly different times,
-- so a second does not count.
create or replace function sharequeue_internal.is_ahead(p_time timestamptz, p_now timestamptz) returns boolean
language sql immutable parallel safe as $$ select p_time > p_now + interval '1 second' $$;

-- Returns the seconds since a time. The clock may have been set back since: a time in the future counts as now.
create or replace function sharequeue_internal.seconds_since(p_time timestamptz, p_now timestamptz) returns double precision
language sql immutable parallel safe as $$
    select case when p_time < p_now then extract(epoch from p_now - p_time) when p_time >= p_now then 0 end::double precision
$$;

-- Returns the seconds since a replica or a broker was last heard. A time in the future proves nothing about the present: by as
-- much as it is ahead, it counts as past. What is alive writes the present time a moment later.
create or replace function sharequeue_internal.seconds_unheard(p_time timestamptz, p_now timestamptz) returns double precision
language sql immutable parallel safe as $$
    select abs(extract(epoch from p_now - p_time))::double precision
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

-- Returns the time of held records (order by key), which wait without one, until the records before them are finished.
create or replace function sharequeue_internal.no_time() returns timestamptz
language sql immutable parallel safe as $$ select timestamptz '9999-01-01 00:00:00+00' $$;
