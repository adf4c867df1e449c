-- Outputs of several leases, merged into one folder. The manifest changes from the old folders to the new one in one
-- transaction, so that no reader of it gets a record twice or not at all.

-- Registers a compaction before anything is written. A second call changes nothing.
create or replace function sharequeue.begin_compaction(
    p_compaction_id uuid, p_group_id text, p_sink text, p_location text
) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_present('the compaction id', p_compaction_id), sharequeue_internal.check_name('the sink', p_sink),
        sharequeue_internal.check_text('the location', p_location, 4096);
    perform from sharequeue.share_groups where group_id = p_group_id for key share;
    if not found then
        raise exception 'there is no share group %', left(p_group_id, 300) using errcode = 'SQ069';
    end if;
    insert into sharequeue.compactions (compaction_id, group_id, sink, location, began_at)
    values (p_compaction_id, p_group_id, p_sink, p_location, sharequeue.clock())
    on conflict on constraint compactions_pkey do nothing;
end
$$;

-- Makes the new, durable folder count instead of the old ones. Returns how many outputs moved; a second call returns the
-- same. p_records is the number of records in it: if the old folders count another number, nothing changes.
create or replace function sharequeue.commit_compaction(p_compaction_id uuid, p_replaced text[], p_records bigint)
returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_compaction sharequeue.compactions;
    v_found record;
begin
    perform sharequeue.require_read_committed();
    -- In the order of locks, the group first, because its deletion also deletes its compactions.
    perform from sharequeue.share_groups g join sharequeue.compactions c using (group_id)
    where c.compaction_id = p_compaction_id for no key update of g;
    select * into v_compaction from sharequeue.compactions where compaction_id = p_compaction_id for update;
    if not found or v_compaction.abandoned_at is not null then
        raise exception 'compaction % was abandoned by a sweep, because it took longer than the grace period: repeat it', p_compaction_id
            using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.authorise(v_compaction.group_id, 'READ');
    perform sharequeue_internal.check_present('the replaced folders', p_replaced),
        sharequeue_internal.check_present('the number of records', p_records);
    if v_compaction.committed_at is null then
        perform from sharequeue.lease_outputs o
        where o.group_id = v_compaction.group_id and o.sink = v_compaction.sink and o.location = any (p_replaced)
        order by o.lease_id for no key update of o;
        select count(distinct o.location) as folders, sum(o.records)::bigint as records into v_found
        from sharequeue.lease_outputs o
        where o.group_id = v_compaction.group_id and o.sink = v_compaction.sink and o.location = any (p_replaced);
        if v_found.folders <> cardinality(p_replaced) or coalesce(v_found.records, 0) <> p_records then
            raise exception 'compaction % of % folders with % records is out of date: % folders with % records count now, '
                'because another compaction was faster or the folders changed', p_compaction_id, cardinality(p_replaced),
                p_records, v_found.folders, coalesce(v_found.records, 0) using errcode = 'SQ042';
        end if;
        update sharequeue.lease_outputs o set location = v_compaction.location
        where o.group_id = v_compaction.group_id and o.sink = v_compaction.sink and o.location = any (p_replaced);
        update sharequeue.compactions set committed_at = sharequeue.clock(), replaced = p_replaced
        where compaction_id = p_compaction_id;
    end if;
    return (select count(*) from sharequeue.lease_outputs o
        where o.group_id = v_compaction.group_id and o.sink = v_compaction.sink
            and o.location = v_compaction.location);
end
$$;

-- The same for a new folder with other records: commit_compaction, and the number of records of each of its leases. p_counted is
-- the number of records that the old folders count. Unless p_lease_ids are the leases of all of them, nothing changes.
create or replace function sharequeue.commit_replacement(
    p_compaction_id uuid, p_replaced text[], p_counted bigint, p_lease_ids bigint[], p_records bigint[]
) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_moved bigint;
    v_compaction sharequeue.compactions;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_present('the lease ids', p_lease_ids),
        sharequeue_internal.check_present('the numbers of records', p_records);
    v_moved := sharequeue.commit_compaction(p_compaction_id, p_replaced, p_counted);
    select * into v_compaction from sharequeue.compactions where compaction_id = p_compaction_id;
    if cardinality(p_lease_ids) <> cardinality(p_records) or exists (
            -- So that sums over a sink do not overflow.
            select from unnest(p_records) as n where n is null or n not between 0 and 1000000000000000)
        or v_moved <> cardinality(p_lease_ids) or v_moved <> (
            select count(*) from sharequeue.lease_outputs o
            where o.group_id = v_compaction.group_id and o.sink = v_compaction.sink
                and o.location = v_compaction.location and o.lease_id = any (p_lease_ids)) then
        raise exception 'replacement % of % outputs got % leases and % numbers of records: expected the lease of each '
            'output once, each with a number from 0 to 10^15', p_compaction_id, v_moved, cardinality(p_lease_ids),
            cardinality(p_records) using errcode = 'SQ042';
    end if;
    update sharequeue.lease_outputs o set records = n.records
    from unnest(p_lease_ids, p_records) as n (lease_id, records)
    where o.lease_id = n.lease_id and o.sink = v_compaction.sink;
    return v_moved;
end
$$;

-- Returns folders that no reader needs any more: those that were replaced before the grace period, and the new ones
-- of compactions that were not committed within it, which are given up here. A folder that counts is never among
-- them.
create or replace function sharequeue.removable_outputs(p_group_id text, p_sink text, p_grace interval)
returns table (compaction_id uuid, folders text[])
language plpgsql volatile set search_path = pg_catalog as $$
#variable_conflict use_column
declare
    v_before timestamptz;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the sink', p_sink),
        sharequeue_internal.check_span('the grace', p_grace);
    v_before := sharequeue.clock() - p_grace;
    perform from sharequeue.share_groups where group_id = p_group_id for key share;
    update sharequeue.compactions c set abandoned_at = sharequeue.clock()
    where c.group_id = p_group_id and c.sink = p_sink and c.committed_at is null and c.abandoned_at is null
        and c.began_at <= v_before;
    return query
        select c.compaction_id, case when c.abandoned_at is null then c.replaced else array[c.location] end
        from sharequeue.compactions c
        where c.group_id = p_group_id and c.sink = p_sink
            and (c.abandoned_at is not null or c.committed_at <= v_before)
            and not exists (
                select from sharequeue.lease_outputs o
                where o.group_id = p_group_id and o.sink = p_sink
                    and o.location = any (case when c.abandoned_at is null then c.replaced else array[c.location] end))
        order by c.began_at;
end
$$;

-- Removes a compaction whose folders were removed. Returns whether it existed.
create or replace function sharequeue.forget_compaction(p_compaction_id uuid) returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_compaction sharequeue.compactions;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_present('the compaction id', p_compaction_id);
    select * into v_compaction from sharequeue.compactions where compaction_id = p_compaction_id for update;
    if not found or (v_compaction.committed_at is null and v_compaction.abandoned_at is null) then
        return false;
    end if;
    perform sharequeue_internal.authorise(v_compaction.group_id, 'READ');
    delete from sharequeue.compactions where compaction_id = p_compaction_id;
    return true;
end
$$;
