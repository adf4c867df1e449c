-- Takes a snapshot of one share-partition. A replay from it needs no older rows. Returns the journal id at which it begins, null
-- if there is no such share-partition.
create or replace function sharequeue.take_snapshot(p_share_partition_id bigint) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_sp sharequeue.share_partitions;
    v_at timestamptz;
    v_journal_id bigint;
    v_rows bigint;
    v_written bigint := 1;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_present('the share-partition id', p_share_partition_id);
    select * into v_sp from sharequeue.share_partitions
    where share_partition_id = p_share_partition_id for no key update;
    if not found then
        return null;
    end if;
    v_at := sharequeue.clock();
    v_journal_id := sharequeue_internal.journal_share_partition(v_sp, 'snapshot', true);
    insert into sharequeue.journal (share_partition_id, at, kind, first_offset, last_offset, part, state,
        delivery_count, lease_id, isolate, not_before, cause, offsets)
    select f.share_partition_id, v_at, 'batch', f.first_offset, f.last_offset, f.part, f.state, f.delivery_count,
        f.lease_id, f.isolate, f.not_before, f.cause, f.offsets
    from sharequeue.in_flight_batches f where f.share_partition_id = p_share_partition_id;
    get diagnostics v_rows = row_count;
    v_written := v_written + v_rows;
    insert into sharequeue.journal (share_partition_id, at, kind, lease_id, member_id, member_epoch, token,
        lock_duration_ms, acquired_at, locked_at, expires_at, fan_out, own_lock_duration, read_committed)
    select l.share_partition_id, v_at, 'lease', l.lease_id, l.member_id, l.member_epoch, l.token, l.lock_duration_ms,
        l.acquired_at, l.locked_at, l.expires_at, l.fan_out, l.own_lock_duration, l.read_committed
    from sharequeue.leases l where l.share_partition_id = p_share_partition_id;
    get diagnostics v_rows = row_count;
    v_written := v_written + v_rows;
    insert into sharequeue.journal (share_partition_id, at, kind, key_hash, since, not_before, archiving, letter, released,
        offsets)
    select r.share_partition_id, v_at, 'keys_added', r.key_hash, r.since, r.until, r.archiving, r.letter, r.released,
        range_agg(int8range(r."offset", r."offset" + 1))
    from sharequeue.open_key_records r where r.share_partition_id = p_share_partition_id
    group by r.share_partition_id, r.key_hash, r.since, r.until, r.archiving, r.letter, r.released;
    get diagnostics v_rows = row_count;
    v_written := v_written + v_rows;
    insert into sharequeue.journal (share_partition_id, at, kind, cause, delivery_count, records)
    select d.share_partition_id, v_at, 'outcome_total', d.outcome, d.delivery_count, d.records
    from sharequeue.delivery_counts d where d.share_partition_id = p_share_partition_id;
    get diagnostics v_rows = row_count;
    v_written := v_written + v_rows;
    insert into sharequeue.journal_snapshots (share_partition_id, journal_id, taken_at)
    values (p_share_partition_id, v_journal_id, v_at);
    -- The snapshot's own rows are not counted yet, and do not count as growth.
    insert into sharequeue.journal_growth (share_partition_id, updates) values (p_share_partition_id, -v_written)
    on conflict on constraint journal_growth_pkey do update set updates = excluded.updates;
    return v_journal_id;
end
$$;
