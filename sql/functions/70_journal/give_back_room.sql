-- Rewrites tables that are almost empty. A long transaction elsewhere prevents vacuum from removing dead rows. When
-- it has ended, vacuum makes their space reusable but does not return it to the system. A few thousand rows
-- scattered over hundreds of megabytes make every vacuum and checkpoint slow. Operations wait while a table is
-- rewritten.
--
-- A table is rewritten only if it has more than p_least bytes and would need p_factor times less; if its dead rows would fit
-- in a quarter of its space (otherwise vacuum has not run yet, or is held up, and they would be copied too); and if it can
-- be locked within 100 ms. Returns the rewritten tables.
create or replace function sharequeue.give_back_room(p_least bigint default 33554432, p_factor integer default 4)
returns text[]
language plpgsql volatile set search_path = pg_catalog set lock_timeout = '100ms' as $$
declare
    v_done text[] := '{}';
    v_table record;
    v_width double precision;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_between('the minimum size in bytes', p_least, 0, 9223372036854775807),
        sharequeue_internal.check_between('the factor', p_factor, 2, 1000000);
    for v_table in
        select c.relname as name, pg_relation_size(c.oid) as bytes, k.relname as key,
            pg_stat_get_live_tuples(c.oid) as live, pg_stat_get_dead_tuples(c.oid) as dead,
            coalesce((select option_value::integer from pg_options_to_table(c.reloptions)
                where option_name = 'fillfactor'), 100) as fill
        from pg_class c
        join pg_index i on i.indrelid = c.oid and i.indisprimary
        join pg_class k on k.oid = i.indexrelid
        where c.relnamespace = 'sharequeue'::regnamespace and c.relkind = 'r' and not c.relispartition
            and pg_relation_size(c.oid) > p_least
        order by c.relname
    loop
        execute format('select coalesce(avg(pg_column_size(t)), 0) + 28 from (select * from sharequeue.%I limit 100) as t',
            v_table.name) into v_width;
        continue when v_table.bytes < p_factor * v_table.live * v_width * 100 / v_table.fill
            or v_table.dead * v_width * 4 > v_table.bytes - v_table.live * v_width * 100 / v_table.fill;
        begin
            execute format('cluster sharequeue.%I using %I', v_table.name, v_table.key);
            -- Only once: the schema keeps no trace of it.
            execute format('alter table sharequeue.%I set without cluster', v_table.name);
            v_done := v_done || v_table.name::text;
        exception when lock_not_available then
            null;
        end;
    end loop;
    return v_done;
end
$$;
