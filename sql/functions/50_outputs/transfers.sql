-- Acknowledged rows in files that are then written to a table with transactions of its own. Their location in the manifest
-- begins with `sink:pending:`. All waiting rows of a sink go together, with one number. The table accepts a number only once. So
-- any process may repeat a transfer at any time, until end_transfer has been called.

-- Returns the transfer to do now: the current one, or a new one of all waiting rows, or no row. It is claimed for
-- some time, so that others do not do the same work; `busy` is one that another process has claimed. A claim is not
-- a lock: a process that continues after its claim has lapsed does no harm.
create or replace function sharequeue.begin_transfer(p_group_id text, p_sink text, p_claim interval)
returns table (number bigint, locations text[], records bigint, busy boolean)
language plpgsql volatile set search_path = pg_catalog as $$
#variable_conflict use_column
declare
    v_open sharequeue.transfers;
    v_at timestamptz;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_name('the group id', p_group_id), sharequeue_internal.check_name('the sink', p_sink),
        sharequeue_internal.check_span('the claim', p_claim);
    insert into sharequeue.transfers (group_id, sink, number, locations, records, claimed_until)
    values (p_group_id, p_sink, 0, '{}', 0, sharequeue.clock())
    on conflict on constraint transfers_pkey do nothing;
    select * into v_open from sharequeue.transfers d where d.group_id = p_group_id and d.sink = p_sink for update;
    v_at := sharequeue.clock();
    if cardinality(v_open.locations) = 0 then
        select array_agg(distinct o.location), sum(o.records)::bigint into v_open.locations, v_open.records
        from sharequeue.lease_outputs o
        where o.group_id = p_group_id and o.sink = p_sink and starts_with(o.location, 'sink:pending:');
        if v_open.locations is null then
            return;
        end if;
        -- From the clock: a database that was restored from a copy must not reuse a number that the table has accepted.
        v_open.number := greatest(v_open.number + 1, floor(extract(epoch from v_at) * 1000)::bigint);
    -- A claim of longer than that was made before the clock was set back.
    elsif v_open.claimed_until > v_at and not sharequeue_internal.is_ahead(v_open.claimed_until, v_at + p_claim) then
        return query select v_open.number, v_open.locations, v_open.records, true;
        return;
    end if;
    update sharequeue.transfers d
    set number = v_open.number, locations = v_open.locations, records = v_open.records, claimed_until = v_at + p_claim
    where d.group_id = p_group_id and d.sink = p_sink;
    return query select v_open.number, v_open.locations, v_open.records, false;
end
$$;

-- Records that the table has accepted the transfer of this number, so that its rows count there. Returns the number
-- of outputs that moved; none if another process was faster.
create or replace function sharequeue.end_transfer(p_group_id text, p_sink text, p_number bigint, p_location text)
returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_open sharequeue.transfers;
    v_moved bigint;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_name('the group id', p_group_id), sharequeue_internal.check_name('the sink', p_sink),
        sharequeue_internal.check_present('the number', p_number),
        sharequeue_internal.check_text('the location', p_location, 4096);
    select * into v_open from sharequeue.transfers d where d.group_id = p_group_id and d.sink = p_sink for update;
    if not found or v_open.number <> p_number or cardinality(v_open.locations) = 0 then
        return 0;
    end if;
    update sharequeue.lease_outputs o set location = p_location
    where o.group_id = p_group_id and o.sink = p_sink and starts_with(o.location, 'sink:pending:')
        and o.location = any (v_open.locations);
    get diagnostics v_moved = row_count;
    update sharequeue.transfers d set locations = '{}', records = 0
    where d.group_id = p_group_id and d.sink = p_sink;
    return v_moved;
end
$$;

-- Stores the columns of a sink's files, if the stored ones are p_known; with p_columns null it changes nothing. Returns
-- the columns that are stored now, null if there are none.
create or replace function sharequeue.keep_sink_columns(p_group_id text, p_sink text, p_known text, p_columns text)
returns text
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_kept text;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_name('the group id', p_group_id), sharequeue_internal.check_name('the sink', p_sink);
    if p_columns is not null then
        perform sharequeue_internal.check_text('the columns', p_columns, 1048576);
        insert into sharequeue.sink_columns as c (group_id, sink, columns) values (p_group_id, p_sink, p_columns)
        on conflict on constraint sink_columns_pkey do update set columns = excluded.columns where c.columns = p_known;
    end if;
    select c.columns into v_kept from sharequeue.sink_columns c where c.group_id = p_group_id and c.sink = p_sink;
    return v_kept;
end
$$;
