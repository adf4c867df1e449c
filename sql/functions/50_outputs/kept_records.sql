-- Raw records of released offsets that a worker has kept in files (sharequeue.retry.keep.enable), so that their next delivery need
-- not read the log. The log stays the truth: a row only says where the same bytes are. Whatever could make them other bytes
-- (a reset, an adoption) removes the row, and a reader without a row reads the log.

-- Returns the kept records of one lease, as an element of p_kept has them.
create or replace function sharequeue_internal.kept_of_lease(p_kept jsonb) returns sharequeue_internal.kept_offsets
language plpgsql stable as $$
begin
    if p_kept is null or p_kept = 'null' then
        return null;
    elsif jsonb_typeof(p_kept->'location') is distinct from 'string' or jsonb_typeof(p_kept->'offsets') is distinct from 'string' then
        raise exception 'kept records are not valid: expected "location", a text, and "offsets", an int8multirange'
            using errcode = 'SQ042';
    end if;
    -- Only here: a block with an exception is a subtransaction.
    begin
        return row(p_kept->>'location', (p_kept->>'offsets')::int8multirange)::sharequeue_internal.kept_offsets;
    exception when data_exception then
        raise exception 'kept records are not valid: expected "location", a text, and "offsets", an int8multirange: %', sqlerrm
            using errcode = 'SQ042';
    end;
end
$$;

-- Returns what is wrong with the kept records of an acknowledgement; null if nothing is.
create or replace function sharequeue_internal.kept_fault(
    p_release int8multirange, p_kept sharequeue_internal.kept_offsets
) returns text
language plpgsql immutable as $$
begin
    if p_kept.location is null then
        return null;
    elsif length(p_kept.location) not between 1 and 4096 then
        return 'the location of kept records is not valid: expected 1 to 4,096 characters';
    elsif isempty(p_kept.offsets) then
        return 'kept records have no offsets: expected an int8multirange that is not empty';
    elsif not p_kept.offsets <@ p_release then
        return format('offset %s is kept, but not released: keep only records that the same acknowledgement releases',
            lower(p_kept.offsets - p_release));
    end if;
    return null;
end
$$;

-- Writes the row of the records that are kept of a lease. A lease that is acknowledged in several calls adds offsets to its row.
-- Returns an error if the row has another location. The lease still exists.
create or replace function sharequeue_internal.keep_records(
    p_lease_id bigint, p_kept sharequeue_internal.kept_offsets, p_at timestamptz
) returns text
language plpgsql volatile as $$
begin
    insert into sharequeue.kept_records as k (lease_id, share_partition_id, read_committed, location, first_offset, past, offsets,
        kept_at)
    select l.lease_id, l.share_partition_id, l.read_committed, p_kept.location, lower(p_kept.offsets), upper(p_kept.offsets),
        p_kept.offsets, p_at
    from sharequeue.leases l where l.lease_id = p_lease_id
    on conflict on constraint kept_records_pkey do update
        set first_offset = least(k.first_offset, excluded.first_offset), past = greatest(k.past, excluded.past),
            offsets = k.offsets + excluded.offsets
        where k.location = excluded.location;
    if not found then
        return format('lease %s already has kept records at another location: keep the records of a lease at one location', p_lease_id);
    end if;
    return null;
end
$$;

-- Forgets the kept records of a share-partition. Their files are removed by the next sweep, because no row needs them.
create or replace function sharequeue_internal.forget_kept(p_share_partition_id bigint) returns void
language sql volatile set enable_seqscan = off as $$
    delete from sharequeue.kept_records where share_partition_id = p_share_partition_id
$$;

-- Returns where records of these leases, which are held in this group, are kept: kept_by is the lease whose row it is. Of several
-- rows with an offset, the newest lease has it. A row has the same isolation level as the lease. Offsets of a log that was
-- truncated are read from the log, from its lowest end on: they may be other records there.
create or replace function sharequeue.kept_of(p_group_id text, p_lease_ids bigint[])
returns table (lease_id bigint, kept_by bigint, location text, offsets int8multirange)
language plpgsql stable set search_path = pg_catalog set enable_seqscan = off as $$
declare
    v_lease record;
    v_row sharequeue.kept_records;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the lease ids', p_lease_ids);
    for v_lease in
        select l.lease_id, l.read_committed, sp.share_partition_id, sp.log_start,
            coalesce(t.log_end, 9223372036854775807) as log_end, h.first_offset, h.last_offset
        from sharequeue.leases l
        join sharequeue.share_partitions sp using (share_partition_id)
        left join sharequeue.truncated_logs t using (share_partition_id)
        cross join lateral (
            select min(f.first_offset) as first_offset, max(f.last_offset) as last_offset
            from sharequeue.in_flight_batches f where f.lease_id = l.lease_id) as h
        where l.lease_id = any (p_lease_ids) and sp.group_id = p_group_id and sp.status = 'active'
            and exists (select from sharequeue.kept_records k where k.share_partition_id = sp.share_partition_id)
        order by l.lease_id
    loop
        for v_row in
            select k.* from sharequeue.kept_records k
            where k.share_partition_id = v_lease.share_partition_id and k.past > v_lease.first_offset
                and k.first_offset <= v_lease.last_offset and k.read_committed is not distinct from v_lease.read_committed
            order by k.lease_id desc
        loop
            offsets := sharequeue_internal.still_kept(v_row, v_lease.lease_id)
                * int8multirange(int8range(v_lease.log_start, greatest(v_lease.log_start, v_lease.log_end)));
            continue when isempty(offsets);
            lease_id := v_lease.lease_id;
            kept_by := v_row.lease_id;
            location := v_row.location;
            return next;
        end loop;
    end loop;
end
$$;

-- Returns the offsets of a row that a lease holds and no newer row of its isolation level has; without a lease, those that
-- are available or acquired and no newer row has. It reads what is in flight between the row's ends only: with 200 rows of 1,000
-- ranges each, sets of all that is in flight took 32 s.
create or replace function sharequeue_internal.still_kept(p_row sharequeue.kept_records, p_lease_id bigint) returns int8multirange
language plpgsql stable as $$
declare
    v_from bigint := sharequeue_internal.batch_at(p_row.share_partition_id, p_row.first_offset);
    v_found int8multirange;
begin
    select range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)) * p_row.offsets into v_found
    from sharequeue.in_flight_batches f
    where f.share_partition_id = p_row.share_partition_id and f.first_offset between v_from and p_row.past - 1
        and case when p_lease_id is null then f.state in (0, 1) else f.lease_id = p_lease_id end;
    if v_found is null or isempty(v_found) then
        return '{}';
    end if;
    return v_found - coalesce((
        select range_agg(n.offsets) from sharequeue.kept_records n
        where n.share_partition_id = p_row.share_partition_id and n.past > p_row.first_offset and n.first_offset < p_row.past
            and n.lease_id > p_row.lease_id
            and (p_lease_id is null or n.read_committed is not distinct from p_row.read_committed)), '{}');
end
$$;

-- Returns the rows of a group whose files are no longer needed: none of their offsets is available or acquired, or those that
-- are have a newer row. With p_all, all rows. Those of leases that are held are never among them.
create or replace function sharequeue.removable_kept(p_group_id text, p_all boolean default false)
returns table (lease_id bigint, location text, offsets int8multirange)
language plpgsql volatile set search_path = pg_catalog set enable_seqscan = off as $$
declare
    v_each record;
    v_row sharequeue.kept_records;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('p_all', p_all);
    for v_each in
        select k as kept, greatest(sp.spso, sp.log_start) as first
        from sharequeue.share_partitions sp join sharequeue.kept_records k using (share_partition_id)
        where sp.group_id = p_group_id and not exists (select from sharequeue.leases l where l.lease_id = k.lease_id)
        order by k.share_partition_id, k.lease_id desc
    loop
        v_row := v_each.kept;
        if p_all or v_row.past <= v_each.first
                or isempty(sharequeue_internal.offsets_from(sharequeue_internal.still_kept(v_row, null), v_each.first)) then
            lease_id := v_row.lease_id;
            location := v_row.location;
            offsets := v_row.offsets;
            return next;
        end if;
    end loop;
end
$$;

-- Forgets what these leases have kept in a group: their files were removed, or are damaged. Returns how many had kept records.
create or replace function sharequeue.drop_kept(p_group_id text, p_lease_ids bigint[]) returns bigint
language plpgsql volatile set search_path = pg_catalog set enable_seqscan = off as $$
declare
    v_ids bigint[];
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the lease ids', p_lease_ids);
    -- In one order. Rows of another group stay.
    v_ids := array(
        select k.lease_id from sharequeue.kept_records k join sharequeue.share_partitions sp using (share_partition_id)
        where k.lease_id = any (p_lease_ids) and sp.group_id = p_group_id
        order by k.share_partition_id, k.lease_id for update of k);
    delete from sharequeue.kept_records k where k.lease_id = any (v_ids);
    return cardinality(v_ids);
end
$$;
