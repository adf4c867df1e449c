-- Arithmetic on sets of offsets that int8multirange does not bring along.
--
-- What sets of n ranges cost (PostgreSQL 18): && , <@ , * and - walk both once, + sorts both together, unnest
-- makes a row a range. So the state functions ask && and <@ where they can, count once, and unite late.

-- How many offsets a set holds. Its names are bound when it is made, so it needs no SET, which every call would pay for.
-- unnest stands in the select list, not after FROM, where every range would be kept in a tuplestore first.
create or replace function sharequeue.records(p_offsets int8multirange) returns bigint
language sql immutable parallel safe
return (select coalesce(sum(upper(r) - lower(r)), 0)::bigint from (select unnest(p_offsets) as r) as ranges);

-- The lowest p_count offsets of a set; all of it when it holds fewer.
create or replace function sharequeue_internal.first_records(p_offsets int8multirange, p_count bigint) returns int8multirange
language sql immutable parallel safe set search_path = pg_catalog as $$
    -- Counted first: most often all are wanted, and to number a million ranges takes ten times as long.
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

-- A set without what lies below an offset; the same set, untouched, where nothing does.
create or replace function sharequeue_internal.offsets_from(p_offsets int8multirange, p_first bigint) returns int8multirange
language sql immutable parallel safe
return case when lower(p_offsets) < p_first then p_offsets * int8multirange(int8range(p_first, null)) else p_offsets end;
