-- Acknowledged rows in files that are then written to a target with transactions of its own: a table or a topic. Their
-- location in the manifest begins with `sink:pending:`. All waiting rows of a sink go together, with one number. The target accepts
-- a number only once. So any process may repeat a transfer at any time, until end_transfer has been called.

-- Returns the transfer to do now: the current one, or a new one of all waiting rows, or no row. It is claimed for
-- some time, so that others do not do the same work; `busy` is one that another process has claimed. A claim is not
-- a lock: a process that continues after its claim has lapsed does no harm. Each location has the source partition of its rows,
-- in the order of the leases. If a topic was made again, a transfer has the rows of one of its ids only, the older ones first: its
-- offsets come again.
create or replace function sharequeue.begin_transfer(p_group_id text, p_sink text, p_claim interval)
returns table (number bigint, locations text[], topics text[], partitions integer[], records bigint, busy boolean)
language plpgsql volatile set search_path = pg_catalog as $$
#variable_conflict use_column
declare
    v_open sharequeue.transfers;
    v_at timestamptz;
    v_busy boolean := false;
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
        from (
            select o.location, o.records, o.topic_id,
                first_value(o.topic_id) over (partition by o.topic, o.partition order by o.lease_id) as first_id
            from sharequeue.lease_outputs o
            where o.group_id = p_group_id and o.sink = p_sink and starts_with(o.location, 'sink:pending:')) as o
        where o.topic_id = o.first_id;
        if v_open.locations is null then
            return;
        end if;
        -- From the clock: a database that was restored from a copy must not reuse a number that the table has accepted.
        v_open.number := greatest(v_open.number + 1, floor(extract(epoch from v_at) * 1000)::bigint);
    -- A claim of longer than that was made before the clock was set back.
    elsif v_open.claimed_until > v_at and not sharequeue_internal.is_ahead(v_open.claimed_until, v_at + p_claim) then
        v_busy := true;
    end if;
    if not v_busy then
        update sharequeue.transfers d
        set number = v_open.number, locations = v_open.locations, records = v_open.records, claimed_until = v_at + p_claim
        where d.group_id = p_group_id and d.sink = p_sink;
    end if;
    return query
        select v_open.number, array_agg(o.location order by o.lease_id), array_agg(o.topic order by o.lease_id),
            array_agg(o.partition order by o.lease_id), v_open.records, v_busy
        from (
            select distinct on (o.location) o.location, o.topic, o.partition, o.lease_id from sharequeue.lease_outputs o
            where o.group_id = p_group_id and o.sink = p_sink and starts_with(o.location, 'sink:pending:')
                and o.location = any (v_open.locations)
            order by o.location, o.lease_id) as o;
end
$$;

-- Extends the claim of a transfer that takes long. Returns false if it has ended.
create or replace function sharequeue.renew_transfer(p_group_id text, p_sink text, p_number bigint, p_claim interval)
returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_name('the group id', p_group_id), sharequeue_internal.check_name('the sink', p_sink),
        sharequeue_internal.check_present('the number', p_number), sharequeue_internal.check_span('the claim', p_claim);
    perform from sharequeue.transfers d where d.group_id = p_group_id and d.sink = p_sink for update;
    update sharequeue.transfers d set claimed_until = sharequeue.clock() + p_claim
    where d.group_id = p_group_id and d.sink = p_sink and d.number = p_number and cardinality(d.locations) > 0;
    return found;
end
$$;

-- Records why a transfer could not be finished; null removes the reason. It stays until the transfer ends. Returns false if it
-- has ended.
create or replace function sharequeue.hold_transfer(p_group_id text, p_sink text, p_number bigint, p_reason text)
returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_name('the group id', p_group_id), sharequeue_internal.check_name('the sink', p_sink),
        sharequeue_internal.check_present('the number', p_number);
    if p_reason is not null then
        perform sharequeue_internal.check_text('the reason', p_reason, 10000);
    end if;
    perform from sharequeue.transfers d where d.group_id = p_group_id and d.sink = p_sink for update;
    -- Nobody works on it any more: another process may try at once.
    update sharequeue.transfers d
    set held_reason = p_reason, claimed_until = sharequeue.clock(),
        held_since = case when p_reason is not null then coalesce(d.held_since, sharequeue.clock()) end
    where d.group_id = p_group_id and d.sink = p_sink and d.number = p_number and cardinality(d.locations) > 0;
    return found;
end
$$;

-- Records that the target has accepted the transfer of this number, so that its rows count there. Returns the number
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
    update sharequeue.transfers d set locations = '{}', records = 0, held_reason = null, held_since = null
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
