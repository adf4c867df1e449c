-- Triggers on the tables of the state that write the journal, so that no operation can omit it: every change of
-- in_flight_batches, leases, share_partitions or delivery_counts is in the journal in the same transaction. The rows have
-- the new values, with whole sets of offsets: an acknowledgement of 100,000 runs writes a few rows. These functions have no
-- SET, because they run inside operations that have it.

-- Once for all rows that a statement adds or deletes: an insert for each row would take most of the time of a call.
create or replace function sharequeue_internal.journal_batches_added() returns trigger
language plpgsql volatile as $$
declare
    v_at timestamptz := sharequeue.clock();
begin
    insert into sharequeue.journal (share_partition_id, at, kind, first_offset, last_offset, part, state,
        delivery_count, lease_id, isolate, not_before, cause, offsets)
    select share_partition_id, v_at, 'batch', first_offset, last_offset, part, state, delivery_count, lease_id, isolate,
        not_before, cause, offsets
    from changed;
    return null;
end
$$;
create or replace trigger in_flight_batches_journal_insert after insert on sharequeue.in_flight_batches
    referencing new table as changed for each statement execute function sharequeue_internal.journal_batches_added();

create or replace function sharequeue_internal.journal_batches_gone() returns trigger
language plpgsql volatile as $$
declare
    v_at timestamptz := sharequeue.clock();
begin
    insert into sharequeue.journal (share_partition_id, at, kind, first_offset, part)
    select share_partition_id, v_at, 'batch_gone', first_offset, part from changed;
    return null;
end
$$;
create or replace trigger in_flight_batches_journal_delete after delete on sharequeue.in_flight_batches
    referencing old table as changed for each statement execute function sharequeue_internal.journal_batches_gone();

create or replace function sharequeue_internal.journal_batch_changed() returns trigger
language plpgsql volatile as $$
begin
    if new.first_offset <> old.first_offset or new.part <> old.part then
        insert into sharequeue.journal (share_partition_id, at, kind, first_offset, part)
        values (old.share_partition_id, sharequeue.clock(), 'batch_gone', old.first_offset, old.part);
    elsif old.offsets <> new.offsets and new.last_offset = old.last_offset and new.state = old.state
            and new.delivery_count = old.delivery_count and new.lease_id is not distinct from old.lease_id
            and new.isolate is not distinct from old.isolate and new.not_before is not distinct from old.not_before
            and new.cause is not distinct from old.cause then
        -- An exploded batch may hold 100,000 runs and lose one: the difference, not the image.
        insert into sharequeue.journal (share_partition_id, at, kind, first_offset, part, state, delivery_count, offsets)
        select new.share_partition_id, sharequeue.clock(), d.kind, new.first_offset, new.part, new.state,
            new.delivery_count, d.offsets
        from (values ('offsets_added', new.offsets - old.offsets), ('offsets_taken', old.offsets - new.offsets))
            as d (kind, offsets)
        where not isempty(d.offsets);
        return null;
    end if;
    insert into sharequeue.journal (share_partition_id, at, kind, first_offset, last_offset, part, state,
        delivery_count, lease_id, isolate, not_before, cause, offsets)
    values (new.share_partition_id, sharequeue.clock(), 'batch', new.first_offset, new.last_offset, new.part,
        new.state, new.delivery_count, new.lease_id, new.isolate, new.not_before, new.cause, new.offsets);
    return null;
end
$$;
create or replace trigger in_flight_batches_journal after update on sharequeue.in_flight_batches
    for each row execute function sharequeue_internal.journal_batch_changed();

create or replace function sharequeue_internal.journal_leases() returns trigger
language plpgsql volatile as $$
declare
    v_at timestamptz := sharequeue.clock();
begin
    insert into sharequeue.journal (share_partition_id, at, kind, lease_id, member_id, member_epoch, token,
        lock_duration_ms, acquired_at, locked_at, expires_at, fan_out, own_lock_duration, read_committed)
    select share_partition_id, v_at, 'lease', lease_id, member_id, member_epoch, token, lock_duration_ms, acquired_at,
        locked_at, expires_at, fan_out, own_lock_duration, read_committed
    from changed;
    return null;
end
$$;
create or replace trigger leases_journal_insert after insert on sharequeue.leases
    referencing new table as changed for each statement execute function sharequeue_internal.journal_leases();
create or replace trigger leases_journal after update on sharequeue.leases
    referencing new table as changed for each statement execute function sharequeue_internal.journal_leases();

create or replace function sharequeue_internal.journal_leases_gone() returns trigger
language plpgsql volatile as $$
declare
    v_at timestamptz := sharequeue.clock();
begin
    insert into sharequeue.journal (share_partition_id, at, kind, lease_id)
    select share_partition_id, v_at, 'lease_gone', lease_id from changed;
    return null;
end
$$;
create or replace trigger leases_journal_delete after delete on sharequeue.leases
    referencing old table as changed for each statement execute function sharequeue_internal.journal_leases_gone();

-- Also keeps the numbers of a share-partition's open keys, which share_partitions has.
create or replace function sharequeue_internal.journal_keys_added() returns trigger
language plpgsql volatile as $$
declare
    v_at timestamptz := sharequeue.clock();
begin
    insert into sharequeue.journal (share_partition_id, at, kind, key_hash, since, not_before, archiving, letter, released, offsets)
    select share_partition_id, v_at, 'keys_added', key_hash, since, until, archiving, letter, released,
        range_agg(int8range("offset", "offset" + 1))
    from changed group by share_partition_id, key_hash, since, until, archiving, letter, released;
    if tg_op = 'INSERT' then
        update sharequeue.share_partitions sp
        set open_key_records = sp.open_key_records + n.records, open_keys = sp.open_keys + n.keys
        from (
            select c.share_partition_id, sum(c.records)::bigint as records, count(*) filter (where c.key_hash is not null and not exists (
                select from sharequeue.open_key_records o where o.share_partition_id = c.share_partition_id
                    and o.key_hash = c.key_hash and not c.offsets @> o."offset")) as keys
            from (
                select share_partition_id, key_hash, count(*) as records, range_agg(int8range("offset", "offset" + 1)) as offsets
                from changed group by share_partition_id, key_hash
            ) as c group by c.share_partition_id
        ) as n where sp.share_partition_id = n.share_partition_id;
    end if;
    return null;
end
$$;
create or replace trigger open_key_records_journal_insert after insert on sharequeue.open_key_records
    referencing new table as changed for each statement execute function sharequeue_internal.journal_keys_added();
create or replace trigger open_key_records_journal after update on sharequeue.open_key_records
    referencing new table as changed for each statement execute function sharequeue_internal.journal_keys_added();

create or replace function sharequeue_internal.journal_keys_gone() returns trigger
language plpgsql volatile as $$
declare
    v_at timestamptz := sharequeue.clock();
begin
    insert into sharequeue.journal (share_partition_id, at, kind, offsets)
    select share_partition_id, v_at, 'keys_gone', range_agg(int8range("offset", "offset" + 1))
    from changed group by share_partition_id;
    update sharequeue.share_partitions sp
    set open_key_records = sp.open_key_records - n.records, open_keys = sp.open_keys - n.keys
    from (
        select c.share_partition_id, sum(c.records)::bigint as records, count(*) filter (where c.key_hash is not null and not exists (
            select from sharequeue.open_key_records o
            where o.share_partition_id = c.share_partition_id and o.key_hash = c.key_hash)) as keys
        from (
            select share_partition_id, key_hash, count(*) as records from changed group by share_partition_id, key_hash
        ) as c group by c.share_partition_id
    ) as n where sp.share_partition_id = n.share_partition_id;
    return null;
end
$$;
create or replace trigger open_key_records_journal_delete after delete on sharequeue.open_key_records
    referencing old table as changed for each statement execute function sharequeue_internal.journal_keys_gone();

-- Writes the share-partition's columns as a row of the given kind. Returns its journal_id.
create or replace function sharequeue_internal.journal_share_partition(
    p_sp sharequeue.share_partitions, p_kind text, p_named boolean
) returns bigint
language plpgsql volatile as $$
declare
    v_journal_id bigint;
begin
    insert into sharequeue.journal (share_partition_id, at, kind, spso, speo, delivery_complete_count, accepted_first,
        lost_records, dead_letter_sequence, next_expiry, state_epoch, redeliverable, advance_due, keys_unknown, status,
        paused_reason, topic_id, group_id, topic, partition)
    values (p_sp.share_partition_id, sharequeue.clock(), p_kind, p_sp.spso, p_sp.speo, p_sp.delivery_complete_count,
        p_sp.accepted_first, p_sp.lost_records, p_sp.dead_letter_sequence, p_sp.next_expiry, p_sp.state_epoch,
        p_sp.redeliverable, p_sp.advance_due, p_sp.keys_unknown, p_sp.status, p_sp.paused_reason, p_sp.topic_id,
        case when p_named then p_sp.group_id end, case when p_named then p_sp.topic end,
        case when p_named then p_sp.partition end)
    returning journal_id into v_journal_id;
    return v_journal_id;
end
$$;

create or replace function sharequeue_internal.journal_share_partition_change() returns trigger
language plpgsql volatile as $$
begin
    if tg_op = 'INSERT' then
        insert into sharequeue.journal_snapshots (share_partition_id, journal_id, taken_at)
        values (new.share_partition_id, sharequeue_internal.journal_share_partition(new, 'initialized', true), sharequeue.clock());
    elsif tg_op = 'UPDATE' then
        perform sharequeue_internal.journal_share_partition(new, 'share_partition', false);
    else
        perform sharequeue_internal.journal_share_partition(old, 'deleted', true);
        delete from sharequeue.journal_snapshots where share_partition_id = old.share_partition_id;
        delete from sharequeue.journal_growth where share_partition_id = old.share_partition_id;
    end if;
    return null;
end
$$;
-- After share_partitions_gone, which deletes batches and leases: triggers fire in the order of their names.
create or replace trigger share_partitions_journal after insert or delete on sharequeue.share_partitions
    for each row execute function sharequeue_internal.journal_share_partition_change();
-- The broker's data about the log (log start, log end, last stable offset, observed_at) are observations and not state:
-- they are not journalled. Every observation sets the status, so it has a trigger of its own.
-- The trigger names columns, which costs an observation nothing; a condition on the row would cost time.
create or replace trigger share_partitions_journal_update after update of spso, speo, delivery_complete_count,
        accepted_first, lost_records, dead_letter_sequence, next_expiry, state_epoch, redeliverable, advance_due,
        keys_unknown, paused_reason, topic_id
    on sharequeue.share_partitions
    for each row execute function sharequeue_internal.journal_share_partition_change();
create or replace trigger share_partitions_journal_status after update of status on sharequeue.share_partitions
    for each row when (old.status <> new.status) execute function sharequeue_internal.journal_share_partition_change();

create or replace function sharequeue_internal.journal_outcome() returns trigger
language plpgsql volatile as $$
begin
    insert into sharequeue.journal (share_partition_id, at, kind, cause, delivery_count, records)
    values (new.share_partition_id, sharequeue.clock(), 'outcome', new.outcome, new.delivery_count,
        new.records - case when tg_op = 'UPDATE' then old.records else 0 end);
    return null;
end
$$;
create or replace trigger delivery_counts_journal after insert or update on sharequeue.delivery_counts
    for each row execute function sharequeue_internal.journal_outcome();

-- Journals the pause of a group for each of its share-partitions, because nothing is leased from them.
create or replace function sharequeue_internal.journal_pause() returns trigger
language plpgsql volatile as $$
begin
    insert into sharequeue.journal (share_partition_id, at, kind, paused_reason)
    select sp.share_partition_id, sharequeue.clock(), 'group_paused', new.paused_reason
    from sharequeue.share_partitions sp where sp.group_id = new.group_id;
    return null;
end
$$;
create or replace trigger group_settings_journal_pause after update of paused_reason on sharequeue.group_settings
    for each row when (old.paused_reason is distinct from new.paused_reason)
    execute function sharequeue_internal.journal_pause();
