-- Answers one fetch and makes the next, in one call and one commit, as Kafka's ShareFetch carries acknowledgements. The
-- acknowledgement's refusal does not stop the acquire. Always one row at least; its acquire columns are null when there
-- is nothing to lease. acknowledge_and_fetch takes more: lists of types, the log's batches, IsRenewAck, with which nothing is
-- acquired. Twenty-two arguments cost 29 µs a call to parse and plan, so that most callers are spared them.
--
-- Three ways, each for what the one before does not serve. The first is the steady state of a worker that has the
-- share-partition to itself: it is folded (11_fold.sql), the fetch accepts all of it and leases fresh records: one HOT update
-- and one row of the journal. The second serves workers side by side: one uniform batch accepted whole by its holder, fresh
-- records next, no redelivery due, no lock lapsed. The rest goes the long way round, through the same functions as
-- acknowledge_batches and acquire. The first two write their own row of the journal, one for all tables; what they
-- do to the tables keeps the triggers silent (18_journal.sql).
create or replace function sharequeue.acknowledge_and_acquire(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_max_records bigint,
    p_redelivery text
) returns setof sharequeue.acknowledged_and_acquired
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_refused smallint := 0;
    v_sp record;
    v_stored record;
    v_row sharequeue.acknowledged_and_acquired;
begin
    perform sharequeue.require_read_committed();
    -- A call that names its token and is known by a request id need not be looked up here, nor on the second way: had it
    -- been answered before, nothing would be held under that token any more.
    if p_types = '{1}' and array_length(p_firsts, 1) = 1 and array_length(p_lasts, 1) = 1
            and p_max_records between 1 and 2147483647 and p_redelivery in ('kafka', 'fan_out')
            and (p_token is not null or p_request_id is null) then
        if p_member_epoch is not null then
            select m.error_code into v_refused
            from sharequeue.check_member(p_group_id, p_member_id, p_member_epoch) as m;
        end if;
        if v_refused = 0 then
            -- The update takes the lock, and its conditions are judged, and the clock is read, on the row as it is then.
            -- The clock is sharequeue.clock() written out. Every expression here is compiled anew for every call: what
            -- can be told from the rest, or looked after elsewhere, is left out.
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
                and state_epoch = coalesce(p_state_epoch, state_epoch)
                and case when folded_read_committed then last_stable_offset else log_end end > speo
                and folded_acquired_at + folded_lock_duration_ms * interval '1 millisecond'
                    > clock_timestamp() + folded_clock_offset
            returning share_partition_id, spso, speo, accepted_first, state_epoch, folded_lease_id, folded_token,
                folded_lock_duration_ms, folded_lag, folded_acquired_at
            into v_sp;
            if found then
                -- One number for both: a draw from a sequence is 3 µs.
                insert into sharequeue.journal (journal_id, share_partition_id, at, kind, first_offset, last_offset,
                    gone_first, lease_id, member_id, member_epoch, token, lock_duration_ms, fan_out, accepted_first)
                values (v_sp.folded_lease_id, v_sp.share_partition_id, v_sp.folded_acquired_at, 'fetch', v_sp.spso,
                    v_sp.speo - 1, p_firsts[1], v_sp.folded_lease_id, p_member_id, coalesce(p_member_epoch, -1),
                    v_sp.folded_token, v_sp.folded_lock_duration_ms, p_redelivery = 'fan_out', v_sp.accepted_first);
                return next row(0::smallint, null, v_sp.spso, v_sp.folded_lag, 0::smallint, null, v_sp.folded_lease_id,
                    v_sp.folded_token, v_sp.state_epoch, v_sp.folded_lock_duration_ms,
                    v_sp.folded_acquired_at + v_sp.folded_lock_duration_ms * interval '1 millisecond', 1::smallint,
                    int8multirange(int8range(v_sp.spso, v_sp.speo)))::sharequeue.acknowledged_and_acquired;
                return;
            end if;
            v_row := sharequeue.fetch_side_by_side(p_group_id, p_topic, p_partition, p_state_epoch, p_member_id,
                p_member_epoch, p_token, p_request_id, p_firsts[1], p_lasts[1], p_max_records, p_redelivery);
            if v_row.acknowledge_error_code = 0 then
                return next v_row;
                return;
            end if;
        end if;
    end if;
    if p_request_id is not null then
        v_row := sharequeue.answered_fetch(p_group_id, p_topic, p_partition, p_request_id, p_member_id, p_token, p_firsts[1]);
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

-- The answer that one of the first two ways has given to a request of this member before; null when none has, or the
-- caller may not read the group. Kept with the lease for as long as that is there, then among the requests.
create or replace function sharequeue.answered_fetch(
    p_group_id text, p_topic text, p_partition integer, p_request_id uuid, p_member_id text, p_token uuid, p_first bigint
) returns sharequeue.acknowledged_and_acquired
language plpgsql volatile as $$
declare
    v_sp sharequeue.share_partitions;
    v_answer sharequeue.acknowledged_and_acquired;
begin
    select * into v_sp from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    if coalesce((select acls_apply from sharequeue.group_settings where group_id = p_group_id), true)
            and not sharequeue.authorised(p_group_id, 'READ') then
        return null;
    elsif v_sp.folded_request_id = p_request_id and v_sp.folded_member_id = p_member_id then
        return sharequeue.folded_answer(v_sp);
    end if;
    select (fetched).* into v_answer from sharequeue.requests
    where request_key = sharequeue.request_key(
        v_sp.share_partition_id, 'acknowledge_and_acquire', p_member_id, p_request_id);
    if v_answer.acknowledge_error_code is null and not exists (
        -- What it answers is still held: it has not been answered before. Spares a walk over the leases.
        select from sharequeue.in_flight_batches f
        where f.share_partition_id = v_sp.share_partition_id and f.first_offset = p_first and f.part = 0
            and f.state = 1 and p_token is not null and sharequeue.is_holder(f.lease_id, p_member_id, p_token)
    ) then
        select (l.fetched).* into v_answer from sharequeue.leases l
        where l.share_partition_id = v_sp.share_partition_id and l.request_id = p_request_id
            and l.member_id = p_member_id;
    end if;
    return v_answer;
end
$$;

-- The second way; null when it cannot serve the call, which then has changed nothing but to unfold the share-partition.
-- Folds it where nothing else is in flight.
create or replace function sharequeue.fetch_side_by_side(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer,
    p_token uuid, p_request_id uuid, p_first bigint, p_last bigint, p_max_records bigint, p_redelivery text
) returns sharequeue.acknowledged_and_acquired
language plpgsql volatile as $$
declare
    v_sp record;
    v_at timestamptz;
    v_lease record;
    v_row sharequeue.acknowledged_and_acquired;
    v_settings record;
    v_next record;
    v_held boolean;
    v_reused boolean := true;
    v_alone boolean;
    v_spso bigint;
    v_complete bigint;
    v_past bigint;
begin
    -- A queue before the row. Whoever waits for a row lock waits for one version of the row, and finds it gone when its
    -- turn comes: eight connections on one share-partition did 977 calls a second, with the queue 1,470. Not for who may
    -- hold the row already, and a transaction with an id may: the update of the first way locks the row it waited for
    -- even where the row no longer meets its conditions. In the queue it would wait for one that waits for the row.
    if pg_current_xact_id_if_assigned() is null then
        perform pg_advisory_xact_lock(-1, hashtext(p_group_id || '/' || p_topic || '/' || p_partition));
    end if;
    -- Two statements: joined with the settings it took 13 µs, apart 4 and 2; and settings read behind the lock are those
    -- of now. Where ACLs apply to the group, the long way asks them.
    select share_partition_id, spso, speo, log_end, last_stable_offset, delivery_complete_count, state_epoch,
        next_expiry, accepted_first, redeliverable or advance_due as redeliverable, status, paused_reason,
        folded_lease_id is not null as folded
    into v_sp from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    v_at := sharequeue.clock();
    if v_sp.folded then
        perform sharequeue.unfold(v_sp.share_partition_id);
    end if;
    if not coalesce(v_sp.next_expiry > v_at and not v_sp.redeliverable and p_first >= v_sp.spso
            and (p_state_epoch is null or p_state_epoch = v_sp.state_epoch)
            and v_sp.status = 'active' and v_sp.paused_reason is null and v_sp.log_end < 9223372032559808512, false) then
        return null;
    end if;
    select lock_duration_ms, max_record_locks, read_committed,
        paused_reason is null and breaker_percent = 0 and not acls_apply as usual
    into v_settings from sharequeue.group_settings where group_id = p_group_id;
    -- The batch, if it is whole, uniform, delivered once, held by this member, and all of its lease. By primary key,
    -- step by step: as one delete with a join, planned while the tables were small, it walked the dead entries of
    -- leases_by_member, 300 µs.
    select lease_id, last_offset = p_last and state = 1 and delivery_count = 1 and offsets is null as whole
    into v_lease from sharequeue.in_flight_batches
    where share_partition_id = v_sp.share_partition_id and first_offset = p_first and part = 0;
    if not coalesce(v_settings.usual and v_lease.whole, false) then
        return null;
    end if;
    select member_id = p_member_id and (p_token is null or token = p_token) and 1 = (
        select count(*) from (
            select from sharequeue.in_flight_batches f where f.lease_id = v_lease.lease_id limit 2) as f)
    into v_held from sharequeue.leases where lease_id = v_lease.lease_id;
    if not coalesce(v_held, false) then
        return null;
    end if;
    v_spso := v_sp.spso;
    v_past := p_last + 1;
    v_complete := v_sp.delivery_complete_count;
    if p_first = v_spso and v_past = v_sp.speo then
        v_spso := v_past;
    elsif p_first = v_spso then
        -- The head: SPSO moves to the next batch, or past that too where it was finished before.
        select first_offset, last_offset, state, offsets is null as uniform
        into v_next from sharequeue.in_flight_batches
        where share_partition_id = v_sp.share_partition_id and first_offset >= v_past
        order by share_partition_id, first_offset limit 1;
        if found and v_next.uniform and v_next.state = 2 then
            delete from sharequeue.in_flight_batches
            where share_partition_id = v_sp.share_partition_id and first_offset = v_next.first_offset;
            v_complete := v_complete - (v_next.last_offset - v_next.first_offset + 1);
            select first_offset, state, offsets is null as uniform
            into v_next from sharequeue.in_flight_batches
            where share_partition_id = v_sp.share_partition_id and first_offset > v_next.first_offset
            order by share_partition_id, first_offset limit 1;
        end if;
        v_reused := not found or (v_next.uniform and v_next.state not in (2, 4));
        v_spso := coalesce(v_next.first_offset, v_sp.speo);
    else
        -- Behind the head, which is not finished: SPSO stays.
        v_complete := v_complete + v_past - p_first;
        v_reused := sharequeue.accept_behind_head(v_sp.share_partition_id, p_first, p_last);
    end if;
    v_alone := v_reused and v_past = v_sp.speo and p_token is not null and v_complete = 0
        and v_sp.speo < 4611686018427387904 and 1 = (select count(*) from (select from sharequeue.in_flight_batches f
            where f.share_partition_id = v_sp.share_partition_id limit 2) as f);
    if v_complete <> v_sp.delivery_complete_count then
        update sharequeue.share_partitions set delivery_complete_count = v_complete
        where share_partition_id = v_sp.share_partition_id;
    end if;
    if p_first = v_sp.spso and not v_reused then
        -- More may be passed now than was looked at.
        update sharequeue.in_flight_batches set state = 2, lease_id = null
        where share_partition_id = v_sp.share_partition_id and first_offset = p_first and part = 0;
        perform sharequeue.join_terminal(v_sp.share_partition_id, p_first);
        perform sharequeue.advance_spso(v_sp.share_partition_id, v_past - p_first);
        select spso, delivery_complete_count into v_spso, v_complete from sharequeue.share_partitions
        where share_partition_id = v_sp.share_partition_id;
    end if;
    v_past := least(v_sp.speo + p_max_records, v_spso + v_settings.max_record_locks,
        case when v_settings.read_committed then v_sp.last_stable_offset else v_sp.log_end end);
    v_sp.accepted_first := v_sp.accepted_first + p_last - p_first + 1;
    v_row.acknowledge_error_code := 0;
    v_row.spso := v_spso;
    v_row.lag := greatest(0, v_sp.log_end - v_spso - v_complete);
    if v_past <= v_sp.speo then
        delete from sharequeue.leases where lease_id = v_lease.lease_id;
        delete from sharequeue.in_flight_batches
        where v_reused and share_partition_id = v_sp.share_partition_id and first_offset = p_first and part = 0;
        update sharequeue.share_partitions
        set spso = v_spso, accepted_first = v_sp.accepted_first, redeliverable = redeliverable
        where share_partition_id = v_sp.share_partition_id;
        if p_request_id is not null then
            insert into sharequeue.requests (request_key, operation, answered_at, fetched)
            values (sharequeue.request_key(v_sp.share_partition_id, 'acknowledge_and_acquire', p_member_id,
                p_request_id), 'acknowledge_and_acquire', v_at, v_row);
        end if;
        return v_row;
    end if;
    v_row.error_code := 0;
    -- As unique as a new one, and 5 µs cheaper.
    v_row.token := coalesce(p_request_id, gen_random_uuid());
    v_row.state_epoch := v_sp.state_epoch;
    v_row.lock_duration_ms := v_settings.lock_duration_ms;
    v_row.expires_at := v_at + v_settings.lock_duration_ms * interval '1 millisecond';
    v_row.delivery_count := 1;
    v_row.offsets := int8multirange(int8range(v_sp.speo, v_past));
    v_row.lease_id := nextval('sharequeue.leases_lease_id_seq');
    if v_row.expires_at < v_sp.next_expiry then
        v_sp.next_expiry := v_row.expires_at;
        update sharequeue.share_partitions set next_expiry = v_row.expires_at
        where share_partition_id = v_sp.share_partition_id;
    end if;
    if v_alone then
        delete from sharequeue.leases where lease_id = v_lease.lease_id;
        delete from sharequeue.in_flight_batches
        where share_partition_id = v_sp.share_partition_id and first_offset = p_first and part = 0;
        update sharequeue.share_partitions set folded_lease_id = v_row.lease_id, folded_acquired_at = v_at,
            folded_lag = v_row.lag, folded_max_record_locks = v_settings.max_record_locks,
            folded_clock_offset = coalesce((select amount from sharequeue.clock_offset), interval '0'), folded_token = v_row.token,
            folded_request_id = p_request_id, folded_lock_duration_ms = v_row.lock_duration_ms,
            folded_member_epoch = coalesce(p_member_epoch, -1), folded_read_committed = v_settings.read_committed,
            folded_fan_out = p_redelivery = 'fan_out', folded_member_id = p_member_id
        where share_partition_id = v_sp.share_partition_id;
    elsif v_reused then
        -- The old row becomes the new one: less than a delete and an insert.
        update sharequeue.in_flight_batches set first_offset = v_sp.speo, last_offset = v_past - 1,
            lease_id = v_row.lease_id, journalled = not journalled
        where share_partition_id = v_sp.share_partition_id and first_offset = p_first and part = 0;
    else
        insert into sharequeue.in_flight_batches
            (share_partition_id, first_offset, last_offset, state, delivery_count, lease_id, journalled)
        values (v_sp.share_partition_id, v_sp.speo, v_past - 1, 1, 1, v_row.lease_id, true);
    end if;
    -- One statement over three tables; three apart cost the same. The lease keeps the answer for a repeated call.
    with held as (
        update sharequeue.leases set lease_id = v_row.lease_id, token = v_row.token,
            member_epoch = coalesce(p_member_epoch, -1), lock_duration_ms = v_row.lock_duration_ms,
            acquired_at = v_at, expires_at = v_row.expires_at, fan_out = p_redelivery = 'fan_out',
            own_lock_duration = false, request_id = p_request_id,
            fetched = case when p_request_id is not null then v_row end, journalled = not journalled
        where lease_id = v_lease.lease_id
    ), written as (
        insert into sharequeue.journal (share_partition_id, at, kind, first_offset, last_offset, gone_first, lease_id,
            gone_lease_id, member_id, member_epoch, token, lock_duration_ms, fan_out, spso, accepted_first)
        values (v_sp.share_partition_id, v_at, 'fetch', v_sp.speo, v_past - 1, case when v_reused then p_first end,
            v_row.lease_id, v_lease.lease_id, p_member_id, coalesce(p_member_epoch, -1), v_row.token,
            v_row.lock_duration_ms, p_redelivery = 'fan_out', v_spso, v_sp.accepted_first)
    )
    update sharequeue.share_partitions set spso = v_spso, speo = v_past, accepted_first = v_sp.accepted_first
    where share_partition_id = v_sp.share_partition_id;
    return v_row;
end
$$;

-- Accepts a whole batch behind an unfinished head. Where the batch before it is accepted too, that one grows over it, and
-- its own row is free to become the next lease's: answers whether it is. The row still says ACQUIRED then.
create or replace function sharequeue.accept_behind_head(p_id bigint, p_first bigint, p_last bigint) returns boolean
language plpgsql volatile as $$
declare
    v_before record;
    v_next record;
    v_last bigint := p_last;
begin
    select first_offset, last_offset, state = 2 and delivery_count = 1 and offsets is null as accepted into v_before
    from sharequeue.in_flight_batches
    where share_partition_id = p_id and first_offset < p_first
    order by share_partition_id desc, first_offset desc limit 1;
    select first_offset, last_offset, state = 2 and delivery_count = 1 and offsets is null as accepted into v_next
    from sharequeue.in_flight_batches
    where share_partition_id = p_id and first_offset > p_first
    order by share_partition_id, first_offset limit 1;
    if v_next.accepted and v_next.first_offset = p_last + 1 then
        delete from sharequeue.in_flight_batches
        where share_partition_id = p_id and first_offset = v_next.first_offset;
        v_last := v_next.last_offset;
    end if;
    if v_before.accepted and v_before.last_offset = p_first - 1 then
        update sharequeue.in_flight_batches set last_offset = v_last
        where share_partition_id = p_id and first_offset = v_before.first_offset;
        return true;
    end if;
    update sharequeue.in_flight_batches set state = 2, lease_id = null, last_offset = v_last
    where share_partition_id = p_id and first_offset = p_first;
    return false;
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
    v_found record;
    v_key uuid;
    v_stored jsonb;
begin
    if p_request_id is not null then
        select * into v_found from sharequeue.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
        v_key := sharequeue.request_key(
            (v_found.sp).share_partition_id, 'acknowledge_and_acquire', p_member_id, p_request_id);
        v_stored := sharequeue.answered(v_key);
        if v_found.error_code <> 30 and v_stored is not null then
            return query select * from jsonb_populate_recordset(null::sharequeue.acknowledged_and_acquired, v_stored);
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
    -- One half may be refused while the other has taken effect: a repeated call must not answer, nor lease, once more.
    if (v_row).acknowledge_error_code = 0 or (v_row).lease_id is not null then
        perform sharequeue.remember(v_key, 'acknowledge_and_acquire', v_answer);
    end if;
end
$$;
