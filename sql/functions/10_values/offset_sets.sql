-- Operations on sets of offsets that int8multirange does not have.
--
-- The cost for sets of n ranges (PostgreSQL 18): && , <@ , * and - read both sets once, + sorts both together, unnest makes
-- a row for each range. So the state functions use && and <@ where they can, count once, and unite late.

-- Returns the number of offsets in a set. Its names are bound when it is created, so it needs no SET, which would make every
-- call slower. unnest is in the select list and not in FROM, where every range would first be stored in a tuplestore.
create or replace function sharequeue.records(p_offsets int8multirange) returns bigint
language sql immutable parallel safe
return (select coalesce(sum(upper(r) - lower(r)), 0)::bigint from (select unnest(p_offsets) as r) as ranges);

-- Returns the lowest p_count offsets of a set, or all of them if there are fewer.
create or replace function sharequeue_internal.first_records(p_offsets int8multirange, p_count bigint) returns int8multirange
language sql immutable parallel safe set search_path = pg_catalog as $$
    -- Counted first: usually all are needed, and numbering a million ranges takes ten times as long.
    select case when sharequeue.records(p_offsets) <= p_count then p_offsets else (
        select coalesce(range_agg(int8range(first, first + least(past - first, p_count - before))), '{}'::int8multirange)
        from (
            select
                lower(r) as first,
                upper(r) as past,
                (sum(upper(r) - lower(r)) over (order by lower(r)))::bigint - (upper(r) - lower(r)) as before
            from unnest(p_offsets) as r
        ) as ranges
        where before < p_count) end
$$;

-- Returns a set without the offsets below p_first; the same set, without a copy, if there are none.
create or replace function sharequeue_internal.offsets_from(p_offsets int8multirange, p_first bigint) returns int8multirange
language sql immutable parallel safe
return case when lower(p_offsets) < p_first then p_offsets * int8multirange(int8range(p_first, null)) else p_offsets end;
