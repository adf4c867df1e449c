-- Whether a share-partition may be folded whose one batch has just been accepted: there is no other, the group's settings are
-- still in the version that was read, and nobody is changing them, nor the clock. Both are locked until this commits: whoever
-- changes them then finds the fold. Never waits, because that one may wait for this share-partition.
create or replace function sharequeue_internal.may_fold(p_group_id text, p_version xid, p_share_partition_id bigint) returns boolean
language plpgsql volatile as $$
begin
    perform from sharequeue.group_settings s, sharequeue.clock_offset c
    where s.group_id = p_group_id and s.xmin = p_version for share skip locked;
    return found and 1 = (select count(*) from (
        select from sharequeue.in_flight_batches where share_partition_id = p_share_partition_id limit 2) as f);
end
$$;

-- What the fetch returned that granted a folded share-partition's lease.
create or replace function sharequeue_internal.folded_fetch(p_sp sharequeue.share_partitions)
returns sharequeue.acknowledged_and_acquired
language plpgsql stable as $$
declare
    v_result sharequeue.acknowledged_and_acquired;
begin
    v_result.acknowledge_error_code := 0;
    v_result.spso := p_sp.spso;
    v_result.lag := p_sp.folded_lag;
    v_result.error_code := 0;
    v_result.lease_id := p_sp.folded_lease_id;
    v_result.token := p_sp.folded_token;
    v_result.state_epoch := p_sp.state_epoch;
    v_result.lock_duration_ms := p_sp.folded_lock_duration_ms;
    v_result.expires_at := p_sp.folded_acquired_at + p_sp.folded_lock_duration_ms * interval '1 millisecond';
    v_result.delivery_count := 1;
    v_result.offsets := int8multirange(int8range(p_sp.spso, p_sp.speo));
    v_result.isolation_level := sharequeue_internal.isolation_level(p_sp.folded_read_committed);
    return v_result;
end
$$;

-- Batch and lease become rows of their tables again. No change of state, and so nothing for the journal.
create or replace function sharequeue_internal.unfold(p_share_partition_id bigint) returns void
language plpgsql volatile as $$
declare
    v_sp sharequeue.share_partitions;
begin
    select * into v_sp from sharequeue.share_partitions
    where share_partition_id = p_share_partition_id and folded_lease_id is not null;
    if not found then
        return;
    end if;
    insert into sharequeue.in_flight_batches
        (share_partition_id, first_offset, last_offset, state, delivery_count, lease_id, journalled)
    values (v_sp.share_partition_id, v_sp.spso, v_sp.speo - 1, 1, 1, v_sp.folded_lease_id, true);
    insert into sharequeue.leases (lease_id, share_partition_id, member_id, member_epoch, token, lock_duration_ms,
        acquired_at, expires_at, fan_out, own_lock_duration, read_committed, request_id, fetched, journalled)
    values (v_sp.folded_lease_id, v_sp.share_partition_id, v_sp.folded_member_id, v_sp.folded_member_epoch,
        v_sp.folded_token, v_sp.folded_lock_duration_ms, v_sp.folded_acquired_at,
        v_sp.folded_acquired_at + v_sp.folded_lock_duration_ms * interval '1 millisecond', v_sp.folded_fan_out, false,
        v_sp.folded_read_committed, v_sp.folded_request_id,
        case when v_sp.folded_request_id is not null then sharequeue_internal.folded_fetch(v_sp) end, true);
    update sharequeue.share_partitions set folded_lease_id = null, folded_acquired_at = null,
        folded_lag = null, folded_max_record_locks = null, folded_clock_offset = null, folded_token = null,
        folded_request_id = null, folded_lock_duration_ms = null, folded_member_epoch = null,
        folded_read_committed = null, folded_fan_out = null, folded_member_id = null
    where share_partition_id = p_share_partition_id;
end
$$;

-- For whoever settles lapsed locks: a folded share-partition whose one lock has not lapsed stays folded, and its next
-- expiry, which fetches leave behind, is put right; any other is unfolded.
create or replace function sharequeue_internal.is_folded_until_later(p_share_partition_id bigint, p_at timestamptz)
returns boolean
language plpgsql volatile as $$
begin
    update sharequeue.share_partitions
    set next_expiry = folded_acquired_at + folded_lock_duration_ms * interval '1 millisecond'
    where share_partition_id = p_share_partition_id
        and folded_acquired_at + folded_lock_duration_ms * interval '1 millisecond' > p_at;
    if found then
        return true;
    end if;
    perform sharequeue_internal.unfold(p_share_partition_id);
    return false;
end
$$;

-- When settings change, the group's folded share-partitions unfold, in the order of their ids, as everywhere.
create or replace function sharequeue_internal.group_settings_unfold() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_id bigint;
begin
    for v_id in
        select share_partition_id from sharequeue.share_partitions
        where folded_lease_id is not null and group_id in (
            select n.group_id from settings_now n join settings_before b using (group_id) where n.* is distinct from b.*)
        order by share_partition_id for no key update
    loop
        perform sharequeue_internal.unfold(v_id);
    end loop;
    return null;
end
$$;
create or replace trigger group_settings_unfold after update on sharequeue.group_settings
    referencing old table as settings_before new table as settings_now
    for each statement execute function sharequeue_internal.group_settings_unfold();

-- When the clock's offset changes, all unfold. A folded share-partition has a copy of it, so that a fetch need not read it.
create or replace function sharequeue_internal.clock_unfold() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_id bigint;
begin
    for v_id in
        select share_partition_id from sharequeue.share_partitions
        where folded_lease_id is not null order by share_partition_id for no key update
    loop
        perform sharequeue_internal.unfold(v_id);
    end loop;
    return null;
end
$$;
create or replace trigger clock_offset_unfold after insert or update or delete on sharequeue.clock_offset
    for each statement execute function sharequeue_internal.clock_unfold();
