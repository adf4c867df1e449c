-- Acknowledges one fetch and makes the next, in one call and one commit, as Kafka's ShareFetch carries acknowledgements. A
-- refusal of the acknowledgement does not stop the acquire. Returns at least one row; its acquire columns are null when there
-- is nothing to lease. acknowledge_and_fetch takes more: lists of types, the log's batches, and IsRenewAck, with which
-- nothing is acquired. It is a function of its own because each argument costs time to parse and plan.
--
-- This file is the usual fetch: one batch, uniform, at its first delivery, all of its lease, accepted whole by its holder;
-- then fresh records. Every other call goes the long way (30_state/acknowledge_and_fetch.sql), through the functions of
-- acknowledge_batches and acquire. The usual fetch works in one of two places:
--   - In the tables (fetch_whole_batch), for any number of workers side by side.
--   - On the share-partition's own row, for a worker that has the share-partition to itself. The share-partition is then
--     *folded*: its one batch [SPSO, SPEO) and its lease are in the columns folded_* and in no other table. A fetch is one
--     HOT update.
-- Both write one row of the journal; the triggers do not write another (70_journal/triggers.sql). Readers use the views
-- all_batches and all_leases.
--
-- Only fetch_whole_batch folds a share-partition. The fold ends, which is no change of state, when
--   1. any other operation takes the share-partition. It calls unfold under the row lock (lock_share_partition, settle_lapsed,
--      observe past SPSO, release, offsets altered, epochs raised, locks extended, a snapshot);
--   2. a fetch comes that is not the holder's for the whole batch, or has another state epoch, or comes after the lock has
--      lapsed, or finds nothing fresh, or finds the share-partition paused or its topic made anew. The row's own columns say
--      so, read under the row lock;
--   3. something changes of which the row has copies: the group's settings (a pause of the group, a config, an ACL that now
--      applies to it, a circuit breaker: group_settings_unfold) or the clock's offset (clock_unfold). No change is missed: while
--      a share-partition is being folded both are locked, and the settings are those that were read (may_fold).
create or replace function sharequeue.acknowledge_and_acquire(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_max_records bigint,
    p_redelivery text
) returns setof sharequeue.acknowledged_and_acquired
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_refused smallint := 0;
    v_sp record;
    v_row sharequeue.acknowledged_and_acquired;
begin
    if current_setting('transaction_isolation') <> 'read committed' then -- written out: a call costs more
        perform sharequeue.require_read_committed();
    end if;
    -- A call that names its token and is known by a request id need not be looked up here: had it been done
    -- before, nothing would be held under that token any more.
    if p_types = '{1}' and array_length(p_firsts, 1) = 1 and array_length(p_lasts, 1) = 1
            and p_lasts[1] < 9223372036854775807 and p_max_records between 1 and 2147483647 and p_redelivery in ('kafka', 'fan_out')
            and (p_token is not null or p_request_id is null) then
        if p_member_epoch is not null then
            select m.error_code into v_refused
            from sharequeue_internal.check_member(p_group_id, p_member_id, p_member_epoch) as m;
        end if;
        if v_refused = 0 then
            -- The update takes the lock. Its conditions are checked, and the clock is read, on the row as it is then.
            -- The clock is sharequeue.clock() written out. Every expression here is compiled again for every call, so
            -- there is none that follows from the others or is checked elsewhere.
            update sharequeue.share_partitions sp
            set spso = speo, accepted_first = accepted_first + speo - spso,
                speo = least(speo + p_max_records, speo + folded_max_record_locks,
                    case when folded_read_committed then last_stable_offset else log_end end),
                folded_lease_id = nextval('sharequeue.leases_lease_id_seq'),
                folded_token = coalesce(p_request_id, gen_random_uuid()), folded_request_id = p_request_id,
                folded_acquired_at = clock_timestamp() + folded_clock_offset, folded_lag = greatest(0, log_end - speo),
                folded_member_epoch = coalesce(p_member_epoch, -1), folded_fan_out = p_redelivery = 'fan_out'
            where group_id = p_group_id and topic = p_topic and partition = p_partition and folded_token = p_token
                and folded_member_id = p_member_id and spso = p_firsts[1] and speo = p_lasts[1] + 1
                and state_epoch = coalesce(p_state_epoch, state_epoch) and paused_reason is null and status = 'active'
                and case when folded_read_committed then last_stable_offset else log_end end > speo
                and folded_acquired_at + folded_lock_duration_ms * interval '1 millisecond'
                    > clock_timestamp() + folded_clock_offset
            returning share_partition_id, spso, speo, accepted_first, state_epoch, folded_lease_id, folded_token,
                folded_lock_duration_ms, folded_lag, folded_acquired_at, folded_read_committed
            into v_sp;
            if found then
                -- One number for both, drawn once.
                insert into sharequeue.journal (journal_id, share_partition_id, at, kind, first_offset, last_offset,
                    gone_first, lease_id, member_id, member_epoch, token, lock_duration_ms, fan_out, read_committed,
                    accepted_first)
                values (v_sp.folded_lease_id, v_sp.share_partition_id, v_sp.folded_acquired_at, 'fetch', v_sp.spso,
                    v_sp.speo - 1, p_firsts[1], v_sp.folded_lease_id, p_member_id, coalesce(p_member_epoch, -1),
                    v_sp.folded_token, v_sp.folded_lock_duration_ms, p_redelivery = 'fan_out',
                    v_sp.folded_read_committed, v_sp.accepted_first);
                return next row(0::smallint, null, v_sp.spso, v_sp.folded_lag, 0::smallint, null, v_sp.folded_lease_id,
                    v_sp.folded_token, v_sp.state_epoch, v_sp.folded_lock_duration_ms,
                    v_sp.folded_acquired_at + v_sp.folded_lock_duration_ms * interval '1 millisecond', 1::smallint,
                    int8multirange(int8range(v_sp.spso, v_sp.speo)),
                    sharequeue_internal.isolation_level(v_sp.folded_read_committed))::sharequeue.acknowledged_and_acquired;
                return;
            end if;
            v_row := sharequeue_internal.fetch_whole_batch(p_group_id, p_topic, p_partition, p_state_epoch,
                row(p_member_id, p_member_epoch, p_token), p_request_id, p_firsts[1], p_lasts[1], p_max_records,
                p_redelivery);
            if v_row.acknowledge_error_code = 0 then
                return next v_row;
                return;
            end if;
        end if;
    end if;
    if p_request_id is not null then
        v_row := sharequeue_internal.stored_fetch(p_group_id, p_topic, p_partition, p_request_id, p_member_id, p_token, p_firsts[1]);
        if v_row.acknowledge_error_code is not null then
            return next v_row;
            return;
        end if;
    end if;
    return query select * from sharequeue.acknowledge_and_fetch(p_group_id, p_topic, p_partition, p_state_epoch,
        p_member_id, p_member_epoch, p_token, p_request_id, p_firsts, p_lasts, p_types, null, p_max_records, null,
        p_redelivery);
end
$$;

-- The usual fetch in the tables. Null when it cannot serve the call; then nothing has changed, but the share-partition is
-- unfolded. Folds the share-partition where nothing else is in flight.
create or replace function sharequeue_internal.fetch_whole_batch(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_holder sharequeue_internal.holder,
    p_request_id uuid, p_first bigint, p_last bigint, p_max_records bigint, p_redelivery text
) returns sharequeue.acknowledged_and_acquired
language plpgsql volatile as $$
declare
    v_sp record;
    v_settings record;
    v_lease record;
    v_row sharequeue.acknowledged_and_acquired;
    v_reused boolean;
    v_past bigint;
begin
    -- A queue before the row. A call that waits for a row lock waits for one version of the row, and must start again
    -- when that version is gone. A transaction that has an id does not queue, because it may hold the row already: the
    -- update before this locks the row that it waited for, even if the row no longer meets its conditions. In the queue
    -- it would wait for a call that waits for the row.
    if pg_current_xact_id_if_assigned() is null then
        perform pg_advisory_xact_lock(-1, hashtext(p_group_id || '/' || p_topic || '/' || p_partition));
    end if;
    -- Two statements: they are quicker than a join, and settings that are read under the lock are the present ones. Where
    -- ACLs apply to the group, the long way checks them.
    select share_partition_id as id, spso, speo, log_end, last_stable_offset, delivery_complete_count, state_epoch,
        next_expiry, accepted_first, folded_lease_id is not null as folded,
        not redeliverable and not advance_due and p_first >= spso and status = 'active' and paused_reason is null
            and log_end < 9223372032559808512 as usual
    into v_sp from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    if v_sp.folded then
        perform sharequeue_internal.unfold(v_sp.id);
    end if;
    select lock_duration_ms, max_record_locks, read_committed, xmin as version,
        case when read_committed then v_sp.last_stable_offset else v_sp.log_end end as read_end,
        paused_reason is null and breaker_percent = 0 and not acls_apply as usual,
        clock_timestamp() + coalesce((select amount from sharequeue.clock_offset), interval '0') as at
    into v_settings from sharequeue.group_settings where group_id = p_group_id;
    if not coalesce(v_sp.usual and v_settings.usual and v_sp.next_expiry > v_settings.at
            and (p_state_epoch is null or p_state_epoch = v_sp.state_epoch), false) then
        return null;
    end if;
    v_past := p_last + 1;
    -- The batch, if it is whole, uniform, delivered once, held by this member, and all of its lease; and whether SPSO would
    -- come to stand right behind it. By primary key, step by step.
    select l.lease_id, p_first = v_sp.spso and (v_past = v_sp.speo or exists (
            select from sharequeue.in_flight_batches n
            where n.share_partition_id = v_sp.id and n.first_offset = v_past and n.part = 0 and n.offsets is null
                and n.state not in (2, 4))) as next_is_head
    into v_lease
    from sharequeue.in_flight_batches f cross join lateral (
        select lease_id from sharequeue.leases
        where lease_id = f.lease_id and member_id = p_holder.member_id
            and (p_holder.token is null or token = p_holder.token) offset 0) as l
    where f.share_partition_id = v_sp.id and f.first_offset = p_first and f.part = 0 and f.last_offset = p_last
        and f.state = 1 and f.delivery_count = 1 and f.offsets is null
        and 1 = (select count(*) from (
            select from sharequeue.in_flight_batches o where o.lease_id = f.lease_id limit 2) as o);
    if not found then
        return null;
    end if;
    -- If SPSO goes no further and there is something fresh, the row of the batch becomes the row of the next one. That is
    -- less work than a delete and an insert.
    v_reused := v_lease.next_is_head
        and least(v_settings.read_end, v_past + v_settings.max_record_locks) > v_sp.speo;
    if v_reused then
        v_sp.spso := v_past;
        v_sp.accepted_first := v_sp.accepted_first + v_past - p_first;
    else
        update sharequeue.in_flight_batches set state = 2, lease_id = null
        where share_partition_id = v_sp.id and first_offset = p_first and part = 0;
        perform sharequeue_internal.advance_spso(v_sp.id, v_past - p_first, v_past - p_first);
        perform sharequeue_internal.join_terminal(v_sp.id, p_first, p_first);
        select spso, delivery_complete_count, accepted_first
        into v_sp.spso, v_sp.delivery_complete_count, v_sp.accepted_first
        from sharequeue.share_partitions where share_partition_id = v_sp.id;
    end if;
    v_row.acknowledge_error_code := 0;
    v_row.spso := v_sp.spso;
    v_row.lag := greatest(0, v_sp.log_end - v_sp.spso - v_sp.delivery_complete_count);
    v_past := least(v_sp.speo + p_max_records, v_sp.spso + v_settings.max_record_locks, v_settings.read_end);
    if v_past <= v_sp.speo then
        delete from sharequeue.leases where lease_id = v_lease.lease_id;
        if p_request_id is not null then
            insert into sharequeue.requests (request_key, operation, finished_at, fetched)
            values (sharequeue_internal.request_key(v_sp.id, 'acknowledge_and_acquire', p_holder.member_id, p_request_id),
                'acknowledge_and_acquire', v_settings.at, v_row);
        end if;
        return v_row;
    end if;
    v_row.error_code := 0;
    -- A request id is as unique as a new token, and costs nothing.
    v_row.token := coalesce(p_request_id, gen_random_uuid());
    v_row.state_epoch := v_sp.state_epoch;
    v_row.lock_duration_ms := v_settings.lock_duration_ms;
    v_row.expires_at := v_settings.at + v_settings.lock_duration_ms * interval '1 millisecond';
    v_row.delivery_count := 1;
    v_row.offsets := int8multirange(int8range(v_sp.speo, v_past));
    v_row.isolation_level := sharequeue_internal.isolation_level(v_settings.read_committed);
    v_row.lease_id := nextval('sharequeue.leases_lease_id_seq');
    if v_row.expires_at < v_sp.next_expiry then
        update sharequeue.share_partitions set next_expiry = v_row.expires_at where share_partition_id = v_sp.id;
    end if;
    if v_reused and v_sp.spso = v_sp.speo and p_holder.token is not null and v_sp.speo < 4611686018427387904
            and sharequeue_internal.may_fold(p_group_id, v_settings.version, v_sp.id) then
        delete from sharequeue.leases where lease_id = v_lease.lease_id;
        delete from sharequeue.in_flight_batches
        where share_partition_id = v_sp.id and first_offset = p_first and part = 0;
        update sharequeue.share_partitions sp set folded_lease_id = v_row.lease_id, folded_acquired_at = v_settings.at,
            folded_lag = v_row.lag, folded_max_record_locks = s.max_record_locks, folded_token = v_row.token,
            folded_request_id = p_request_id, folded_lock_duration_ms = s.lock_duration_ms,
            folded_member_epoch = coalesce(p_holder.member_epoch, -1), folded_read_committed = s.read_committed,
            folded_fan_out = p_redelivery = 'fan_out', folded_member_id = p_holder.member_id,
            folded_clock_offset = c.amount
        from sharequeue.group_settings s, sharequeue.clock_offset c
        where sp.share_partition_id = v_sp.id and s.group_id = p_group_id;
    elsif v_reused then
        update sharequeue.in_flight_batches set first_offset = v_sp.speo, last_offset = v_past - 1,
            lease_id = v_row.lease_id, journalled = not journalled
        where share_partition_id = v_sp.id and first_offset = p_first and part = 0;
    else
        insert into sharequeue.in_flight_batches
            (share_partition_id, first_offset, last_offset, state, delivery_count, lease_id, journalled)
        values (v_sp.id, v_sp.speo, v_past - 1, 1, 1, v_row.lease_id, true);
    end if;
    -- The lease keeps the result for a repeated call.
    with held as (
        update sharequeue.leases set lease_id = v_row.lease_id, token = v_row.token,
            member_epoch = coalesce(p_holder.member_epoch, -1), lock_duration_ms = v_row.lock_duration_ms,
            acquired_at = v_settings.at, expires_at = v_row.expires_at, fan_out = p_redelivery = 'fan_out',
            own_lock_duration = false, read_committed = v_settings.read_committed, request_id = p_request_id,
            fetched = case when p_request_id is not null then v_row end, journalled = not journalled
        where lease_id = v_lease.lease_id
    ), written as (
        insert into sharequeue.journal (share_partition_id, at, kind, first_offset, last_offset, gone_first, lease_id,
            gone_lease_id, member_id, member_epoch, token, lock_duration_ms, fan_out, read_committed, spso, accepted_first)
        values (v_sp.id, v_settings.at, 'fetch', v_sp.speo, v_past - 1, case when v_reused then p_first end,
            v_row.lease_id, v_lease.lease_id, p_holder.member_id, coalesce(p_holder.member_epoch, -1), v_row.token,
            v_row.lock_duration_ms, p_redelivery = 'fan_out', v_settings.read_committed, v_sp.spso, v_sp.accepted_first)
    )
    update sharequeue.share_partitions
    set spso = v_sp.spso, speo = v_past, accepted_first = v_sp.accepted_first
    where share_partition_id = v_sp.id;
    return v_row;
end
$$;
