-- Answers one fetch and makes the next, in one call and one commit, as Kafka's ShareFetch carries acknowledgements. The
-- acknowledgement's refusal does not stop the acquire. Always one row at least; its acquire columns are null when there
-- is nothing to lease. acknowledge_and_fetch takes more: lists of types, the log's batches, IsRenewAck, with which nothing is
-- acquired. Twenty-two arguments cost 29 µs a call to parse and plan, so that most callers are spared them.
--
-- The fast path below serves the steady state of a worker: one uniform batch accepted whole by its holder, fresh records
-- next, no redelivery due, no lock lapsed. Everything else goes the long way round, through the same functions as
-- acknowledge_batches and acquire.
create or replace function sharequeue.acknowledge_and_acquire(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_max_records bigint,
    p_redelivery text
) returns setof sharequeue.acknowledged_and_acquired
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_sp record;
    v_at timestamptz;
    v_lease record;
    v_row sharequeue.acknowledged_and_acquired;
    v_stored record;
    v_settings record;
    v_refused smallint := 0;
    v_fast boolean := false;
    v_spso bigint;
    v_complete bigint;
    v_past bigint;
    v_after_state smallint := 1;
begin
    -- Two statements: joined with the settings it took 13 µs, apart 4 and 2; and settings read behind the lock are those
    -- of now.
    select share_partition_id, spso, speo, log_end, last_stable_offset, delivery_complete_count, state_epoch,
        next_expiry, redeliverable or advance_due as redeliverable, status, paused_reason
    into v_sp from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    if p_request_id is not null then
        select answer, fetched into v_stored from sharequeue.requests
        where request_id = p_request_id and operation = 'acknowledge_and_acquire';
        if found then
            if v_stored.answer is null then
                return next v_stored.fetched;
            else
                return query
                    select * from jsonb_populate_recordset(null::sharequeue.acknowledged_and_acquired, v_stored.answer);
            end if;
            return;
        end if;
    end if;
    v_at := sharequeue.clock();
    if v_sp.next_expiry > v_at and not v_sp.redeliverable and p_firsts[1] >= v_sp.spso and p_types = '{1}'
            and array_length(p_firsts, 1) = 1 and array_length(p_lasts, 1) = 1
            and p_max_records between 1 and 2147483647 and p_redelivery in ('kafka', 'fan_out')
            and (p_state_epoch is null or p_state_epoch = v_sp.state_epoch)
            and v_sp.status = 'active' and v_sp.paused_reason is null then
        select lock_duration_ms, max_record_locks, read_committed, paused_reason into v_settings
        from sharequeue.group_settings where group_id = p_group_id;
        if p_member_epoch is not null then
            select m.error_code into v_refused
            from sharequeue.check_member(p_group_id, p_member_id, p_member_epoch) as m;
        end if;
        v_fast := v_refused = 0 and v_settings.paused_reason is null;
    end if;
    if v_fast then
        -- The batch, if it is whole, uniform, delivered once, held by this member, and all of its lease. By primary key,
        -- step by step: as one delete with a join, planned while the tables were small, it walked the dead entries of
        -- leases_by_member, 300 µs.
        select lease_id, last_offset = p_lasts[1] and state = 1 and delivery_count = 1 and offsets is null as whole
        into v_lease from sharequeue.in_flight_batches
        where share_partition_id = v_sp.share_partition_id and first_offset = p_firsts[1] and part = 0;
        if v_lease.whole then
            select member_id = p_member_id and (p_token is null or token = p_token) and 1 = (
                select count(*) from (
                    select from sharequeue.in_flight_batches f where f.lease_id = v_lease.lease_id limit 2) as f)
            into v_fast from sharequeue.leases where lease_id = v_lease.lease_id;
        else
            v_fast := false;
        end if;
        if v_fast then
            v_spso := v_sp.spso;
            v_past := p_lasts[1] + 1;
            v_complete := v_sp.delivery_complete_count;
            if p_firsts[1] = v_spso and v_past = v_sp.speo then
                v_spso := v_past;
            elsif p_firsts[1] = v_spso then
                select first_offset, case when offsets is null then state else 2 end
                into v_spso, v_after_state from sharequeue.in_flight_batches
                where share_partition_id = v_sp.share_partition_id and first_offset >= v_past
                order by share_partition_id, first_offset limit 1;
                v_spso := coalesce(v_spso, v_sp.speo);
            else
                v_after_state := 2;
            end if;
            v_fast := v_after_state = 1;
            if not v_fast then
                -- It is not the head, or more than it may be passed now.
                update sharequeue.in_flight_batches set state = 2, lease_id = null
                where share_partition_id = v_sp.share_partition_id and first_offset = p_firsts[1] and part = 0;
                perform sharequeue.join_terminal(v_sp.share_partition_id, p_firsts[1]);
                perform sharequeue.advance_spso(v_sp.share_partition_id, v_past - p_firsts[1]);
                select spso, delivery_complete_count into v_spso, v_complete from sharequeue.share_partitions
                where share_partition_id = v_sp.share_partition_id;
            end if;
            v_past := least(v_sp.speo + p_max_records, v_spso + v_settings.max_record_locks,
                case when v_settings.read_committed then v_sp.last_stable_offset else v_sp.log_end end);
            v_row.acknowledge_error_code := 0;
            v_row.spso := v_spso;
            v_row.lag := greatest(0, v_sp.log_end - v_spso - v_complete);
            if v_past > v_sp.speo then
                v_row.error_code := 0;
                -- As unique as a new one, and 5 µs cheaper.
                v_row.token := coalesce(p_request_id, gen_random_uuid());
                v_row.state_epoch := v_sp.state_epoch;
                v_row.lock_duration_ms := v_settings.lock_duration_ms;
                v_row.expires_at := v_at + v_settings.lock_duration_ms * interval '1 millisecond';
                v_row.delivery_count := 1;
                v_row.offsets := int8multirange(int8range(v_sp.speo, v_past));
                v_row.lease_id := nextval('sharequeue.leases_lease_id_seq');
                -- One statement over four tables; four apart cost the same.
                with gone as (
                    delete from sharequeue.in_flight_batches
                    where v_fast and share_partition_id = v_sp.share_partition_id and first_offset = p_firsts[1]
                        and part = 0
                ), held as (
                    -- The old lease's row becomes the new one: 4 µs less than a delete and an insert.
                    update sharequeue.leases set lease_id = v_row.lease_id, token = v_row.token,
                        member_epoch = coalesce(p_member_epoch, -1), lock_duration_ms = v_row.lock_duration_ms,
                        acquired_at = v_at, expires_at = v_row.expires_at, fan_out = p_redelivery = 'fan_out',
                        own_lock_duration = false
                    where lease_id = v_lease.lease_id
                ), fresh as (
                    insert into sharequeue.in_flight_batches
                        (share_partition_id, first_offset, last_offset, state, delivery_count, lease_id)
                    values (v_sp.share_partition_id, v_sp.speo, v_past - 1, 1, 1, v_row.lease_id)
                )
                update sharequeue.share_partitions set spso = v_spso, speo = v_past,
                    accepted_first = accepted_first + p_lasts[1] - p_firsts[1] + 1,
                    next_expiry = least(next_expiry, v_row.expires_at)
                where share_partition_id = v_sp.share_partition_id;
            else
                delete from sharequeue.leases where lease_id = v_lease.lease_id;
                delete from sharequeue.in_flight_batches
                where v_fast and share_partition_id = v_sp.share_partition_id and first_offset = p_firsts[1]
                    and part = 0;
                update sharequeue.share_partitions
                set spso = v_spso, accepted_first = accepted_first + p_lasts[1] - p_firsts[1] + 1
                where share_partition_id = v_sp.share_partition_id;
            end if;
            if p_request_id is not null then
                insert into sharequeue.requests (request_id, operation, answered_at, fetched)
                values (p_request_id, 'acknowledge_and_acquire', v_at, v_row);
            end if;
            return next v_row;
            return;
        end if;
    end if;
    return query select * from sharequeue.acknowledge_and_fetch(p_group_id, p_topic, p_partition, p_state_epoch,
        p_member_id, p_member_epoch, p_token, p_request_id, p_firsts, p_lasts, p_types, null, p_max_records, null,
        p_redelivery);
end
$$;

-- The same with all that a ShareFetch may carry, the long way round.
create or replace function sharequeue.acknowledge_and_fetch(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[],
    p_max_records bigint, p_lock_duration_ms integer default null, p_redelivery text default 'kafka',
    p_mode text default 'batch_optimized', p_batch_size bigint default null, p_log_firsts bigint[] default null,
    p_log_lasts bigint[] default null, p_aborted int8multirange default '{}', p_renew_allowed boolean default false,
    p_not_before timestamptz default null
) returns setof sharequeue.acknowledged_and_acquired
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_acknowledged sharequeue.acknowledged;
    v_acquired sharequeue.acquired;
    v_row sharequeue.acknowledged_and_acquired;
    v_rows integer := 0;
    v_answer jsonb := '[]';
    v_stored record;
begin
    if p_request_id is not null then
        perform from sharequeue.share_partitions
        where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
        select answer into v_stored from sharequeue.requests
        where request_id = p_request_id and operation = 'acknowledge_and_acquire';
        if found then
            return query
                select * from jsonb_populate_recordset(null::sharequeue.acknowledged_and_acquired, v_stored.answer);
            return;
        end if;
    end if;
    v_acknowledged := sharequeue.acknowledge_batches(p_group_id, p_topic, p_partition, p_state_epoch, p_member_id,
        p_member_epoch, p_token, null, p_firsts, p_lasts, p_types, p_type_counts, p_renew_allowed, p_not_before);
    v_row.acknowledge_error_code := (v_acknowledged).error_code;
    v_row.acknowledge_error_message := (v_acknowledged).error_message;
    v_row.spso := (v_acknowledged).spso;
    v_row.lag := (v_acknowledged).lag;
    for v_acquired in
        select * from sharequeue.acquire(p_group_id, p_topic, p_partition, p_state_epoch, p_member_id, p_member_epoch,
            p_max_records, p_lock_duration_ms, null, p_redelivery, p_mode, p_batch_size, p_log_firsts, p_log_lasts,
            p_aborted)
        where not p_renew_allowed
    loop
        v_rows := v_rows + 1;
        v_row.error_code := (v_acquired).error_code;
        v_row.error_message := (v_acquired).error_message;
        v_row.lease_id := (v_acquired).lease_id;
        v_row.token := (v_acquired).token;
        v_row.state_epoch := (v_acquired).state_epoch;
        v_row.lock_duration_ms := (v_acquired).lock_duration_ms;
        v_row.expires_at := (v_acquired).expires_at;
        v_row.delivery_count := (v_acquired).delivery_count;
        v_row.offsets := (v_acquired).offsets;
        v_answer := v_answer || to_jsonb(v_row);
        return next v_row;
    end loop;
    if v_rows = 0 then
        v_answer := v_answer || to_jsonb(v_row);
        return next v_row;
    end if;
    if (v_row).acknowledge_error_code = 0 and coalesce((v_row).error_code, 0) = 0 then
        perform sharequeue.remember(p_request_id, 'acknowledge_and_acquire', v_answer);
    end if;
end
$$;
