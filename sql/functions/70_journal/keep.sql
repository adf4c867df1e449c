-- Maintenance of the journal: snapshots after a number of updates, partitions for the next days, removal of old partitions, and
-- the figures of each day, which stay. Maintenance (sharequeue/state/journal.py) calls each function in a transaction of its own;
-- concurrent calls do no harm.

-- Locks those of the given share-partitions that no other call has locked. Returns their ids, in the order of locks.
create or replace function sharequeue_internal.lock_for_snapshots(p_share_partition_ids bigint[]) returns bigint[]
language sql volatile as $$
    select array(
        select share_partition_id from sharequeue.share_partitions
        where share_partition_id = any (p_share_partition_ids)
        order by share_partition_id for no key update skip locked)
$$;

-- Takes snapshots of share-partitions whose journal has grown by p_updates rows or more since their last one
-- (share.coordinator.snapshot.update.records.per.snapshot), those that have grown most first, p_limit at most.
-- Growth is counted since the last call, so that operations need not count it: between two calls a share-partition
-- may exceed the limit. A share-partition that another call is using waits for the next call.
create or replace function sharequeue.take_snapshots(p_updates integer, p_limit integer default 100) returns integer
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_counted bigint;
    v_last bigint;
    v_grown bigint[];
    v_updates bigint[];
    v_locked bigint[];
    v_id bigint;
    v_taken integer := 0;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_between('the number of updates', p_updates, 1, 2147483647),
        sharequeue_internal.check_between('the limit of snapshots', p_limit, 1, 2147483647);
    select journal_id into v_counted from sharequeue.journal_counted for update skip locked;
    if not found then
        return 0;
    end if;
    select array_agg(n.share_partition_id order by n.share_partition_id), array_agg(n.updates order by n.share_partition_id),
        max(n.last_id) into v_grown, v_updates, v_last
    from (
        select j.share_partition_id, count(*) as updates, max(j.journal_id) as last_id
        from sharequeue.journal j where j.journal_id > v_counted group by j.share_partition_id
    ) as n;
    -- All of them before the rows that refer to them (30_state/lock_order.sql).
    v_locked := sharequeue_internal.lock_for_snapshots(array(
        select share_partition_id from (
            select n.id, n.updates from unnest(v_grown, v_updates) as n (id, updates)
            union all
            select g.share_partition_id, g.updates from sharequeue.journal_growth g
        ) as both_of (share_partition_id, updates)
        group by share_partition_id having sum(updates) >= p_updates order by sum(updates) desc limit p_limit));
    insert into sharequeue.journal_growth as g (share_partition_id, updates)
    select n.id, n.updates from unnest(v_grown, v_updates) as n (id, updates) order by n.id
    on conflict on constraint journal_growth_pkey do update set updates = g.updates + excluded.updates;
    if v_last is not null then
        update sharequeue.journal_counted set journal_id = v_last;
    end if;
    foreach v_id in array v_locked loop
        perform sharequeue.take_snapshot(v_id);
        v_taken := v_taken + 1;
    end loop;
    -- Rows of deleted share-partitions: their last rows were counted after the deletion.
    delete from sharequeue.journal_growth g where g.updates >= p_updates and not exists (
        select from sharequeue.share_partitions sp where sp.share_partition_id = g.share_partition_id);
    return v_taken;
end
$$;

-- Returns the journal's partitions by day, oldest first, without the one for all other times.
create or replace function sharequeue.journal_partitions() returns table (day date, name text, bytes bigint)
language sql stable set search_path = pg_catalog as $$
    select to_date(right(c.relname, 8), 'YYYYMMDD'), c.relname::text, pg_total_relation_size(c.oid)
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'sharequeue.journal'::regclass and c.relname ~ '^journal_[0-9]{8}$'
    order by 1
$$;

-- Returns the days (UTC) of which the journal has a partition or rows, oldest first. Each day in the partition for all other times
-- is found by one lookup in its index.
create or replace function sharequeue.journal_days() returns setof date
language sql stable set search_path = pg_catalog set timezone = 'UTC' as $$
    with recursive others (day) as (
        (select o.at::date from sharequeue.journal_other o order by o.at limit 1)
        union all
        select (select n.at::date from sharequeue.journal_other n where n.at >= (o.day + 1)::timestamptz order by n.at limit 1)
        from others o where o.day is not null
    )
    select p.day from sharequeue.journal_partitions() as p
    union
    select o.day from others o where o.day >= date '2000-01-01'
    order by 1
$$;

-- Creates the partitions of today and the next p_ahead days (UTC). Each is created separately and then attached, so that no call
-- has to wait. No rows are moved: a day that already has rows in the partition for all other times stays there, where they are
-- counted and removed like those of other days. Returns the days that were created: none while another call creates them.
create or replace function sharequeue.make_journal_partitions(p_ahead integer default 2) returns date[]
language plpgsql volatile set search_path = pg_catalog set timezone = 'UTC' set lock_timeout = '250ms' as $$
declare
    v_today date := sharequeue.clock()::date;
    v_day date;
    v_made date[] := '{}';
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_between('the number of days ahead', p_ahead, 0, 366);
    if not pg_try_advisory_xact_lock(7264519032120) then
        return v_made;
    end if;
    -- Today last: calls may write rows of it at this moment, and without a partition it goes on in the one for all other times.
    for v_day in select d::date from generate_series(v_today, v_today + p_ahead, interval '1 day') as d order by d desc loop
        continue when to_regclass('sharequeue.journal_' || to_char(v_day, 'YYYYMMDD')) is not null;
        begin
            if sharequeue_internal.make_journal_partition(v_day) then
                v_made := v_day || v_made;
            end if;
        exception when lock_not_available then
            if v_day > v_today then
                raise;
            end if;
        end;
    end loop;
    return v_made;
end
$$;

-- Creates the partition of one day. Returns false, without one, if the partition for all other times has rows of the day.
create or replace function sharequeue_internal.make_journal_partition(p_day date) returns boolean
language plpgsql volatile as $$
declare
    v_name text := 'journal_' || to_char(p_day, 'YYYYMMDD');
    v_from timestamptz := p_day::timestamptz;
    v_to timestamptz := (p_day + 1)::timestamptz;
begin
    if exists (select from sharequeue.journal_other where at >= v_from and at < v_to) then
        return false;
    end if;
    execute format('create table sharequeue.%I (like sharequeue.journal including defaults including indexes including storage)', v_name);
    execute format('alter table sharequeue.%I replica identity full', v_name);
    if v_from < sharequeue.clock() + interval '1 minute' then
        -- A call that has chosen the partition for all other times for a row of this day would fail after the attach. So calls
        -- that write end first, and new ones wait before they choose.
        lock table sharequeue.journal in share row exclusive mode;
    end if;
    execute format('alter table sharequeue.journal attach partition sharequeue.%I for values from (%L) to (%L)', v_name, v_from, v_to);
    return true;
exception when check_violation then
    return false;  -- a row of the day was written in between
end
$$;

-- Takes a snapshot of each share-partition that has none after a journal id, p_limit at most. Returns whether all have one now:
-- then no replay needs the rows up to that id.
create or replace function sharequeue_internal.take_snapshots_after(p_journal_id bigint, p_limit integer) returns boolean
language plpgsql volatile as $$
declare
    v_id bigint;
begin
    foreach v_id in array sharequeue_internal.lock_for_snapshots(array(
        select sp.share_partition_id from sharequeue.share_partitions sp
        where not exists (select from sharequeue.journal_snapshots s
            where s.share_partition_id = sp.share_partition_id and s.journal_id > p_journal_id)
        order by sp.share_partition_id limit p_limit))
    loop
        perform sharequeue.take_snapshot(v_id);
    end loop;
    return not exists (
        select from sharequeue.share_partitions sp where not exists (select from sharequeue.journal_snapshots s
            where s.share_partition_id = sp.share_partition_id and s.journal_id > p_journal_id));
end
$$;

-- Counts a day for the last time, before its rows are removed.
create or replace function sharequeue_internal.close_journal_day(p_day date) returns void
language plpgsql volatile as $$
begin
    if p_day >= date '2000-01-01' then
        perform sharequeue.roll_up_journal(p_day);
        update sharequeue.journal_rolled_up set closed = true where day = p_day;
    end if;
end
$$;

-- Drops the partition of the oldest day whose journal is older than p_retention, after its roll-up. Before that every
-- share-partition whose replay needs it gets a snapshot. While one cannot be taken, because p_limit is reached or another call
-- has the row, the partition stays. Returns the dropped day, null if none was due or it has to wait, also for another call that
-- creates or drops partitions. Dropping needs a lock that conflicts with every operation: after a quarter of a second the call
-- gives up (55P03), and the next maintenance tries again.
create or replace function sharequeue.drop_journal_partition(p_retention interval, p_limit integer default 1000)
returns date
language plpgsql volatile set search_path = pg_catalog set timezone = 'UTC' set lock_timeout = '250ms' as $$
declare
    v_day date;
    v_name text;
    v_end timestamptz;
    v_last bigint;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_span('the retention', p_retention),
        sharequeue_internal.check_between('the limit of snapshots', p_limit, 1, 2147483647);
    if not pg_try_advisory_xact_lock(7264519032120) then
        return null;
    end if;
    select p.day, p.name into v_day, v_name from sharequeue.journal_partitions() as p limit 1;
    v_end := (v_day + 1)::timestamptz;
    if v_day is null or v_end > sharequeue.clock() - p_retention then
        return null;
    end if;
    execute format('select coalesce(max(journal_id), 0) from sharequeue.%I', v_name) into v_last;
    if not sharequeue_internal.take_snapshots_after(v_last, p_limit) then
        return null;
    end if;
    -- After this lock no call can write to the day any more, so that the roll-up is complete.
    execute format('lock table sharequeue.%I in access exclusive mode', v_name);
    perform sharequeue_internal.close_journal_day(v_day);
    delete from sharequeue.journal_snapshots where journal_id <= v_last;
    execute format('drop table sharequeue.%I', v_name);
    return v_day;
end
$$;

-- Removes rows of the oldest day in the partition for all other times, p_limit at most, if its journal is older than p_retention:
-- rows of days without maintenance, and of clocks that were wrong. As for a partition, the day is counted and replays get their
-- snapshots before. Returns the number of removed rows.
create or replace function sharequeue.clear_other_journal(p_retention interval, p_limit integer default 100000)
returns bigint
language plpgsql volatile set search_path = pg_catalog set timezone = 'UTC' as $$
declare
    v_day date;
    v_from timestamptz;
    v_to timestamptz;
    v_last bigint;
    v_gone bigint;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_span('the retention', p_retention),
        sharequeue_internal.check_between('the limit of rows', p_limit, 1, 2147483647);
    if not pg_try_advisory_xact_lock(7264519032120) then
        return 0;
    end if;
    select o.at::date into v_day from sharequeue.journal_other o order by o.at limit 1;
    v_from := v_day::timestamptz;
    v_to := (v_day + 1)::timestamptz;
    if v_day is null or v_to > sharequeue.clock() - p_retention then
        return 0;
    end if;
    select max(o.journal_id) into v_last from sharequeue.journal_other o where o.at >= v_from and o.at < v_to;
    if not sharequeue_internal.take_snapshots_after(v_last, 1000) then
        return 0;
    end if;
    perform sharequeue_internal.close_journal_day(v_day);
    delete from sharequeue.journal_snapshots where journal_id <= v_last;
    delete from sharequeue.journal_other where ctid = any (array(
        select o.ctid from sharequeue.journal_other o where o.at >= v_from and o.at < v_to limit p_limit));
    get diagnostics v_gone = row_count;
    return v_gone;
end
$$;

-- Rolls up one day (UTC) of the journal: one row per share-partition, and one per bar of the histogram of delivery counts. A
-- second call counts again, so the current day may be rolled up any number of times; a day whose rows are being removed is not
-- counted again. Returns the number of share-partitions.
create or replace function sharequeue.roll_up_journal(p_day date) returns integer
language plpgsql volatile set search_path = pg_catalog set timezone = 'UTC' as $$
declare
    v_rows integer;
begin
    perform sharequeue.require_read_committed();
    if not coalesce(p_day between date '2000-01-01' and date '9999-12-31', false) then
        raise exception 'day % is out of range: expected a day from 2000-01-01 to 9999-12-31', p_day using errcode = 'SQ042';
    end if;
    if exists (select from sharequeue.journal_rolled_up r where r.day = p_day and r.closed) then
        return 0;
    end if;
    with changes as (
        select j.share_partition_id as id, j.journal_id, j.kind, j.delivery_complete_count, j.state_epoch,
            j.accepted_first, j.lost_records, j.delivery_count, j.group_id, j.topic, j.partition, j.spso, j.speo
        from sharequeue.journal j where j.at >= p_day::timestamptz and j.at < (p_day + 1)::timestamptz
    ), before as (
        -- The figures at the start of the day: those of the last day, or, for a share-partition without one, its first image.
        select c.id, coalesce(d.speo, c.speo) as speo, coalesce(d.total_accepted_first, c.accepted_first) as accepted_first,
            coalesce(d.total_lost_records, c.lost_records, 0) as lost_records, d.state_epoch,
            d.delivery_complete_count
        from (
            select distinct on (id) id, speo, accepted_first, lost_records from changes where speo is not null
            order by id, journal_id
        ) as c
        left join lateral (
            select d.speo, d.total_accepted_first, d.total_lost_records, d.state_epoch, d.delivery_complete_count
            from sharequeue.journal_daily d where d.share_partition_id = c.id and d.day < p_day
            order by d.day desc limit 1) as d on true
    ), steps as (
        -- Records also pass SPEO because retention removed them, or because the offsets were reset: these did not enter. The
        -- number of lost records falls when a holder accepts some of them later, so it is compared with the row before.
        select c.id, c.journal_id, c.speo - coalesce(lag(c.speo) over w, b.speo) as entered,
            coalesce(c.lost_records, 0) - coalesce(lag(c.lost_records) over w, b.lost_records) as lost,
            c.state_epoch is distinct from coalesce(lag(c.state_epoch) over w, b.state_epoch, c.state_epoch) as reset
        from changes c join before b using (id) where c.speo is not null
        window w as (partition by c.id order by c.journal_id)
    ), days as (
        select c.id, count(*) as updates, count(*) filter (where c.kind = 'snapshot') as snapshots,
            max(c.delivery_count) filter (where c.kind = 'batch') as highest,
            (array_agg(c.spso order by c.journal_id desc) filter (where c.spso is not null))[1] as spso,
            (array_agg(c.speo order by c.journal_id desc) filter (where c.speo is not null))[1] as speo,
            (array_agg(c.delivery_complete_count order by c.journal_id desc)
                filter (where c.delivery_complete_count is not null))[1] as complete,
            (array_agg(c.state_epoch order by c.journal_id desc) filter (where c.state_epoch is not null))[1] as epoch,
            -- The last one, not the highest: records that a holder accepts after retention removed them no longer count as lost.
            max(c.accepted_first) as accepted_first, (array_agg(c.lost_records order by c.journal_id desc)
                filter (where c.lost_records is not null))[1] as lost_records,
            max(c.group_id) as group_id, max(c.topic) as topic, max(c.partition) as partition
        from changes c group by c.id
    ), granted as (
        -- By the time of the acquire: renewals and snapshots journal a lease again, on any later day, and a part that was renewed
        -- alone has the same token. The row of an acquire at midnight may be one of the next day.
        select j.share_partition_id as id, count(distinct j.token) as leases from sharequeue.journal j
        where j.at >= p_day::timestamptz and j.at < (p_day + 1)::timestamptz + interval '1 minute' and j.kind = 'lease'
            and j.acquired_at >= p_day::timestamptz and j.acquired_at < (p_day + 1)::timestamptz
        group by j.share_partition_id
    )
    insert into sharequeue.journal_daily as d (day, share_partition_id, group_id, topic, partition, updates, snapshots,
        leases, entered, accepted_first, lost_records, highest_delivery_count, spso, speo, delivery_complete_count,
        state_epoch, total_accepted_first, total_lost_records)
    select p_day, y.id, coalesce(sp.group_id, y.group_id, '?'), coalesce(sp.topic, y.topic, '?'),
        coalesce(sp.partition, y.partition, -1), y.updates, y.snapshots, coalesce(g.leases, 0),
        coalesce((select sum(s.entered) from steps s where s.id = y.id and s.entered > 0 and s.lost <= 0 and not s.reset), 0),
        coalesce(y.accepted_first - b.accepted_first, 0), coalesce(y.lost_records - b.lost_records, 0),
        coalesce(y.highest, 0), y.spso, y.speo, coalesce(y.complete, b.delivery_complete_count, 0),
        coalesce(y.epoch, b.state_epoch, 0), y.accepted_first, coalesce(y.lost_records, b.lost_records, 0)
    from days y join before b using (id) left join granted g using (id)
    left join sharequeue.share_partitions sp on sp.share_partition_id = y.id
    order by y.id
    on conflict on constraint journal_daily_pkey do update set updates = excluded.updates,
        snapshots = excluded.snapshots, leases = excluded.leases, entered = excluded.entered,
        accepted_first = excluded.accepted_first, lost_records = excluded.lost_records,
        highest_delivery_count = excluded.highest_delivery_count, spso = excluded.spso, speo = excluded.speo,
        delivery_complete_count = excluded.delivery_complete_count, state_epoch = excluded.state_epoch,
        total_accepted_first = excluded.total_accepted_first, total_lost_records = excluded.total_lost_records;
    get diagnostics v_rows = row_count;
    insert into sharequeue.journal_daily_outcomes as d (day, share_partition_id, outcome, delivery_count, records)
    select p_day, j.share_partition_id, j.cause, j.delivery_count, sum(j.records)
    from sharequeue.journal j
    where j.at >= p_day::timestamptz and j.at < (p_day + 1)::timestamptz and j.kind = 'outcome'
    group by j.share_partition_id, j.cause, j.delivery_count
    order by j.share_partition_id, j.cause, j.delivery_count
    on conflict on constraint journal_daily_outcomes_pkey do update set records = excluded.records;
    insert into sharequeue.journal_rolled_up (day) values (p_day) on conflict on constraint journal_rolled_up_pkey do nothing;
    return v_rows;
end
$$;

-- Rolls up the oldest day that is over and not rolled up yet; one day in a call. Returns it. Rows of a day that are committed
-- later are in its last count, when its partition is dropped.
create or replace function sharequeue.roll_up_due_days() returns date[]
language plpgsql volatile set search_path = pg_catalog set timezone = 'UTC' as $$
declare
    v_today date := sharequeue.clock()::date;
    v_day date;
begin
    perform sharequeue.require_read_committed();
    -- Days that were counted before the clock was set back are not over.
    delete from sharequeue.journal_rolled_up where day >= v_today and not closed;
    select d.day into v_day from sharequeue.journal_days() as d (day)
    where d.day < v_today and not exists (select from sharequeue.journal_rolled_up r where r.day = d.day)
    order by d.day limit 1;
    if v_day is null then
        return '{}';
    end if;
    perform sharequeue.roll_up_journal(v_day);
    return array[v_day];
end
$$;
