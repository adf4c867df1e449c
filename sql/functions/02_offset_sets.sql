-- Arithmetic on sets of offsets that int8multirange does not bring along.

-- How many offsets a set holds.
create or replace function sharequeue.records(p_offsets int8multirange) returns bigint
language sql immutable parallel safe set search_path = pg_catalog as $$
    select coalesce(sum(upper(r) - lower(r)), 0)::bigint from unnest(p_offsets) as r
$$;

-- The lowest p_count offsets of a set; all of it when it holds fewer.
create or replace function sharequeue.first_records(p_offsets int8multirange, p_count bigint) returns int8multirange
language sql immutable parallel safe set search_path = pg_catalog as $$
    select coalesce(range_agg(int8range(first, least(past, first + p_count - before))), '{}'::int8multirange)
    from (
        select
            lower(r) as first,
            upper(r) as past,
            (sum(upper(r) - lower(r)) over (order by lower(r)))::bigint - (upper(r) - lower(r)) as before
        from unnest(p_offsets) as r
    ) as ranges
    where before < p_count
$$;
