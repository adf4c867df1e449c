-- The whole schema as the migrations, functions and views make it. Generated: do not edit, run
-- `sharequeue migrate --print-schema > sql/schema.sql`. Owners and grants are not shown: roles are settings
-- (functions/99_permissions.sql). Partitions by time are made as time passes.


-- SCHEMA sharequeue

CREATE SCHEMA sharequeue;

-- SCHEMA sharequeue_internal

CREATE SCHEMA sharequeue_internal;

-- TYPE acknowledged

CREATE TYPE sharequeue.acknowledged AS (
	error_code smallint,
	error_message text,
	spso bigint,
	lag bigint,
	accepted bigint,
	released bigint,
	rejected bigint,
	gaps bigint,
	exhausted bigint
);

-- TYPE acknowledged_and_acquired

CREATE TYPE sharequeue.acknowledged_and_acquired AS (
	acknowledge_error_code smallint,
	acknowledge_error_message text,
	spso bigint,
	lag bigint,
	error_code smallint,
	error_message text,
	lease_id bigint,
	token uuid,
	state_epoch integer,
	lock_duration_ms integer,
	expires_at timestamp with time zone,
	delivery_count smallint,
	offsets int8multirange
);

-- TYPE acknowledged_of

CREATE TYPE sharequeue.acknowledged_of AS (
	topic text,
	partition integer,
	token uuid,
	error_code smallint,
	error_message text,
	spso bigint,
	lag bigint,
	accepted bigint,
	released bigint,
	rejected bigint,
	gaps bigint,
	exhausted bigint
);

-- TYPE acknowledgements

CREATE TYPE sharequeue.acknowledgements AS (
	accept int8multirange,
	release int8multirange,
	reject int8multirange,
	gap int8multirange,
	renew int8multirange
);

-- TYPE acquired

CREATE TYPE sharequeue.acquired AS (
	error_code smallint,
	error_message text,
	lease_id bigint,
	token uuid,
	state_epoch integer,
	lock_duration_ms integer,
	expires_at timestamp with time zone,
	delivery_count smallint,
	offsets int8multirange
);

-- TYPE acquired_of

CREATE TYPE sharequeue.acquired_of AS (
	topic text,
	partition integer,
	suspects boolean,
	last_attempt boolean,
	error_code smallint,
	error_message text,
	lease_id bigint,
	token uuid,
	state_epoch integer,
	lock_duration_ms integer,
	expires_at timestamp with time zone,
	delivery_count smallint,
	offsets int8multirange
);

-- TYPE forced

CREATE TYPE sharequeue.forced AS (
	error_code smallint,
	error_message text,
	act text,
	state smallint,
	delivery_count smallint,
	member_id text,
	offsets int8multirange,
	reason text
);

-- TYPE observed_of

CREATE TYPE sharequeue.observed_of AS (
	topic text,
	partition integer,
	status text
);

-- TYPE released_of

CREATE TYPE sharequeue.released_of AS (
	topic text,
	partition integer,
	token uuid,
	records bigint
);

-- TYPE renewed_of

CREATE TYPE sharequeue.renewed_of AS (
	topic text,
	partition integer,
	token uuid,
	error_code smallint,
	error_message text,
	expires_at timestamp with time zone
);

-- TYPE reset

CREATE TYPE sharequeue.reset AS (
	error_code smallint,
	error_message text,
	topic text,
	partition integer,
	start_offset_before bigint,
	start_offset bigint,
	state_epoch integer
);

-- TYPE taken

CREATE TYPE sharequeue.taken AS (
	delivery_counts smallint[],
	offsets int8multirange[]
);

-- TYPE taken_offsets

CREATE TYPE sharequeue.taken_offsets AS (
	firsts bigint[],
	lasts bigint[],
	delivery_counts smallint[],
	records bigint,
	by_offset boolean,
	throttled boolean
);

-- FUNCTION acknowledge(text, text, integer, integer, text, integer, uuid, uuid, int8multirange, int8multirange, int8multirange, int8multirange, jsonb, int8multirange, timestamp with time zone)

CREATE FUNCTION sharequeue.acknowledge(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_token uuid, p_request_id uuid, p_accept int8multirange, p_release int8multirange, p_reject int8multirange, p_gap int8multirange, p_outputs jsonb DEFAULT '[]'::jsonb, p_renew int8multirange DEFAULT '{}'::int8multirange, p_not_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS sharequeue.acknowledged
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_result sharequeue.acknowledged;
    v_found record;
    v_key uuid;
    v_stored jsonb;
    v_sp sharequeue.share_partitions;
    v_acknowledgements sharequeue.acknowledgements := row(p_accept, p_release, p_reject, p_gap, p_renew);
    v_span int8multirange;
    v_held int8multirange;
    v_outside bigint;
    v_at timestamptz;
    v_lease_id bigint;
begin
    select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    v_sp := v_found.sp;
    if p_request_id is not null and v_found.error_code <> 30 then
        v_key := sharequeue_internal.request_key((v_found.sp).share_partition_id, 'acknowledge', p_member_id, p_request_id);
        v_stored := sharequeue_internal.stored_result(v_key);
        if v_stored is not null then
            return jsonb_populate_record(null::sharequeue.acknowledged, v_stored);
        end if;
    end if;
    v_result.error_code := v_found.error_code;
    v_result.error_message := v_found.error_message;
    if v_result.error_code = 0 then
        v_result.error_message := coalesce(sharequeue_internal.acknowledgements_fault(v_acknowledgements), sharequeue_internal.outputs_fault(p_outputs),
            sharequeue_internal.not_before_fault(p_not_before));
        v_result.error_code := case when v_result.error_message is null then 0 else 42 end;
    end if;
    if v_result.error_code = 0 then
        select * into v_result.error_code, v_result.error_message
        from sharequeue_internal.check_member(p_group_id, p_member_id, p_member_epoch);
    end if;
    if v_result.error_code <> 0 then
        return v_result;
    end if;

    v_at := sharequeue.clock();
    if v_sp.next_expiry <= v_at then
        perform sharequeue_internal.settle_lapsed(v_sp.share_partition_id, v_at);
        select * into v_sp from sharequeue.share_partitions where share_partition_id = v_sp.share_partition_id;
    end if;
    if p_outputs <> '[]' then
        select * into v_result.error_code, v_result.error_message, v_lease_id
        from sharequeue_internal.check_outputs(v_sp.share_partition_id, p_member_id, p_token, v_acknowledgements, p_outputs);
        if v_result.error_code <> 0 then
            return v_result;
        end if;
    end if;
    v_acknowledgements := sharequeue_internal.acknowledgements_from(v_acknowledgements, v_sp.spso);
    v_span := sharequeue_internal.span(v_acknowledgements);
    if not isempty(v_span) then
        v_held := sharequeue_internal.held(v_sp.share_partition_id, lower(v_span), upper(v_span) - 1, p_member_id, p_token);
        v_outside := sharequeue_internal.first_outside(v_acknowledgements, v_held);
        if v_outside is not null then
            v_result.error_code := 121;
            v_result.error_message := format('offset %s is not held under this lease: its lock lapsed, it was acknowledged '
                'already, or it belongs to another member', v_outside);
            return v_result;
        elsif not isempty(p_renew) and not (v_found.settings).renew_enabled then
            v_result.error_code := 121;
            v_result.error_message := 'Renewing acquisition locks is not enabled for the group.';
            return v_result;
        end if;
    end if;
    v_result := sharequeue_internal.apply_acknowledgements(
        v_sp, v_found.settings, p_member_id, p_token, v_acknowledgements, coalesce(v_held, '{}'), p_not_before, v_at);
    insert into sharequeue.lease_outputs (lease_id, sink, share_partition_id, location, records, acknowledged_at)
    select v_lease_id, o->>'sink', v_sp.share_partition_id, o->>'location', (o->>'records')::bigint, v_at
    from jsonb_array_elements(p_outputs) as o;
    perform sharequeue_internal.remember(v_key, 'acknowledge', to_jsonb(v_result));
    return v_result;
end
$$;

-- FUNCTION acknowledge_and_acquire(text, text, integer, integer, text, integer, uuid, uuid, bigint[], bigint[], smallint[], bigint, text)

CREATE FUNCTION sharequeue.acknowledge_and_acquire(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_max_records bigint, p_redelivery text) RETURNS SETOF sharequeue.acknowledged_and_acquired
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_refused smallint := 0;
    v_sp record;
    v_row sharequeue.acknowledged_and_acquired;
begin
    if current_setting('transaction_isolation') <> 'read committed' then -- written out: 0.7 µs instead of 2
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
                and state_epoch = coalesce(p_state_epoch, state_epoch) and paused_reason is null and status = 'active'
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
            v_row := sharequeue_internal.fetch_whole_batch(p_group_id, p_topic, p_partition, p_state_epoch, p_member_id,
                p_member_epoch, p_token, p_request_id, p_firsts[1], p_lasts[1], p_max_records, p_redelivery);
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

-- FUNCTION acknowledge_and_fetch(text, text, integer, integer, text, integer, uuid, uuid, bigint[], bigint[], smallint[], integer[], bigint, integer, text, text, bigint, bigint[], bigint[], int8multirange, boolean, timestamp with time zone)

CREATE FUNCTION sharequeue.acknowledge_and_fetch(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[], p_max_records bigint, p_lock_duration_ms integer DEFAULT NULL::integer, p_redelivery text DEFAULT 'kafka'::text, p_mode text DEFAULT 'batch_optimized'::text, p_batch_size bigint DEFAULT NULL::bigint, p_log_firsts bigint[] DEFAULT NULL::bigint[], p_log_lasts bigint[] DEFAULT NULL::bigint[], p_aborted int8multirange DEFAULT '{}'::int8multirange, p_renew_allowed boolean DEFAULT false, p_not_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS SETOF sharequeue.acknowledged_and_acquired
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_acknowledged sharequeue.acknowledged;
    v_acquired sharequeue.acquired;
    v_row sharequeue.acknowledged_and_acquired;
    v_rows integer := 0;
    v_result jsonb := '[]';
    v_found record;
    v_key uuid;
    v_stored jsonb;
begin
    if p_request_id is not null then
        select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
        v_key := sharequeue_internal.request_key(
            (v_found.sp).share_partition_id, 'acknowledge_and_acquire', p_member_id, p_request_id);
        v_stored := sharequeue_internal.stored_result(v_key);
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
        v_result := v_result || to_jsonb(v_row);
        return next v_row;
    end loop;
    if v_rows = 0 then
        v_result := v_result || to_jsonb(v_row);
        return next v_row;
    end if;
    -- One half may be refused while the other has taken effect: a repeated call must not acknowledge, nor lease, once more.
    if (v_row).acknowledge_error_code = 0 or (v_row).lease_id is not null then
        perform sharequeue_internal.remember(v_key, 'acknowledge_and_acquire', v_result);
    end if;
end
$$;

-- FUNCTION acknowledge_batches(text, text, integer, integer, text, integer, uuid, uuid, bigint[], bigint[], smallint[], integer[], boolean, timestamp with time zone)

CREATE FUNCTION sharequeue.acknowledge_batches(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_token uuid, p_request_id uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[] DEFAULT NULL::integer[], p_renew_allowed boolean DEFAULT true, p_not_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS sharequeue.acknowledged
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_result sharequeue.acknowledged;
    v_found record;
    v_key uuid;
    v_stored jsonb;
begin
    select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    if p_request_id is not null and v_found.error_code <> 30 then
        v_key := sharequeue_internal.request_key((v_found.sp).share_partition_id, 'acknowledge', p_member_id, p_request_id);
        v_stored := sharequeue_internal.stored_result(v_key);
        if v_stored is not null then
            return jsonb_populate_record(null::sharequeue.acknowledged, v_stored);
        end if;
    end if;
    v_result.error_code := v_found.error_code;
    v_result.error_message := v_found.error_message;
    if v_result.error_code = 0 then
        select * into v_result.error_code, v_result.error_message
        from sharequeue_internal.check_member(p_group_id, p_member_id, p_member_epoch);
    end if;
    if v_result.error_code = 0 then
        v_result.error_message := case when p_renew_allowed is null then 'whether renewals are allowed must be given'
            else sharequeue_internal.not_before_fault(p_not_before) end;
        v_result.error_code := case when v_result.error_message is null then 0 else 42 end;
    end if;
    if v_result.error_code <> 0 then
        return v_result;
    end if;
    v_result := sharequeue_internal.acknowledge_under_lock(v_found.sp, v_found.settings, p_member_id, p_token, p_firsts, p_lasts,
        p_types, p_type_counts, p_renew_allowed, p_not_before, sharequeue.clock());
    perform sharequeue_internal.remember(v_key, 'acknowledge', to_jsonb(v_result));
    return v_result;
end
$$;

-- FUNCTION acknowledge_many(text, text[], integer[], integer[], text, integer, uuid[], uuid, int8multirange[], int8multirange[], int8multirange[], int8multirange[], jsonb, timestamp with time zone[])

CREATE FUNCTION sharequeue.acknowledge_many(p_group_id text, p_topics text[], p_partitions integer[], p_state_epochs integer[], p_member_id text, p_member_epoch integer, p_tokens uuid[], p_request_id uuid, p_accepts int8multirange[], p_releases int8multirange[], p_rejects int8multirange[], p_gaps int8multirange[], p_outputs jsonb, p_not_befores timestamp with time zone[]) RETURNS SETOF sharequeue.acknowledged_of
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_there boolean[];
    v_place integer;
    v_rows sharequeue.acknowledged_of[] := '{}';
    v_key uuid;
    v_result jsonb;
    v_one sharequeue.acknowledged;
begin
    perform sharequeue.require_read_committed();
    if p_outputs is null or jsonb_typeof(p_outputs) <> 'array' then
        raise exception 'the outputs are an array with an array for each lease' using errcode = 'SQ042';
    end if;
    v_there := sharequeue_internal.lock_many(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_state_epochs), 0), coalesce(cardinality(p_tokens), 0),
        coalesce(cardinality(p_accepts), 0), coalesce(cardinality(p_releases), 0),
        coalesce(cardinality(p_rejects), 0), coalesce(cardinality(p_gaps), 0), jsonb_array_length(p_outputs),
        coalesce(cardinality(p_not_befores), 0));
    v_key := sharequeue_internal.request_key_many(
        p_group_id, p_topics || p_tokens::text[], p_partitions, 'acknowledge_many', p_member_id, p_request_id);
    v_result := sharequeue_internal.stored_result(v_key);
    if v_result is not null then
        return query select * from jsonb_populate_recordset(null::sharequeue.acknowledged_of, v_result);
        return;
    end if;
    for v_place in 1 .. cardinality(p_topics) loop
        v_one := null;
        if not v_there[v_place] then
            select a.error_code, a.error_message into v_one.error_code, v_one.error_message
            from sharequeue_internal.absent(p_group_id, p_topics[v_place], p_partitions[v_place]) as a;
            v_rows := v_rows || row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place],
                v_one.*)::sharequeue.acknowledged_of;
            continue;
        end if;
        v_one := sharequeue.acknowledge(p_group_id => p_group_id, p_topic => p_topics[v_place],
            p_partition => p_partitions[v_place], p_state_epoch => p_state_epochs[v_place], p_member_id => p_member_id,
            p_member_epoch => p_member_epoch, p_token => p_tokens[v_place], p_request_id => null,
            p_accept => p_accepts[v_place], p_release => p_releases[v_place], p_reject => p_rejects[v_place],
            p_gap => p_gaps[v_place], p_outputs => p_outputs -> (v_place - 1),
            p_not_before => p_not_befores[v_place]);
        v_rows := v_rows
            || row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place], v_one.*)::sharequeue.acknowledged_of;
    end loop;
    perform sharequeue_internal.remember(v_key, 'acknowledge_many', to_jsonb(v_rows));
    return query select * from unnest(v_rows);
end
$$;

-- FUNCTION acquire(text, text, integer, integer, text, integer, bigint, integer, uuid, text, text, bigint, bigint[], bigint[], int8multirange, int8multirange)

CREATE FUNCTION sharequeue.acquire(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_max_records bigint, p_lock_duration_ms integer DEFAULT NULL::integer, p_request_id uuid DEFAULT NULL::uuid, p_redelivery text DEFAULT 'kafka'::text, p_mode text DEFAULT 'batch_optimized'::text, p_batch_size bigint DEFAULT NULL::bigint, p_log_firsts bigint[] DEFAULT NULL::bigint[], p_log_lasts bigint[] DEFAULT NULL::bigint[], p_aborted int8multirange DEFAULT '{}'::int8multirange, p_leave_out int8multirange DEFAULT '{}'::int8multirange) RETURNS SETOF sharequeue.acquired
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_error smallint;
    v_message text;
    v_found record;
    v_key uuid;
    v_result jsonb;
    v_row sharequeue.acquired;
begin
    select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    if p_request_id is not null and v_found.error_code <> 30 then
        v_key := sharequeue_internal.request_key((v_found.sp).share_partition_id, 'acquire', p_member_id, p_request_id);
        v_result := sharequeue_internal.stored_result(v_key);
        if v_result is not null then
            return query select * from jsonb_populate_recordset(null::sharequeue.acquired, v_result);
            return;
        end if;
    end if;
    v_error := v_found.error_code;
    v_message := v_found.error_message;
    if v_error = 0 then
        select * into v_error, v_message from sharequeue_internal.check_acquire(v_found.sp, v_found.settings, p_member_id,
            p_member_epoch, p_max_records, p_lock_duration_ms, p_redelivery, p_mode, p_log_firsts, p_log_lasts);
    end if;
    if v_error = 0 then
        v_message := sharequeue_internal.fetch_fault(p_batch_size, p_log_firsts, p_log_lasts, p_aborted);
        v_error := case when v_message is null then 0 else 42 end;
    end if;
    if v_error <> 0 then
        return next row(v_error, v_message, null, null, null, null, null, null, null)::sharequeue.acquired;
        return;
    end if;
    v_result := '[]';
    for v_row in
        select * from sharequeue_internal.acquire_under_lock(v_found.sp, v_found.settings, p_member_id, p_member_epoch,
            p_max_records, p_lock_duration_ms, p_redelivery, p_mode, p_batch_size, p_log_firsts, p_log_lasts,
            p_aborted, sharequeue.clock(), coalesce(p_leave_out, '{}'))
    loop
        return next v_row;
        if p_request_id is not null then
            v_result := v_result || to_jsonb(v_row);
        end if;
    end loop;
    if v_result <> '[]' then
        perform sharequeue_internal.remember(v_key, 'acquire', v_result);
    end if;
end
$$;

-- FUNCTION acquire_many(text, text[], integer[], text, integer, bigint, integer, uuid, text, text, bigint, double precision[], int8multirange[], integer, boolean)

CREATE FUNCTION sharequeue.acquire_many(p_group_id text, p_topics text[], p_partitions integer[], p_member_id text, p_member_epoch integer, p_max_records bigint, p_lock_duration_ms integer DEFAULT NULL::integer, p_request_id uuid DEFAULT NULL::uuid, p_redelivery text DEFAULT 'kafka'::text, p_mode text DEFAULT 'batch_optimized'::text, p_max_bytes bigint DEFAULT NULL::bigint, p_mean_bytes double precision[] DEFAULT NULL::double precision[], p_leave_outs int8multirange[] DEFAULT NULL::int8multirange[], p_parts integer DEFAULT 1, p_last_attempt boolean DEFAULT true) RETURNS SETOF sharequeue.acquired_of
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_rows sharequeue.acquired_of[] := '{}';
    v_key uuid;
    v_result jsonb;
    v_there boolean[];
    v_suspects boolean;
    v_last_attempt boolean;
    v_row sharequeue.acquired;
    v_order integer[];
    v_place integer;
    v_parts integer;
    v_wanted bigint;
    v_got bigint;
    v_leases integer := 0;
    v_left bigint := p_max_records;
    v_bytes double precision := p_max_bytes;
    v_alone boolean := false;
begin
    perform sharequeue.require_read_committed();
    if p_parts is null or p_parts not between 1 and 1000 or p_last_attempt is null or p_max_records is null
            or p_max_records not between 0 and 4611686018427387904
            or p_max_bytes < 0 or (p_max_bytes is not null and p_mean_bytes is null)
            or exists (select from unnest(p_mean_bytes) as m where m is null or m not between 0.001 and 1e15) then
        raise exception 'acquire_many needs a number of records, 1 to 1000 parts, whether last attempts are wanted, and '
            'with a number of bytes the bytes of a record for each share-partition' using errcode = 'SQ042';
    end if;
    v_there := sharequeue_internal.lock_many(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_mean_bytes), cardinality(p_topics)),
        coalesce(cardinality(p_leave_outs), cardinality(p_topics)));
    v_key := sharequeue_internal.request_key_many(
        p_group_id, p_topics, p_partitions, 'acquire_many', p_member_id, p_request_id);
    v_result := sharequeue_internal.stored_result(v_key);
    if v_result is not null then
        return query select * from jsonb_populate_recordset(null::sharequeue.acquired_of, v_result);
        return;
    end if;
    v_order := array(select generate_series(1, cardinality(p_topics)));
    if p_redelivery = 'fan_out' and p_last_attempt then
        foreach v_place in array v_order loop
            continue when not v_there[v_place];
            select n.last_attempt into v_alone
            from sharequeue_internal.next_suspects(p_group_id, p_topics[v_place], p_partitions[v_place],
                coalesce(p_leave_outs[v_place], '{}')) as n;
            if v_alone then
                v_order := array[v_place] || array_remove(v_order, v_place);
                exit;
            end if;
        end loop;
    end if;
    foreach v_place in array v_order loop
        if not v_there[v_place] then
            select a.error_code, a.error_message into v_row.error_code, v_row.error_message
            from sharequeue_internal.absent(p_group_id, p_topics[v_place], p_partitions[v_place]) as a;
            v_rows := v_rows || row(p_topics[v_place], p_partitions[v_place], false, false, v_row.error_code,
                v_row.error_message, null, null, null, null, null, null, null)::sharequeue.acquired_of;
            continue;
        end if;
        v_parts := 0;
        loop
            v_wanted := case when p_max_bytes is null then v_left
                else floor(least(v_left, v_bytes / p_mean_bytes[v_place]))::bigint end;
            if v_leases = 0 and v_left > 0 then
                v_wanted := greatest(v_wanted, 1);
            end if;
            exit when v_wanted <= 0 and p_max_records <> 0;
            v_suspects := false;
            v_last_attempt := false;
            if p_redelivery = 'fan_out' then
                select n.suspects, n.last_attempt into v_suspects, v_last_attempt
                from sharequeue_internal.next_suspects(p_group_id, p_topics[v_place], p_partitions[v_place],
                    coalesce(p_leave_outs[v_place], '{}')) as n;
                exit when v_last_attempt and not (v_alone and v_leases = 0);
            end if;
            v_got := 0;
            for v_row in
                select * from sharequeue.acquire(p_group_id => p_group_id, p_topic => p_topics[v_place],
                    p_partition => p_partitions[v_place], p_state_epoch => null, p_member_id => p_member_id,
                    p_member_epoch => p_member_epoch, p_max_records => v_wanted,
                    p_lock_duration_ms => p_lock_duration_ms, p_redelivery => p_redelivery, p_mode => p_mode,
                    p_leave_out => coalesce(p_leave_outs[v_place], '{}'))
            loop
                v_rows := v_rows || row(p_topics[v_place], p_partitions[v_place], v_suspects, v_last_attempt,
                    v_row.*)::sharequeue.acquired_of;
                v_got := v_got + sharequeue.records(coalesce(v_row.offsets, '{}'));
            end loop;
            exit when v_got = 0;
            v_leases := v_leases + 1;
            v_parts := v_parts + 1;
            v_left := v_left - v_got;
            v_bytes := v_bytes - v_got * p_mean_bytes[v_place];
            exit when v_last_attempt or not v_suspects or v_parts >= p_parts;
        end loop;
        exit when v_alone and v_leases > 0;
    end loop;
    if v_leases > 0 then
        perform sharequeue_internal.remember(v_key, 'acquire_many', to_jsonb(v_rows));
    end if;
    return query select * from unnest(v_rows);
end
$$;

-- FUNCTION add_acl(text, text, text, text, text)

CREATE FUNCTION sharequeue.add_acl(p_principal text, p_operation text, p_permission text, p_pattern_type text, p_resource_name text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_acl(p_principal, p_operation, p_permission, p_pattern_type),
        sharequeue_internal.check_name('the resource name', p_resource_name);
    lock table sharequeue.acls in share row exclusive mode;
    insert into sharequeue.acls (principal, operation, permission, pattern_type, resource_name)
    values (p_principal, p_operation, p_permission, p_pattern_type, p_resource_name)
    on conflict on constraint acls_pkey do nothing;
    if found then
        perform sharequeue_internal.audit('add_acl', null, null, jsonb_build_object('principal', p_principal,
            'operation', p_operation, 'permission', p_permission, 'pattern_type', p_pattern_type,
            'resource_name', p_resource_name));
        return true;
    end if;
    return false;
end
$$;

-- FUNCTION allow_everyone_if_no_acl_found(boolean)

CREATE FUNCTION sharequeue.allow_everyone_if_no_acl_found(p_allow boolean) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_before boolean := coalesce((select allow_everyone_if_no_acl_found from sharequeue.authorizer), true);
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_present('whether to allow everyone', p_allow);
    lock table sharequeue.acls in share row exclusive mode;
    insert into sharequeue.authorizer (allow_everyone_if_no_acl_found) values (p_allow)
    on conflict on constraint authorizer_pkey do update
        set allow_everyone_if_no_acl_found = excluded.allow_everyone_if_no_acl_found;
    if p_allow <> v_before then
        perform sharequeue_internal.audit('allow_everyone_if_no_acl_found', null, to_jsonb(v_before), to_jsonb(p_allow));
    end if;
    return v_before;
end
$$;

-- FUNCTION alter_offsets(text, text, integer, text, bigint, integer)

CREATE FUNCTION sharequeue.alter_offsets(p_group_id text, p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint, p_state_epoch integer DEFAULT NULL::integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_sp sharequeue.share_partitions;
    v_epoch integer;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    if p_state_epoch is not null then
        perform sharequeue_internal.check_between('the state epoch', p_state_epoch, 0, 1073741824);
    end if;
    perform sharequeue_internal.check_start(p_topic, p_partition, p_topic_id, p_start_offset);
    if not sharequeue_internal.lock_empty_group(p_group_id) then
        raise exception 'there is no share group %', p_group_id using errcode = 'SQ069';
    end if;
    v_epoch := coalesce(p_state_epoch, 1);
    if not sharequeue.initialize(p_group_id, p_topic, p_partition, p_topic_id, p_start_offset, v_epoch) then
        select * into v_sp from sharequeue.share_partitions
        where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
        perform sharequeue_internal.unfold(v_sp.share_partition_id);
        delete from sharequeue.in_flight_batches where share_partition_id = v_sp.share_partition_id;
        delete from sharequeue.leases where share_partition_id = v_sp.share_partition_id;
        delete from sharequeue.circuit_breakers where share_partition_id = v_sp.share_partition_id;
        delete from sharequeue.failed_attempts where share_partition_id = v_sp.share_partition_id;
        delete from sharequeue.held_dead_letters where share_partition_id = v_sp.share_partition_id;
        delete from sharequeue.dead_letter_batches
        where share_partition_id = v_sp.share_partition_id and written_at is null;
        update sharequeue.share_partitions
        set spso = p_start_offset, speo = p_start_offset, delivery_complete_count = 0, redeliverable = false,
            next_expiry = null, advance_due = false, topic_id = p_topic_id, status = 'active',
            previous_topic_id = case when topic_id = p_topic_id then previous_topic_id else topic_id end,
            log_end = case when topic_id = p_topic_id then log_end else p_start_offset end,
            last_stable_offset = case when topic_id = p_topic_id then last_stable_offset else p_start_offset end,
            state_epoch = greatest(v_sp.state_epoch + 1, coalesce(p_state_epoch, 0))
        where share_partition_id = v_sp.share_partition_id
        returning state_epoch into v_epoch;
    end if;
    perform sharequeue_internal.audit('alter_offsets', p_group_id,
        case when v_sp.spso is not null then jsonb_build_object('topic', p_topic, 'partition', p_partition,
            'topic_id', v_sp.topic_id, 'start_offset', v_sp.spso, 'state_epoch', v_sp.state_epoch) end,
        jsonb_build_object('topic', p_topic, 'partition', p_partition, 'topic_id', p_topic_id,
            'start_offset', p_start_offset, 'state_epoch', v_epoch));
    return v_epoch;
end
$$;

-- FUNCTION apply_permissions()

CREATE FUNCTION sharequeue.apply_permissions() RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_worker constant text[] := array[
        'acknowledge', 'acknowledge_and_acquire', 'acknowledge_and_fetch', 'acknowledge_batches', 'acquire',
        'check_cluster', 'close_dead_letters', 'dead_letter_attempts', 'hold_dead_letters', 'initialize', 'observe', 'open_dead_letters',
        'record_report', 'release', 'renew', 'stored_configs', 'sweep', 'topics_redriven_for_others',
        'acknowledge_many', 'acquire_many', 'observe_many', 'release_many', 'renew_many',
        'alter_offsets', 'delete_group', 'delete_offsets', 'force', 'pause', 'reset_offsets',
        'begin_compaction', 'commit_compaction', 'forget_compaction', 'removable_outputs'];
    v_service constant text[] := array[
        'add_acl', 'allow_everyone_if_no_acl_found', 'beat', 'clear_other_journal', 'close_redrive',
        'drop_journal_partition', 'extend_locks', 'give_back_room', 'groups_of_topics', 'journal_partitions',
        'make_journal_partitions',
        'note_topics', 'open_redrive', 'raise_state_epochs', 'remove_acls', 'remove_deleted_topics', 'roll_up_due_days',
        'roll_up_journal', 'set_service_configs',
        'take_snapshot', 'take_snapshots', 'trim_redrive',
        'end_service_lease', 'hear_replica', 'hold_service_lease', 'take_service_lease'];
    v_reader constant text[] := array[
        'replay_batches', 'replay_leases', 'replay_outcomes', 'replay_share_partition', 'snapshots', 'stored_configs',
        'verify', 'verify_journal'];
    v_everybody constant text[] := array['clock', 'principal', 'schema_version', 'service_drains', 'state_id', 'stored_service_configs'];
    -- Asked by the coordinator inside its own transactions, on tables that it may read; they need no other's rights.
    v_coordinator constant text[] := array[
        'assignable_share_partitions', 'metadata_hash', 'raise_group_epoch', 'require_read_committed'];
    v_coordinator_tables constant text[] := array[
        'assignments', 'group_configs', 'grown_topics', 'members', 'redrives', 'share_groups', 'topics'];
    v_all constant text[] := v_worker || v_service || v_reader || v_everybody || v_coordinator;
    v_roles text[] := '{}';
    v_purpose text;
    v_role text;
    v_function record;
    v_name text;
begin
    select v.name into v_name from unnest(v_all) as v (name)
    where not exists (select from pg_proc p
        where p.pronamespace = to_regnamespace('sharequeue') and p.proname = v.name);
    if found then
        raise exception '99_permissions.sql names %, which is no function of the schema', v_name;
    end if;
    foreach v_purpose in array array['service', 'worker', 'reader'] loop
        v_role := quote_ident(sharequeue_internal.role_named(v_purpose));
        if to_regrole(v_role) is not null then
            v_roles := v_roles || v_role;
            execute format('revoke all on all tables in schema sharequeue from %s', v_role);
            execute format('revoke all on all functions in schema sharequeue, sharequeue_internal from %s', v_role);
            execute format('revoke all on schema sharequeue_internal from %s', v_role);
            execute format('grant usage on schema sharequeue to %s', v_role);
        end if;
    end loop;
    for v_function in
        select p.proname as name, p.oid::regprocedure as signature,
            p.pronamespace = to_regnamespace('sharequeue')
                    and p.proname = any (v_worker || v_service || v_reader || v_everybody)
                -- Triggers on what the coordinator writes itself; those on other tables fire inside operations.
                or exists (select from pg_trigger t join pg_class c on c.oid = t.tgrelid
                    where t.tgfoid = p.oid and c.relnamespace = to_regnamespace('sharequeue')
                        and c.relname = any (v_coordinator_tables)) as definer,
            exists (select from pg_depend d join pg_rewrite r on r.oid = d.objid
                where d.classid = 'pg_rewrite'::regclass and d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid)
                as in_views
        from pg_proc p
        where p.pronamespace in (to_regnamespace('sharequeue'), to_regnamespace('sharequeue_internal')) order by 2
    loop
        execute format('revoke all on function %s from public', v_function.signature);
        if v_function.name = 'clock' then
            execute format('alter function %s security definer', v_function.signature);
        elsif v_function.definer then
            execute format('alter function %s security definer set search_path = pg_catalog, pg_temp',
                v_function.signature);
        end if;
        foreach v_purpose in array array['service', 'worker', 'reader'] loop
            v_role := quote_ident(sharequeue_internal.role_named(v_purpose));
            if v_role = any (v_roles) and (
                    v_function.name = any (v_everybody)
                    or (v_purpose = 'service' and v_function.name = any (v_all))
                    or (v_purpose = 'worker' and v_function.name = any (v_worker))
                    or (v_purpose = 'reader' and v_function.name = any (v_reader))
                    or (v_purpose in ('reader', 'service') and v_function.in_views)) then
                execute format('grant execute on function %s to %s', v_function.signature, v_role);
            end if;
        end loop;
    end loop;
    for v_name in
        select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'sharequeue' and c.relkind = 'v'
    loop
        v_role := quote_ident(sharequeue_internal.role_named('reader'));
        if v_role = any (v_roles) then
            execute format('grant select on %s to %s', v_name, v_role);
        end if;
    end loop;
    v_role := quote_ident(sharequeue_internal.role_named('service'));
    if v_role = any (v_roles) then
        execute format('grant select on all tables in schema sharequeue to %s', v_role);
        foreach v_name in array v_coordinator_tables loop
            execute format('grant insert, update, delete on sharequeue.%I to %s', v_name, v_role);
        end loop;
        -- A group is deleted by delete_group, which writes it down.
        execute format('revoke delete on sharequeue.share_groups from %s', v_role);
    end if;
end
$$;

-- FUNCTION assignable_share_partitions(text)

CREATE FUNCTION sharequeue.assignable_share_partitions(p_group_id text) RETURNS TABLE(topic text, share_partition_id bigint)
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog'
    AS $$
    select sp.topic, sp.share_partition_id
    from sharequeue.share_partitions sp
    left join sharequeue.topics t on t.topic = sp.topic
    where sp.group_id = p_group_id and sp.status = 'active'
        and (t.topic is null or (t.topic_id = sp.topic_id and sp.partition < t.partitions))
        and sp.topic in (
            select unnest(m.subscribed_topic_names) from sharequeue.members m where m.group_id = p_group_id)
$$;

-- FUNCTION beat(interval)

CREATE FUNCTION sharequeue.beat(p_longer_than interval DEFAULT NULL::interval) RETURNS interval
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_span('the longest silence', coalesce(p_longer_than, interval '0'));
    insert into sharequeue.service_beat as b (beat_at, server_started_at)
    values (sharequeue.clock(), pg_postmaster_start_time()) on conflict on constraint service_beat_pkey do nothing;
    if found then
        insert into sharequeue.service_run default values on conflict on constraint service_run_pkey do nothing;
        return null;
    end if;
    return sharequeue_internal.note_outage(p_longer_than, true);
end
$$;

-- FUNCTION begin_compaction(uuid, text, text, text)

CREATE FUNCTION sharequeue.begin_compaction(p_compaction_id uuid, p_group_id text, p_sink text, p_location text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
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

-- FUNCTION check_cluster(text)

CREATE FUNCTION sharequeue.check_cluster(p_cluster_id text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_bound sharequeue.kafka_cluster;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_name('the cluster id', p_cluster_id);
    select * into v_bound from sharequeue.kafka_cluster;
    if not found and sharequeue_internal.is_trusted() then
        insert into sharequeue.kafka_cluster (cluster_id, bound_at) values (p_cluster_id, sharequeue.clock())
        on conflict on constraint kafka_cluster_pkey do nothing;
        select * into v_bound from sharequeue.kafka_cluster;
    end if;
    if v_bound.cluster_id <> p_cluster_id then
        raise exception 'the broker is of Kafka cluster %, and the state is of cluster % since %: nothing of it is true '
            'there. Check SHAREQUEUE_BOOTSTRAP_SERVERS and SHAREQUEUE_DATABASE_URL; if it is the right cluster all the same, '
            'the schema''s owner says so by select sharequeue.rebind_cluster(''%'')', p_cluster_id, v_bound.cluster_id,
            v_bound.bound_at, p_cluster_id using errcode = 'SQ104';
    end if;
end
$$;

-- FUNCTION clear_other_journal(interval, integer)

CREATE FUNCTION sharequeue.clear_other_journal(p_retention interval, p_limit integer DEFAULT 10000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_gone bigint;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_span('the retention', p_retention),
        sharequeue_internal.check_between('the limit of rows', p_limit, 1, 2147483647);
    delete from sharequeue.journal_other where ctid in (
        select o.ctid from sharequeue.journal_other o
        where o.at < sharequeue.clock() - p_retention and exists (
            select from sharequeue.journal_snapshots s
            where s.share_partition_id = o.share_partition_id and s.journal_id > o.journal_id
            union all
            select where not exists (select from sharequeue.share_partitions sp
                where sp.share_partition_id = o.share_partition_id))
        limit p_limit);
    get diagnostics v_gone = row_count;
    return v_gone;
end
$$;

-- FUNCTION clock()

CREATE FUNCTION sharequeue.clock() RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    AS $$
begin
    return pg_catalog.clock_timestamp() operator(pg_catalog.+) coalesce(
        (select amount from sharequeue.clock_offset), pg_catalog.make_interval());
end
$$;

-- FUNCTION close_dead_letters(text, text, integer, bigint, boolean)

CREATE FUNCTION sharequeue.close_dead_letters(p_group_id text, p_topic text, p_partition integer, p_sequence bigint, p_dropped boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_sp sharequeue.share_partitions;
    v_run record;
    v_part record;
    v_records bigint;
    v_closed bigint := 0;
    v_completed bigint := 0;
    v_before record;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the topic', p_topic),
        sharequeue_internal.check_present('the partition', p_partition);
    perform sharequeue_internal.check_present('the sequence', p_sequence), sharequeue_internal.check_present('whether they were dropped', p_dropped);
    select * into v_sp from sharequeue.share_partitions sp
    where sp.group_id = p_group_id and sp.topic = p_topic and sp.partition = p_partition for update;
    update sharequeue.dead_letter_batches set written_at = sharequeue.clock(), dropped = p_dropped
    where share_partition_id = v_sp.share_partition_id and sequence = p_sequence and written_at is null;
    if not found then
        return 0;
    end if;
    delete from sharequeue.held_dead_letters where share_partition_id = v_sp.share_partition_id;
    for v_run in
        select * from sharequeue.dead_letter_runs
        where share_partition_id = v_sp.share_partition_id and sequence = p_sequence
    loop
        for v_part in
            select first_offset, last_offset, part,
                sharequeue_internal.offsets_of(first_offset, last_offset, offsets) * v_run.offsets as offsets
            from sharequeue.in_flight_batches
            where share_partition_id = v_sp.share_partition_id and state = 3 and first_offset < upper(v_run.offsets)
                and cause = v_run.cause and delivery_count = v_run.delivery_count
                and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) && v_run.offsets
        loop
            perform sharequeue_internal.take(
                v_sp.share_partition_id, v_part.first_offset, v_part.part, v_part.offsets);
            v_part.offsets := v_part.offsets * int8multirange(int8range(v_sp.spso, null));
            perform sharequeue_internal.place(v_sp.share_partition_id, v_part.first_offset, v_part.last_offset, 4::smallint,
                v_run.delivery_count, v_part.offsets, null, v_run.cause);
            perform sharequeue_internal.join_terminal(v_sp.share_partition_id, v_part.first_offset, v_part.first_offset);
            v_completed := v_completed + sharequeue.records(v_part.offsets);
        end loop;
        v_records := sharequeue.records(v_run.offsets);
        perform sharequeue_internal.count_outcome(v_sp.share_partition_id, v_run.cause, v_run.delivery_count, v_records);
        v_closed := v_closed + v_records;
    end loop;
    -- The last total is what there is to show: nobody reads all batches for it.
    select coalesce(max(total_letters), 0) as letters, coalesce(max(total_dropped), 0) as dropped into v_before
    from (
        select total_letters, total_dropped from sharequeue.dead_letter_batches
        where share_partition_id = v_sp.share_partition_id and sequence < p_sequence
        order by sequence desc limit 1
    ) as b;
    update sharequeue.dead_letter_batches
    set total_letters = v_before.letters + case when p_dropped then 0 else v_closed end,
        total_dropped = v_before.dropped + case when p_dropped then v_closed else 0 end
    where share_partition_id = v_sp.share_partition_id and sequence = p_sequence;
    perform sharequeue_internal.advance_spso(v_sp.share_partition_id, v_completed);
    delete from sharequeue.failed_attempts f using sharequeue.share_partitions sp
    where f.share_partition_id = v_sp.share_partition_id and sp.share_partition_id = f.share_partition_id
        and f.past <= sp.spso;
    return v_closed;
end
$$;

-- FUNCTION close_redrive(text, text, integer, bigint)

CREATE FUNCTION sharequeue.close_redrive(p_topic text, p_topic_id text, p_partition integer, p_sequence bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_batch record;
    v_sent bigint;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_name('the topic', p_topic), sharequeue_internal.check_name('the topic id', p_topic_id),
        sharequeue_internal.check_between('the partition', p_partition, 0, 2147483647);
    perform sharequeue_internal.check_present('the sequence', p_sequence);
    perform from sharequeue.redriven r
    where r.dead_letter_topic = p_topic and r.topic_id = p_topic_id and r.partition = p_partition for update;
    update sharequeue.redrive_batches b set sent_at = sharequeue.clock()
    where b.dead_letter_topic = p_topic and b.topic_id = p_topic_id and b.partition = p_partition
        and b.sequence = p_sequence and b.sent_at is null
    returning b.offsets, b.redrive_id into v_batch;
    if not found then
        return 0;
    end if;
    v_sent := sharequeue.records(v_batch.offsets);
    update sharequeue.redriven r set offsets = r.offsets + v_batch.offsets
    where r.dead_letter_topic = p_topic and r.topic_id = p_topic_id and r.partition = p_partition;
    update sharequeue.redrives r set sent = r.sent + v_sent where r.redrive_id = v_batch.redrive_id;
    return v_sent;
end
$$;

-- FUNCTION commit_compaction(uuid, text[], bigint)

CREATE FUNCTION sharequeue.commit_compaction(p_compaction_id uuid, p_replaced text[], p_records bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_compaction sharequeue.compactions;
    v_found record;
begin
    perform sharequeue.require_read_committed();
    -- The group comes first: whoever deletes it takes its outputs and then its compactions along.
    perform from sharequeue.share_groups g join sharequeue.compactions c using (group_id)
    where c.compaction_id = p_compaction_id for key share of g;
    select * into v_compaction from sharequeue.compactions where compaction_id = p_compaction_id for update;
    if not found or v_compaction.abandoned_at is not null then
        raise exception 'compaction % was given up by a sweep: it took longer than the grace', p_compaction_id
            using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.authorise(v_compaction.group_id, 'READ');
    perform sharequeue_internal.check_present('the folders replaced', p_replaced),
        sharequeue_internal.check_present('the number of records', p_records);
    if v_compaction.committed_at is null then
        perform from sharequeue.lease_outputs o join sharequeue.share_partitions sp using (share_partition_id)
        where sp.group_id = v_compaction.group_id and o.sink = v_compaction.sink and o.location = any (p_replaced)
        order by o.lease_id for no key update of o;
        select count(distinct o.location) as folders, sum(o.records)::bigint as records into v_found
        from sharequeue.lease_outputs o join sharequeue.share_partitions sp using (share_partition_id)
        where sp.group_id = v_compaction.group_id and o.sink = v_compaction.sink and o.location = any (p_replaced);
        if v_found.folders <> cardinality(p_replaced) or coalesce(v_found.records, 0) <> p_records then
            raise exception 'compaction % of % folders with % records: % folders with % records count now, because '
                'another compaction was quicker or the folders changed', p_compaction_id, cardinality(p_replaced),
                p_records, v_found.folders, coalesce(v_found.records, 0) using errcode = 'SQ042';
        end if;
        update sharequeue.lease_outputs o set location = v_compaction.location
        from sharequeue.share_partitions sp
        where sp.share_partition_id = o.share_partition_id and sp.group_id = v_compaction.group_id
            and o.sink = v_compaction.sink and o.location = any (p_replaced);
        update sharequeue.compactions set committed_at = sharequeue.clock(), replaced = p_replaced
        where compaction_id = p_compaction_id;
    end if;
    return (select count(*) from sharequeue.lease_outputs o join sharequeue.share_partitions sp using (share_partition_id)
        where sp.group_id = v_compaction.group_id and o.sink = v_compaction.sink
            and o.location = v_compaction.location);
end
$$;

-- FUNCTION dead_letter_attempts(text, text, integer, bigint)

CREATE FUNCTION sharequeue.dead_letter_attempts(p_group_id text, p_topic text, p_partition integer, p_sequence bigint) RETURNS TABLE(lease_id bigint, member_id text, client_id text, acquired_at timestamp with time zone, offsets int8multirange, exceptions text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_id bigint;
    v_offsets int8multirange;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the topic', p_topic),
        sharequeue_internal.check_present('the partition', p_partition);
    perform sharequeue_internal.check_present('the sequence', p_sequence);
    select sp.share_partition_id, range_agg(r.offsets) into v_id, v_offsets
    from sharequeue.share_partitions sp join sharequeue.dead_letter_runs r using (share_partition_id)
    where sp.group_id = p_group_id and sp.topic = p_topic and sp.partition = p_partition and r.sequence = p_sequence
    group by sp.share_partition_id;
    return query
        select f.lease_id, f.member_id, f.client_id, f.acquired_at, f.offsets * v_offsets, (
            select o.location from sharequeue.lease_outputs o
            where o.lease_id = f.lease_id and o.sink like '%-exceptions' and o.records > 0 limit 1)
        from sharequeue.failed_attempts f
        where f.share_partition_id = v_id and f.past > lower(v_offsets) and f.offsets && v_offsets
        order by f.acquired_at, f.lease_id;
end
$$;

-- FUNCTION delete_group(text)

CREATE FUNCTION sharequeue.delete_group(p_group_id text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_ids bigint[];
    v_before jsonb;
begin
    perform sharequeue_internal.authorise(p_group_id, 'DELETE');
    perform sharequeue_internal.check_present('the group id', p_group_id);
    if not sharequeue_internal.lock_empty_group(p_group_id) then
        return false;
    end if;
    v_ids := sharequeue_internal.lock_in_order(array[p_group_id], true, true);
    select coalesce(jsonb_agg(jsonb_build_object('topic', topic, 'partition', partition, 'start_offset', spso,
        'state_epoch', state_epoch) order by topic, partition), '[]')
    into v_before from sharequeue.share_partitions where group_id = p_group_id;
    perform sharequeue_internal.delete_share_partitions(v_ids);
    delete from sharequeue.share_groups where group_id = p_group_id;
    perform sharequeue_internal.audit('delete_group', p_group_id, v_before, null);
    return true;
end
$$;

-- FUNCTION delete_offsets(text, text)

CREATE FUNCTION sharequeue.delete_offsets(p_group_id text, p_topic text) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_ids bigint[];
    v_deleted jsonb;
begin
    perform sharequeue_internal.authorise(p_group_id, 'DELETE');
    perform sharequeue_internal.check_present('the topic', p_topic);
    if not sharequeue_internal.lock_empty_group(p_group_id) then
        raise exception 'there is no share group %', p_group_id using errcode = 'SQ069';
    end if;
    v_ids := sharequeue_internal.lock_in_order(array[p_group_id], false, true, p_topic);
    select coalesce(jsonb_agg(jsonb_build_object('topic', p_topic, 'partition', partition, 'start_offset', spso,
        'state_epoch', state_epoch) order by partition), '[]')
    into v_deleted from sharequeue.share_partitions where share_partition_id = any (v_ids);
    perform sharequeue_internal.delete_share_partitions(v_ids);
    if v_deleted <> '[]' then
        perform sharequeue_internal.audit('delete_offsets', p_group_id, v_deleted, null);
    end if;
    return jsonb_array_length(v_deleted);
end
$$;

-- FUNCTION drop_journal_partition(interval, integer)

CREATE FUNCTION sharequeue.drop_journal_partition(p_retention interval, p_limit integer DEFAULT 1000) RETURNS date
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET lock_timeout TO '250ms'
    AS $$
declare
    v_day date;
    v_name text;
    v_end timestamptz;
    v_last bigint;
    v_id bigint;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_span('the retention', p_retention),
        sharequeue_internal.check_between('the limit of snapshots', p_limit, 1, 2147483647);
    select p.day, p.name into v_day, v_name from sharequeue.journal_partitions() as p limit 1;
    v_end := (v_day + 1)::timestamptz;
    if v_day is null or v_end > sharequeue.clock() - p_retention then
        return null;
    end if;
    execute format('select max(journal_id) from sharequeue.%I', v_name) into v_last;
    for v_id in
        select sp.share_partition_id from sharequeue.share_partitions sp
        where not exists (select from sharequeue.journal_snapshots s
            where s.share_partition_id = sp.share_partition_id and s.journal_id > coalesce(v_last, 0))
        order by sp.share_partition_id limit p_limit
    loop
        perform sharequeue.take_snapshot(v_id, false);
    end loop;
    if exists (
        select from sharequeue.share_partitions sp where not exists (select from sharequeue.journal_snapshots s
            where s.share_partition_id = sp.share_partition_id and s.journal_id > coalesce(v_last, 0))
    ) then
        return null;
    end if;
    -- Nobody can write to the day any more once this lock is held; what was rolled up then is all of it.
    execute format('lock table sharequeue.%I in access exclusive mode', v_name);
    perform sharequeue.roll_up_journal(v_day);
    delete from sharequeue.journal_snapshots where journal_id <= coalesce(v_last, 0);
    execute format('drop table sharequeue.%I', v_name);
    return v_day;
end
$$;

-- FUNCTION end_service_lease(text, uuid)

CREATE FUNCTION sharequeue.end_service_lease(p_task text, p_token uuid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_present('the task', p_task);
    delete from sharequeue.service_leases where task = p_task and token = p_token;
end
$$;

-- FUNCTION extend_locks(interval)

CREATE FUNCTION sharequeue.extend_locks(p_amount interval) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_ids bigint[];
    v_extended bigint;
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_span('the time by which locks are extended', p_amount);
    v_ids := sharequeue_internal.lock_in_order(null, false, true);
    perform sharequeue_internal.unfold(share_partition_id)
    from sharequeue.share_partitions where share_partition_id = any (v_ids) and folded_lease_id is not null;
    update sharequeue.leases set expires_at = expires_at + p_amount where share_partition_id = any (v_ids);
    get diagnostics v_extended = row_count;
    update sharequeue.share_partitions set next_expiry = next_expiry + p_amount
    where share_partition_id = any (v_ids) and next_expiry is not null;
    perform sharequeue_internal.audit('extend_locks', null, null,
        jsonb_build_object('amount', p_amount::text, 'leases', v_extended));
    return v_extended;
end
$$;

-- FUNCTION force(text, text, integer, int8multirange, text, boolean)

CREATE FUNCTION sharequeue.force(p_group_id text, p_topic text, p_partition integer, p_offsets int8multirange, p_act text, p_execute boolean) RETURNS SETOF sharequeue.forced
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_found record;
    v_sp sharequeue.share_partitions;
    v_settings sharequeue.group_settings;
    v_part record;
    v_row sharequeue.forced;
    v_before jsonb := '[]';
    v_completed bigint := 0;
    v_seen int8multirange := '{}';
begin
    select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, null, 'ALTER');
    v_row.error_code := v_found.error_code;
    v_row.error_message := v_found.error_message;
    if v_row.error_code = 0 and (p_execute is null or p_act is null or p_act not in ('release', 'dead_letter')
            or isempty(p_offsets) or sharequeue_internal.offsets_fault(p_offsets) is not null) then
        v_row.error_code := 42;
        v_row.error_message := 'release or dead_letter needs a set of offsets between 0 and 2^63 - 2';
    end if;
    if v_row.error_code <> 0 then
        return next v_row;
        return;
    end if;
    v_sp := v_found.sp;
    v_settings := v_found.settings;
    if p_execute and v_sp.next_expiry <= sharequeue.clock() then
        perform sharequeue_internal.settle_lapsed(v_sp.share_partition_id, sharequeue.clock());
        select * into v_sp from sharequeue.share_partitions where share_partition_id = v_sp.share_partition_id;
    end if;
    for v_part in
        select f.first_offset, f.last_offset, f.part, f.state, f.delivery_count, f.isolate, f.not_before, l.member_id,
            sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)
                * p_offsets * int8multirange(int8range(v_sp.spso, null)) as offsets
        from sharequeue.in_flight_batches f left join sharequeue.leases l using (lease_id)
        where f.share_partition_id = v_sp.share_partition_id and f.last_offset >= v_sp.spso
            and f.last_offset >= lower(p_offsets) and f.first_offset < upper(p_offsets)
        order by f.first_offset, f.part
    loop
        continue when isempty(v_part.offsets);
        v_seen := v_seen + v_part.offsets;
        v_row := sharequeue_internal.forced_plan(p_act, v_part.state, v_part.delivery_count, v_part.member_id, v_part.offsets,
            v_part.isolate is not null or v_part.not_before is not null, v_settings);
        return next v_row;
        continue when not p_execute or v_row.act in ('none', 'refuse');
        v_before := v_before || to_jsonb(v_row);
        v_completed := v_completed + sharequeue_internal.force_part(v_sp.share_partition_id, v_part.first_offset,
            v_part.last_offset, v_part.part, v_part.delivery_count, v_part.offsets, v_row.act,
            v_settings.delivery_count_limit);
    end loop;
    if v_before <> '[]' then
        delete from sharequeue.leases l where l.share_partition_id = v_sp.share_partition_id
            and not exists (select from sharequeue.in_flight_batches f where f.lease_id = l.lease_id);
        update sharequeue.share_partitions set redeliverable = true
        where share_partition_id = v_sp.share_partition_id and p_act = 'release';
        perform sharequeue_internal.advance_spso(v_sp.share_partition_id, v_completed);
        perform sharequeue_internal.audit('force_' || p_act, p_group_id, v_before,
            jsonb_build_object('topic', p_topic, 'partition', p_partition, 'offsets', p_offsets::text));
    end if;
    return query
        select 0::smallint, null::text, 'refuse', null::smallint, null::smallint, null::text, r.offsets, r.reason
        from (values
            (p_offsets * int8multirange(int8range(null, v_sp.spso)), 'done with: SPSO was at ' || v_sp.spso),
            (p_offsets * int8multirange(int8range(v_sp.spso, v_sp.speo)) - v_seen,
                'not in flight: nothing was there'),
            (p_offsets * int8multirange(int8range(v_sp.speo, null)), 'never delivered: SPEO is ' || v_sp.speo)
        ) as r (offsets, reason)
        where not isempty(r.offsets);
end
$$;

-- FUNCTION forget_compaction(uuid)

CREATE FUNCTION sharequeue.forget_compaction(p_compaction_id uuid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

-- FUNCTION give_back_room(bigint, integer)

CREATE FUNCTION sharequeue.give_back_room(p_least bigint DEFAULT 33554432, p_factor integer DEFAULT 4) RETURNS text[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '100ms'
    AS $$
declare
    v_done text[] := '{}';
    v_table record;
    v_width double precision;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_between('the least size in bytes', p_least, 0, 9223372036854775807),
        sharequeue_internal.check_between('the factor', p_factor, 2, 1000000);
    for v_table in
        select c.relname as name, pg_relation_size(c.oid) as bytes, k.relname as key,
            pg_stat_get_live_tuples(c.oid) as live, pg_stat_get_dead_tuples(c.oid) as dead,
            coalesce((select option_value::integer from pg_options_to_table(c.reloptions)
                where option_name = 'fillfactor'), 100) as fill
        from pg_class c
        join pg_index i on i.indrelid = c.oid and i.indisprimary
        join pg_class k on k.oid = i.indexrelid
        where c.relnamespace = 'sharequeue'::regnamespace and c.relkind = 'r' and not c.relispartition
            and pg_relation_size(c.oid) > p_least
        order by c.relname
    loop
        execute format('select coalesce(avg(pg_column_size(t)), 0) + 28 from (select * from sharequeue.%I limit 100) as t',
            v_table.name) into v_width;
        continue when v_table.bytes < p_factor * v_table.live * v_width * 100 / v_table.fill
            or v_table.dead * v_width * 4 > v_table.bytes - v_table.live * v_width * 100 / v_table.fill;
        begin
            execute format('cluster sharequeue.%I using %I', v_table.name, v_table.key);
            -- Only this once: no mark of it in the schema.
            execute format('alter table sharequeue.%I set without cluster', v_table.name);
            v_done := v_done || v_table.name::text;
        exception when lock_not_available then
            null;
        end;
    end loop;
    return v_done;
end
$$;

-- FUNCTION groups_of_topics(text[])

CREATE FUNCTION sharequeue.groups_of_topics(p_topics text[]) RETURNS TABLE(group_id text, topic text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select distinct sp.group_id, sp.topic from sharequeue.share_partitions sp where sp.topic = any (p_topics)
$$;

-- FUNCTION hear_replica(text, interval, boolean)

CREATE FUNCTION sharequeue.hear_replica(p_replica_id text, p_silence interval DEFAULT NULL::interval, p_drains boolean DEFAULT false) RETURNS interval
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_at timestamptz;
    v_heard timestamptz;
    v_silence interval;
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_name('the name of a replica', p_replica_id);
    perform sharequeue_internal.check_span('the longest silence', coalesce(p_silence, interval '0'));
    perform sharequeue_internal.check_present('whether it writes dead letters', p_drains);
    if p_silence is not null then
        -- Two that start together must not both lengthen the sessions.
        perform pg_advisory_xact_lock(7264519032119);
        v_at := sharequeue.clock();
        select max(heard_at) into v_heard from sharequeue.service_replicas;
        if v_heard is null or v_at - v_heard > p_silence then
            v_silence := v_at - v_heard;
            update sharequeue.members m
            set session_expires_at = case when v_heard is null then greatest(m.session_expires_at, v_at + p_silence)
                else m.session_expires_at + v_silence end
            where (m.group_id, m.member_id) in (
                select k.group_id, k.member_id from sharequeue.members k
                where v_heard is null or k.session_expires_at > v_heard
                order by k.group_id, k.member_id for update skip locked);
        end if;
        delete from sharequeue.service_replicas where heard_at < v_at - interval '1 day';
        delete from sharequeue.service_leases where expires_at < v_at - interval '1 day';
    end if;
    insert into sharequeue.service_replicas as r (replica_id, heard_at, drains)
    values (p_replica_id, sharequeue.clock(), p_drains)
    on conflict on constraint service_replicas_pkey do update set heard_at = excluded.heard_at, drains = excluded.drains;
    return v_silence;
end
$$;

-- FUNCTION hold_dead_letters(text, text, integer, text)

CREATE FUNCTION sharequeue.hold_dead_letters(p_group_id text, p_topic text, p_partition integer, p_reason text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_id bigint;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the topic', p_topic),
        sharequeue_internal.check_present('the partition', p_partition);
    if p_reason is not null then
        perform sharequeue_internal.check_text('the reason', p_reason, 10000);
    end if;
    select share_partition_id into v_id from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    if p_reason is null then
        delete from sharequeue.held_dead_letters where share_partition_id = v_id;
    elsif v_id is not null then
        insert into sharequeue.held_dead_letters as h (share_partition_id, reason, since)
        values (v_id, p_reason, sharequeue.clock())
        on conflict on constraint held_dead_letters_pkey do update set reason = excluded.reason;
    end if;
end
$$;

-- FUNCTION hold_service_lease(text, uuid)

CREATE FUNCTION sharequeue.hold_service_lease(p_task text, p_token uuid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_present('the task', p_task), sharequeue_internal.check_present('the token', p_token);
    perform from sharequeue.service_leases where task = p_task and token = p_token for share;
    if not found then
        raise exception 'another replica does "%" now', p_task using errcode = 'SQ016';
    end if;
end
$$;

-- FUNCTION initialize(text, text, integer, text, bigint, integer)

CREATE FUNCTION sharequeue.initialize(p_group_id text, p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint, p_state_epoch integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_start(p_topic, p_partition, p_topic_id, p_start_offset);
    perform sharequeue_internal.check_between('the state epoch', p_state_epoch, 0, 1073741824);
    if not sharequeue_internal.lock_group(p_group_id) then
        raise exception 'there is no share group %', p_group_id using errcode = 'SQ069';
    end if;
    insert into sharequeue.share_partitions
        (group_id, topic, partition, topic_id, state_epoch, spso, speo, log_end, last_stable_offset)
    values (p_group_id, p_topic, p_partition, p_topic_id, p_state_epoch, p_start_offset, p_start_offset,
        p_start_offset, p_start_offset)
    on conflict on constraint share_partitions_name do nothing;
    return found;
end
$$;

-- FUNCTION journal_partitions()

CREATE FUNCTION sharequeue.journal_partitions() RETURNS TABLE(day date, name text, bytes bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
    select to_date(right(c.relname, 8), 'YYYYMMDD'), c.relname::text, pg_total_relation_size(c.oid)
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'sharequeue.journal'::regclass and c.relname ~ '^journal_[0-9]{8}$'
    order by 1
$_$;

-- FUNCTION make_journal_partitions(integer)

CREATE FUNCTION sharequeue.make_journal_partitions(p_ahead integer DEFAULT 2) RETURNS date[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    SET lock_timeout TO '250ms'
    AS $$
declare
    v_today date := sharequeue.clock()::date;
    v_day date;
    v_name text;
    v_made date[] := '{}';
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_between('the number of days ahead', p_ahead, 0, 366);
    for v_day in select d::date from generate_series(v_today, v_today + p_ahead, interval '1 day') as d loop
        v_name := 'journal_' || to_char(v_day, 'YYYYMMDD');
        continue when to_regclass('sharequeue.' || v_name) is not null;
        execute format('create table sharequeue.%I (like sharequeue.journal including defaults including indexes)', v_name);
        execute format('alter table sharequeue.%I replica identity full', v_name);
        execute format('with moved as (delete from sharequeue.journal_other where at >= %L and at < %L returning *)'
            ' insert into sharequeue.%I select * from moved', v_day::timestamptz, (v_day + 1)::timestamptz, v_name);
        execute format('alter table sharequeue.journal attach partition sharequeue.%I for values from (%L) to (%L)',
            v_name, v_day::timestamptz, (v_day + 1)::timestamptz);
        v_made := v_made || v_day;
    end loop;
    return v_made;
end
$$;

-- FUNCTION metadata_hash(text)

CREATE FUNCTION sharequeue.metadata_hash(p_group_id text) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog'
    AS $$
    select md5(coalesce(string_agg(t.topic || ' ' || t.topic_id || ' ' || t.partitions, ',' order by t.topic), ''))
    from sharequeue.topics t
    where t.partitions > 0 and t.topic in (
        select unnest(m.subscribed_topic_names) from sharequeue.members m where m.group_id = p_group_id)
$$;

-- FUNCTION note_topics(text[], text[])

CREATE FUNCTION sharequeue.note_topics(p_topics text[], p_topic_ids text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_at timestamptz;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise_cluster();
    if p_topics is null or cardinality(p_topics) is distinct from cardinality(p_topic_ids)
            or array_position(p_topics, null) is not null then
        raise exception 'every topic needs a name, and its id or null' using errcode = 'SQ042';
    end if;
    v_at := sharequeue.clock();
    delete from sharequeue.gone_topics g
    where exists (select from unnest(p_topics, p_topic_ids) as n (topic, topic_id)
            where n.topic = g.topic and n.topic_id = g.topic_id)
        or not exists (select from sharequeue.share_partitions sp where sp.topic = g.topic and sp.topic_id = g.topic_id);
    -- Every ten seconds will do: who looks asks whether it was said within the minute.
    insert into sharequeue.gone_topics as g (topic, topic_id, gone_since, said_at)
    select distinct sp.topic, sp.topic_id, v_at, v_at
    from unnest(p_topics, p_topic_ids) as n (topic, topic_id) join sharequeue.share_partitions sp on sp.topic = n.topic
    where n.topic_id is distinct from sp.topic_id
    on conflict on constraint gone_topics_pkey do update
        set gone_since = case when g.said_at < v_at - sharequeue_internal.gone_topic_silence() then v_at else g.gone_since end,
            said_at = v_at
        where g.said_at < v_at - interval '10 seconds';
end
$$;

-- FUNCTION observe(text, text, integer, text, bigint, bigint, bigint)

CREATE FUNCTION sharequeue.observe(p_group_id text, p_topic text, p_partition integer, p_topic_id text, p_log_start bigint, p_log_end bigint, p_last_stable_offset bigint) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_sp sharequeue.share_partitions;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the topic', p_topic),
        sharequeue_internal.check_present('the partition', p_partition);
    perform sharequeue_internal.check_name('the topic id', p_topic_id);
    if not coalesce(p_topic_id is not null and p_log_start >= 0 and p_last_stable_offset >= 0
            and p_log_end between p_log_start and 9223372036854775807, false) then
        raise exception 'a log that starts at %, is stable to % and ends at % (topic id %) cannot be', p_log_start,
            p_last_stable_offset, p_log_end, p_topic_id using errcode = 'SQ042';
    end if;
    select * into v_sp from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    if not found then
        return null;
    end if;
    if p_topic_id = v_sp.previous_topic_id or (v_sp.status = 'topic_recreated' and p_topic_id = v_sp.topic_id) then
        return v_sp.status;
    elsif v_sp.topic_id <> p_topic_id then
        update sharequeue.share_partitions set status = 'topic_recreated', observed_at = sharequeue.clock()
        where share_partition_id = v_sp.share_partition_id;
        return 'topic_recreated';
    end if;
    if p_log_start > v_sp.spso then
        perform sharequeue_internal.advance_log_start(v_sp, p_log_start);
    end if;
    update sharequeue.share_partitions
    set log_start = p_log_start, log_end = p_log_end,
        last_stable_offset = least(p_last_stable_offset, p_log_end),
        observed_at = sharequeue.clock()
    where share_partition_id = v_sp.share_partition_id;
    return 'active';
end
$$;

-- FUNCTION observe_many(text, text[], integer[], text[], bigint[], bigint[], bigint[])

CREATE FUNCTION sharequeue.observe_many(p_group_id text, p_topics text[], p_partitions integer[], p_topic_ids text[], p_log_starts bigint[], p_log_ends bigint[], p_last_stable_offsets bigint[]) RETURNS SETOF sharequeue.observed_of
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_at timestamptz;
    v_new record;
    v_whole text[];
    v_ids bigint[];
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id);
    perform sharequeue_internal.check_many(10000, p_topics, p_partitions, coalesce(cardinality(p_topic_ids), 0),
        coalesce(cardinality(p_log_starts), 0), coalesce(cardinality(p_log_ends), 0),
        coalesce(cardinality(p_last_stable_offsets), 0));
    v_at := sharequeue.clock();
    v_whole := array(
        select sp.topic from sharequeue.share_partitions sp
        left join unnest(p_topics, p_partitions) as n (topic, partition)
            on n.topic = sp.topic and n.partition = sp.partition
        where sp.group_id = p_group_id and sp.topic = any (p_topics)
        group by sp.topic having bool_and(n.topic is not null) order by sp.topic);
    -- Whoever has to be written, by id; the rest is not waited for.
    v_ids := array(
        select sp.share_partition_id
        from sharequeue.share_partitions sp
        join unnest(p_topics, p_partitions, p_topic_ids, p_log_starts, p_log_ends, p_last_stable_offsets)
            as n (topic, partition, topic_id, log_start, log_end, stable) using (topic, partition)
        where sp.group_id = p_group_id and not (sp.status = 'topic_recreated' and sp.topic_id <> n.topic_id)
            and ((sp.log_start, sp.log_end, sp.last_stable_offset, sp.topic_id, sp.status)
                    is distinct from (n.log_start, n.log_end, n.stable, n.topic_id, 'active')
                or sp.observed_at is null or n.log_start > sp.spso
                or (sp.topic <> all (v_whole) and v_at - interval '10 seconds' > greatest(sp.observed_at, (
                    select o.observed_at from sharequeue.observations o
                    where o.group_id = p_group_id and o.topic = sp.topic))))
        order by sp.share_partition_id for no key update of sp);
    -- Almost always the end of the log has moved, and nothing else: one statement. Log starts that take SPSO along, topics
    -- made anew, and what is no log at all, are the operation's matter.
    for v_new in
        with moved as (
            update sharequeue.share_partitions sp
            set log_start = n.log_start, log_end = n.log_end, last_stable_offset = n.stable, observed_at = v_at
            from unnest(p_topics, p_partitions, p_topic_ids, p_log_starts, p_log_ends, p_last_stable_offsets)
                as n (topic, partition, topic_id, log_start, log_end, stable)
            where sp.share_partition_id = any (v_ids) and sp.topic = n.topic and sp.partition = n.partition
                and sp.status = 'active' and sp.topic_id = n.topic_id and n.log_start between 0 and sp.spso
                and n.log_end >= n.log_start and n.stable >= 0
            returning sp.share_partition_id
        )
        select n.*, sp.status, sp.share_partition_id in (select share_partition_id from moved)
            or (coalesce(sp.share_partition_id, 0) <> all (v_ids) and n.log_end >= n.log_start and n.log_start >= 0
                and n.stable >= 0) as done
        from unnest(p_topics, p_partitions, p_topic_ids, p_log_starts, p_log_ends, p_last_stable_offsets)
            as n (topic, partition, topic_id, log_start, log_end, stable)
        left join sharequeue.share_partitions sp
            on sp.group_id = p_group_id and sp.topic = n.topic and sp.partition = n.partition
        order by sp.share_partition_id
    loop
        if not coalesce(v_new.done, false) then
            v_new.status := sharequeue.observe(p_group_id, v_new.topic, v_new.partition, v_new.topic_id,
                v_new.log_start, v_new.log_end, v_new.stable);
        end if;
        return next row(v_new.topic, v_new.partition, v_new.status)::sharequeue.observed_of;
    end loop;
    insert into sharequeue.observations as o (group_id, topic, observed_at)
    select p_group_id, w.topic, v_at from unnest(v_whole) as w (topic) order by w.topic
    on conflict on constraint observations_pkey do update set observed_at = excluded.observed_at
    where o.observed_at < excluded.observed_at;
end
$$;

-- FUNCTION open_dead_letters(text, text, integer, bigint)

CREATE FUNCTION sharequeue.open_dead_letters(p_group_id text, p_topic text, p_partition integer, p_max_records bigint) RETURNS TABLE(sequence bigint, opened_at timestamp with time zone, topic_id text, cause text, delivery_count smallint, offsets int8multirange)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_sp sharequeue.share_partitions;
    v_taken int8multirange;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the topic', p_topic),
        sharequeue_internal.check_present('the partition', p_partition);
    perform sharequeue_internal.check_between('the number of records', p_max_records, 1, 4611686018427387904);
    select * into v_sp from sharequeue.share_partitions sp
    where sp.group_id = p_group_id and sp.topic = p_topic and sp.partition = p_partition for update;
    if not exists (
        select from sharequeue.dead_letter_batches b
        where b.share_partition_id = v_sp.share_partition_id and b.written_at is null
    ) then
        select sharequeue_internal.first_records(
            range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)), p_max_records) into v_taken
        from sharequeue.in_flight_batches f where f.share_partition_id = v_sp.share_partition_id and f.state = 3;
        if v_taken is null or isempty(v_taken) then
            return;
        end if;
        update sharequeue.share_partitions set dead_letter_sequence = dead_letter_sequence + 1
        where share_partition_id = v_sp.share_partition_id
        returning dead_letter_sequence into v_sp.dead_letter_sequence;
        insert into sharequeue.dead_letter_batches (share_partition_id, sequence, opened_at)
        values (v_sp.share_partition_id, v_sp.dead_letter_sequence, sharequeue.clock());
        insert into sharequeue.dead_letter_runs (share_partition_id, sequence, cause, delivery_count, offsets)
        select v_sp.share_partition_id, v_sp.dead_letter_sequence, f.cause, f.delivery_count,
            range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)) * v_taken
        from sharequeue.in_flight_batches f
        where f.share_partition_id = v_sp.share_partition_id and f.state = 3
            and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) && v_taken
        group by f.cause, f.delivery_count;
    end if;
    return query
        select r.sequence, b.opened_at, v_sp.topic_id, r.cause, r.delivery_count, r.offsets
        from sharequeue.dead_letter_runs r
        join sharequeue.dead_letter_batches b using (share_partition_id, sequence)
        where b.share_partition_id = v_sp.share_partition_id and b.written_at is null
        order by r.cause, r.delivery_count;
end
$$;

-- FUNCTION open_redrive(text, text, integer, uuid, int8multirange, bigint)

CREATE FUNCTION sharequeue.open_redrive(p_topic text, p_topic_id text, p_partition integer, p_redrive_id uuid, p_wanted int8multirange, p_max_records bigint) RETURNS TABLE(sequence bigint, redrive_id uuid, target_topic text, only_group text, offsets int8multirange)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_redriven sharequeue.redriven;
    v_taken int8multirange;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_name('the topic', p_topic), sharequeue_internal.check_name('the topic id', p_topic_id),
        sharequeue_internal.check_between('the partition', p_partition, 0, 2147483647);
    perform sharequeue_internal.check_offsets(p_wanted), sharequeue_internal.check_between('the number of letters', p_max_records, 1,
        4611686018427387904);
    if not exists (select from sharequeue.redrives r where r.redrive_id = p_redrive_id) then
        raise exception 'there is no redrive %', p_redrive_id using errcode = 'SQ042';
    end if;
    insert into sharequeue.redriven (dead_letter_topic, topic_id, partition) values (p_topic, p_topic_id, p_partition)
    on conflict on constraint redriven_pkey do nothing;
    select r.* into v_redriven from sharequeue.redriven r
    where r.dead_letter_topic = p_topic and r.topic_id = p_topic_id and r.partition = p_partition for update;
    if not exists (select from sharequeue.redrive_batches b where b.dead_letter_topic = p_topic
            and b.topic_id = p_topic_id and b.partition = p_partition and b.sent_at is null) then
        v_taken := sharequeue_internal.first_records(p_wanted - v_redriven.offsets, p_max_records);
        if isempty(v_taken) then
            return;
        end if;
        update sharequeue.redriven r set sequence = r.sequence + 1
        where r.dead_letter_topic = p_topic and r.topic_id = p_topic_id and r.partition = p_partition;
        insert into sharequeue.redrive_batches
            (dead_letter_topic, topic_id, partition, sequence, redrive_id, offsets, opened_at)
        values (p_topic, p_topic_id, p_partition, v_redriven.sequence + 1, p_redrive_id, v_taken, sharequeue.clock());
    end if;
    return query
        select b.sequence, b.redrive_id, r.target_topic, r.only_group, b.offsets
        from sharequeue.redrive_batches b join sharequeue.redrives r using (redrive_id)
        where b.dead_letter_topic = p_topic and b.topic_id = p_topic_id and b.partition = p_partition
            and b.sent_at is null;
end
$$;

-- FUNCTION pause(text, text, text, integer)

CREATE FUNCTION sharequeue.pause(p_group_id text, p_reason text, p_topic text DEFAULT NULL::text, p_partition integer DEFAULT NULL::integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_before jsonb;
    v_ids bigint[];
    v_paused integer;
begin
    perform sharequeue_internal.authorise(p_group_id, 'ALTER');
    if p_reason is not null then
        perform sharequeue_internal.check_text('the reason', p_reason, 10000);
    end if;
    if p_reason = '' or (p_topic is null and p_partition is not null) then
        raise exception 'a pause has a reason, and a partition has a topic' using errcode = 'SQ042';
    elsif not exists (select from sharequeue.share_groups where group_id = p_group_id) then
        raise exception 'there is no share group %', p_group_id using errcode = 'SQ069';
    end if;
    v_ids := sharequeue_internal.lock_in_order(
        array[p_group_id], p_topic is null, p_topic is not null or p_reason is null, p_topic, p_partition);
    if p_reason is null then
        delete from sharequeue.circuit_breakers where share_partition_id = any (v_ids);
    end if;
    if p_topic is null then
        select jsonb_build_object('reason', paused_reason) into v_before
        from sharequeue.group_settings where group_id = p_group_id;
        update sharequeue.group_settings set paused_reason = p_reason where group_id = p_group_id;
    else
        select jsonb_agg(jsonb_build_object('topic', topic, 'partition', partition, 'reason', paused_reason))
        into v_before from sharequeue.share_partitions where share_partition_id = any (v_ids);
        update sharequeue.share_partitions set paused_reason = p_reason where share_partition_id = any (v_ids);
    end if;
    get diagnostics v_paused = row_count;
    if v_paused = 0 then
        raise exception 'group % has no share-partition %-%', p_group_id, p_topic, coalesce(p_partition::text, '*')
            using errcode = 'SQ003';
    end if;
    perform sharequeue_internal.audit(case when p_reason is null then 'resume' else 'pause' end, p_group_id, v_before,
        jsonb_build_object('topic', p_topic, 'partition', p_partition, 'reason', p_reason));
    return v_paused;
end
$$;

-- FUNCTION principal()

CREATE FUNCTION sharequeue.principal() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_passed_on text := current_setting('sharequeue.principal', true);
begin
    if v_passed_on <> '' and sharequeue_internal.is_trusted() then
        return v_passed_on;
    end if;
    return 'User:' || cast(session_user as text);
end
$$;

-- FUNCTION raise_group_epoch(text, boolean)

CREATE FUNCTION sharequeue.raise_group_epoch(p_group_id text, p_subscription_changed boolean) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
declare
    v_hash text := sharequeue.metadata_hash(p_group_id);
    v_epoch integer;
begin
    perform sharequeue.require_read_committed();
    update sharequeue.share_groups g
    set group_epoch = g.group_epoch + 1, metadata_hash = v_hash
    where g.group_id = p_group_id and (
        p_subscription_changed
        or (exists (select from sharequeue.members m where m.group_id = p_group_id)
            and (g.metadata_hash is distinct from v_hash
                or (g.assignment_epoch = g.group_epoch and exists (
                    select share_partition_id from sharequeue.assignable_share_partitions(p_group_id)
                    except
                    select a.share_partition_id from sharequeue.assignments a where a.group_id = p_group_id)))))
    returning g.group_epoch into v_epoch;
    return v_epoch;
end
$$;

-- FUNCTION raise_state_epochs()

CREATE FUNCTION sharequeue.raise_state_epochs() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_id bigint;
    v_lease_id bigint;
    v_completed bigint;
    v_raised bigint := 0;
begin
    perform sharequeue_internal.authorise_cluster();
    foreach v_id in array sharequeue_internal.lock_in_order(null, false, true) loop
        v_completed := 0;
        perform sharequeue_internal.unfold(v_id);
        for v_lease_id in select lease_id from sharequeue.leases where share_partition_id = v_id order by lease_id loop
            v_completed := v_completed + (select e.completed from sharequeue_internal.end_unacknowledged(v_id, v_lease_id) as e);
        end loop;
        perform sharequeue_internal.advance_spso(v_id, v_completed);
        update sharequeue.share_partitions set state_epoch = state_epoch + 1, next_expiry = null
        where share_partition_id = v_id;
        v_raised := v_raised + 1;
    end loop;
    perform sharequeue_internal.audit('raise_state_epochs', null, null, jsonb_build_object('share_partitions', v_raised));
    return v_raised;
end
$$;

-- FUNCTION rebind_cluster(text)

CREATE FUNCTION sharequeue.rebind_cluster(p_cluster_id text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
declare
    v_before text;
begin
    perform sharequeue_internal.check_name('the cluster id', p_cluster_id);
    select cluster_id into v_before from sharequeue.kafka_cluster for update;
    insert into sharequeue.kafka_cluster (cluster_id, bound_at) values (p_cluster_id, sharequeue.clock())
    on conflict on constraint kafka_cluster_pkey do update
        set cluster_id = excluded.cluster_id, bound_at = excluded.bound_at;
    perform sharequeue_internal.audit('rebind_cluster', null, to_jsonb(v_before), to_jsonb(p_cluster_id));
    return v_before;
end
$$;

-- FUNCTION record_report(text)

CREATE FUNCTION sharequeue.record_report(p_group_id text) RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_at timestamptz := sharequeue.clock();
begin
    perform sharequeue_internal.authorise(p_group_id, 'DESCRIBE');
    perform sharequeue_internal.check_present('the group id', p_group_id);
    perform from sharequeue.share_groups where group_id = p_group_id;
    if not found then
        raise exception 'there is no share group %', left(p_group_id, 300) using errcode = 'SQ069';
    end if;
    insert into sharequeue.share_partition_history
    select v_at, share_partition_id, spso, speo, log_start, log_end, lag, acquired, available, archiving,
        delivery_complete_count
    from sharequeue.share_partition_status where group_id = p_group_id order by share_partition_id;
    insert into sharequeue.delivery_count_history
    select v_at, d.share_partition_id, d.outcome, d.delivery_count, d.records
    from sharequeue.delivery_count_totals d join sharequeue.share_partitions sp using (share_partition_id)
    where sp.group_id = p_group_id order by share_partition_id;
    return v_at;
end
$$;

-- FUNCTION records(int8multirange)

CREATE FUNCTION sharequeue.records(p_offsets int8multirange) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (SELECT (COALESCE(sum((upper(ranges.r) - lower(ranges.r))), (0)::numeric))::bigint AS "coalesce" FROM (SELECT unnest(records.p_offsets) AS r) ranges);

-- FUNCTION release(text, text, uuid, boolean, boolean)

CREATE FUNCTION sharequeue.release(p_group_id text, p_member_id text, p_token uuid DEFAULT NULL::uuid, p_cancelled boolean DEFAULT false, p_refund boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_id bigint;
    v_released bigint := 0;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the member id', p_member_id),
        sharequeue_internal.check_present('whether the run was cancelled', p_cancelled),
        sharequeue_internal.check_present('whether deliveries are given back', p_refund);
    for v_id in
        -- Not exists: that was made a hash of all leases of all groups.
        select share_partition_id from sharequeue.share_partitions
        where group_id = p_group_id and next_expiry is not null and ((
            select true from sharequeue.leases l where l.share_partition_id = share_partitions.share_partition_id
                and l.member_id = p_member_id and (p_token is null or l.token = p_token) limit 1)
            or (folded_member_id = p_member_id and (p_token is null or folded_token = p_token)))
        order by share_partition_id
        for no key update
    loop
        v_released := v_released + sharequeue_internal.release_of(v_id, p_member_id, p_token, p_cancelled, p_refund);
    end loop;
    return v_released;
end
$$;

-- FUNCTION release_many(text, text[], integer[], text, uuid[], boolean, boolean)

CREATE FUNCTION sharequeue.release_many(p_group_id text, p_topics text[], p_partitions integer[], p_member_id text, p_tokens uuid[], p_cancelled boolean DEFAULT false, p_refund boolean DEFAULT false) RETURNS SETOF sharequeue.released_of
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_there boolean[];
    v_place integer;
    v_id bigint;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the member id', p_member_id);
    if p_cancelled is null or p_refund is null or array_position(p_tokens, null) is not null then
        raise exception 'release_many needs the token of every lease, whether the run was cancelled, and whether its '
            'deliveries are given back'
            using errcode = 'SQ042';
    end if;
    v_there := sharequeue_internal.lock_many(p_group_id, p_topics, p_partitions, coalesce(cardinality(p_tokens), 0));
    for v_place in 1 .. cardinality(p_topics) loop
        select share_partition_id into v_id from sharequeue.share_partitions
        where v_there[v_place] and group_id = p_group_id and topic = p_topics[v_place]
            and partition = p_partitions[v_place];
        return next row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place],
            case when v_id is null then 0 else sharequeue_internal.release_of(v_id, p_member_id, p_tokens[v_place], p_cancelled,
                p_refund) end)::sharequeue.released_of;
    end loop;
end
$$;

-- FUNCTION removable_outputs(text, text, interval)

CREATE FUNCTION sharequeue.removable_outputs(p_group_id text, p_sink text, p_grace interval) RETURNS TABLE(compaction_id uuid, folders text[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    v_before timestamptz;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
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
                select from sharequeue.lease_outputs o join sharequeue.share_partitions sp using (share_partition_id)
                where sp.group_id = p_group_id and o.sink = p_sink
                    and o.location = any (case when c.abandoned_at is null then c.replaced else array[c.location] end))
        order by c.began_at;
end
$$;

-- TABLE acls

CREATE TABLE sharequeue.acls (
    principal text NOT NULL,
    operation text NOT NULL,
    permission text NOT NULL,
    pattern_type text NOT NULL,
    resource_name text NOT NULL,
    CONSTRAINT acls_operation_known CHECK ((operation = ANY (ARRAY['ALL'::text, 'READ'::text, 'DESCRIBE'::text, 'ALTER'::text, 'DELETE'::text, 'ALTER_CONFIGS'::text, 'DESCRIBE_CONFIGS'::text]))),
    CONSTRAINT acls_pattern_type_known CHECK ((pattern_type = ANY (ARRAY['LITERAL'::text, 'PREFIXED'::text]))),
    CONSTRAINT acls_permission_known CHECK ((permission = ANY (ARRAY['ALLOW'::text, 'DENY'::text]))),
    CONSTRAINT acls_principal_is_user CHECK ((principal ~~ 'User:_%'::text)),
    CONSTRAINT acls_resource_name_not_empty CHECK ((resource_name <> ''::text))
);

-- FUNCTION remove_acls(text, text, text, text, text, boolean)

CREATE FUNCTION sharequeue.remove_acls(p_principal text, p_operation text, p_permission text, p_pattern_type text, p_resource_name text, p_dry_run boolean DEFAULT false) RETURNS SETOF sharequeue.acls
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_acls sharequeue.acls[];
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_present('whether it is a dry run', p_dry_run);
    if not p_dry_run then
        lock table sharequeue.acls in share row exclusive mode;
    end if;
    v_acls := array(
        select a from sharequeue.acls a
        where principal = coalesce(p_principal, principal) and operation = coalesce(p_operation, operation)
            and permission = coalesce(p_permission, permission) and pattern_type = coalesce(p_pattern_type, pattern_type)
            and resource_name = coalesce(p_resource_name, resource_name)
        order by principal, operation, permission, pattern_type, resource_name);
    if not p_dry_run then
        -- All in one statement, so that the groups that they cover are locked together, in order.
        delete from sharequeue.acls a where a = any (v_acls);
        perform sharequeue_internal.audit('remove_acl', null, to_jsonb(a), null) from unnest(v_acls) as a;
    end if;
    return query select * from unnest(v_acls);
end
$$;

-- FUNCTION remove_deleted_topics(interval, boolean, text)

CREATE FUNCTION sharequeue.remove_deleted_topics(p_gone_for interval, p_execute boolean, p_group_id text DEFAULT NULL::text) RETURNS TABLE(topic text, topic_id text, gone_since timestamp with time zone, group_id text, share_partitions bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    v_at timestamptz;
    v_found record;
    v_ids bigint[];
    v_before jsonb;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_span('the time for which a topic is gone', p_gone_for),
        sharequeue_internal.check_present('whether to execute', p_execute);
    v_at := sharequeue.clock();
    -- By group: that is the order of locks.
    for v_found in
        select sp.group_id, sp.topic, sp.topic_id, g.gone_since, count(*) as share_partitions
        from sharequeue.gone_topics g
        join sharequeue.share_partitions sp on sp.topic = g.topic and sp.topic_id = g.topic_id
        where (p_group_id is null or sp.group_id = p_group_id) and g.gone_since <= v_at - p_gone_for
            and g.said_at >= v_at - sharequeue_internal.gone_topic_silence()
        group by sp.group_id, sp.topic, sp.topic_id, g.gone_since order by sp.group_id, sp.topic, sp.topic_id
    loop
        if p_execute then
            continue when not sharequeue_internal.lock_group(v_found.group_id);
            v_ids := sharequeue_internal.lock_in_order(array[v_found.group_id], false, true, v_found.topic);
            with deleted as (
                delete from sharequeue.share_partitions
                where share_partition_id = any (v_ids) and topic_id = v_found.topic_id
                returning partition, spso, speo, state_epoch
            )
            select jsonb_agg(jsonb_build_object('topic', v_found.topic, 'topic_id', v_found.topic_id,
                'partition', d.partition, 'start_offset', d.spso, 'end_offset', d.speo, 'state_epoch', d.state_epoch)
                order by d.partition) into v_before from deleted as d;
            -- Nothing was left: somebody else has reset or deleted it meanwhile.
            continue when v_before is null;
            perform sharequeue_internal.audit('remove_deleted_topic', v_found.group_id, v_before,
                jsonb_build_object('gone_since', v_found.gone_since));
        end if;
        return query select v_found.topic, v_found.topic_id, v_found.gone_since, v_found.group_id,
            v_found.share_partitions;
    end loop;
    if p_execute then
        delete from sharequeue.gone_topics g where not exists (
            select from sharequeue.share_partitions sp where sp.topic = g.topic and sp.topic_id = g.topic_id);
    end if;
end
$$;

-- FUNCTION renew(text, text, integer, integer, text, integer, uuid)

CREATE FUNCTION sharequeue.renew(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_token uuid, OUT error_code smallint, OUT error_message text, OUT expires_at timestamp with time zone) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_found record;
    v_at timestamptz;
begin
    select * into v_found from sharequeue_internal.lock_share_partition(p_group_id, p_topic, p_partition, p_state_epoch);
    error_code := v_found.error_code;
    error_message := v_found.error_message;
    if error_code = 0 then
        select m.error_code, m.error_message into error_code, error_message
        from sharequeue_internal.check_member(p_group_id, p_member_id, p_member_epoch) as m;
    end if;
    if error_code = 0 and not (v_found.settings).renew_enabled then
        error_code := 121;
        error_message := 'Renewing acquisition locks is not enabled for the group.';
    end if;
    if error_code <> 0 then
        return;
    end if;
    v_at := sharequeue.clock();
    if (v_found.sp).next_expiry <= v_at then
        perform sharequeue_internal.settle_lapsed((v_found.sp).share_partition_id, v_at);
    end if;
    with renewed as (
        update sharequeue.leases l
        set expires_at = v_at + interval '1 millisecond'
            * case when l.own_lock_duration then l.lock_duration_ms else (v_found.settings).lock_duration_ms end
        where l.token = p_token and l.share_partition_id = (v_found.sp).share_partition_id
            and l.member_id = p_member_id
        returning l.expires_at
    )
    select min(r.expires_at) into expires_at from renewed as r;
    if expires_at is null then
        error_code := 121;
        error_message := 'the lease is no longer held: its lock lapsed, or all of it was acknowledged';
    end if;
    -- Sooner than before, where the group's lock duration has become shorter since.
    update sharequeue.share_partitions sp set next_expiry = renew.expires_at
    where sp.share_partition_id = (v_found.sp).share_partition_id and sp.next_expiry > renew.expires_at;
end
$$;

-- FUNCTION renew_many(text, text[], integer[], integer[], text, integer, uuid[])

CREATE FUNCTION sharequeue.renew_many(p_group_id text, p_topics text[], p_partitions integer[], p_state_epochs integer[], p_member_id text, p_member_epoch integer, p_tokens uuid[]) RETURNS SETOF sharequeue.renewed_of
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_there boolean[];
    v_place integer;
    v_renewed record;
begin
    v_there := sharequeue_internal.lock_many(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_state_epochs), 0), coalesce(cardinality(p_tokens), 0));
    for v_place in 1 .. cardinality(p_topics) loop
        if v_there[v_place] then
            select * into v_renewed
            from sharequeue.renew(p_group_id, p_topics[v_place], p_partitions[v_place], p_state_epochs[v_place],
                p_member_id, p_member_epoch, p_tokens[v_place]);
        else
            select *, cast(null as timestamptz) as expires_at into v_renewed
            from sharequeue_internal.absent(p_group_id, p_topics[v_place], p_partitions[v_place]);
        end if;
        return next row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place], v_renewed.error_code,
            v_renewed.error_message, v_renewed.expires_at)::sharequeue.renewed_of;
    end loop;
end
$$;

-- FUNCTION replay_batches(bigint, bigint, bigint)

CREATE FUNCTION sharequeue.replay_batches(p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint DEFAULT NULL::bigint) RETURNS TABLE(first_offset bigint, last_offset bigint, part integer, state smallint, delivery_count smallint, lease_id bigint, isolate bigint, not_before timestamp with time zone, cause text, offsets int8multirange)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with changes as (
        select j.journal_id, case j.kind when 'fetch' then 'batch' else j.kind end as kind, j.first_offset, j.last_offset,
            coalesce(j.part, 0) as part, coalesce(j.state, 1::smallint) as state,
            coalesce(j.delivery_count, 1::smallint) as delivery_count, j.lease_id, j.isolate, j.not_before, j.cause,
            j.offsets
        from sharequeue.journal j
        where j.share_partition_id = p_share_partition_id
            and j.journal_id >= sharequeue_internal.replay_from(p_share_partition_id, p_snapshot_id, p_until)
            and (p_until is null or j.journal_id <= p_until)
            and j.kind in ('batch', 'batch_gone', 'offsets_added', 'offsets_taken', 'fetch')
        union all
        select j.journal_id, 'batch_gone', j.gone_first, null, 0, null, null, null, null, null, null, null
        from sharequeue.journal j
        where j.share_partition_id = p_share_partition_id
            and j.journal_id >= sharequeue_internal.replay_from(p_share_partition_id, p_snapshot_id, p_until)
            and (p_until is null or j.journal_id <= p_until) and j.kind = 'fetch' and j.gone_first is not null
    ), images as (
        select distinct on (c.first_offset, c.part) c.* from changes c where c.kind in ('batch', 'batch_gone')
        order by c.first_offset, c.part, c.journal_id desc
    )
    select i.first_offset, i.last_offset, i.part, i.state, i.delivery_count, i.lease_id, i.isolate, i.not_before, i.cause, (
        select sharequeue_internal.replayed(c.kind, c.offsets order by c.journal_id) from changes c
        where c.first_offset = i.first_offset and c.part = i.part and c.journal_id >= i.journal_id
            and c.kind <> 'batch_gone')
    from images i where i.kind = 'batch'
$$;

-- FUNCTION replay_leases(bigint, bigint, bigint)

CREATE FUNCTION sharequeue.replay_leases(p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint DEFAULT NULL::bigint) RETURNS TABLE(lease_id bigint, member_id text, member_epoch integer, token uuid, lock_duration_ms integer, acquired_at timestamp with time zone, expires_at timestamp with time zone, fan_out boolean, own_lock_duration boolean)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with changes as (
        select j.journal_id, j.kind <> 'lease_gone' as there, j.lease_id, j.member_id, j.member_epoch, j.token,
            j.lock_duration_ms, coalesce(j.acquired_at, j.at) as acquired_at,
            coalesce(j.expires_at, j.at + j.lock_duration_ms * interval '1 millisecond') as expires_at, j.fan_out,
            coalesce(j.own_lock_duration, false) as own_lock_duration
        from sharequeue.journal j
        where j.share_partition_id = p_share_partition_id
            and j.journal_id >= sharequeue_internal.replay_from(p_share_partition_id, p_snapshot_id, p_until)
            and (p_until is null or j.journal_id <= p_until) and j.kind in ('lease', 'lease_gone', 'fetch')
        union all
        select j.journal_id, false, j.gone_lease_id, null, null, null, null, null, null, null, null
        from sharequeue.journal j
        where j.share_partition_id = p_share_partition_id
            and j.journal_id >= sharequeue_internal.replay_from(p_share_partition_id, p_snapshot_id, p_until)
            and (p_until is null or j.journal_id <= p_until) and j.kind = 'fetch' and j.gone_lease_id is not null
    ), last as (
        select distinct on (c.lease_id) c.* from changes c order by c.lease_id, c.journal_id desc
    )
    select l.lease_id, l.member_id, l.member_epoch, l.token, l.lock_duration_ms, l.acquired_at, l.expires_at, l.fan_out,
        l.own_lock_duration
    from last l where l.there
$$;

-- FUNCTION replay_outcomes(bigint, bigint, bigint)

CREATE FUNCTION sharequeue.replay_outcomes(p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint DEFAULT NULL::bigint) RETURNS TABLE(outcome text, delivery_count smallint, records bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    -- A later snapshot on the way says the total anew.
    with changes as (
        select j.journal_id, j.kind, j.cause, j.delivery_count, j.records,
            max(j.journal_id) filter (where j.kind = 'outcome_total')
                over (partition by j.cause, j.delivery_count) as total_at
        from sharequeue.journal j
        where j.share_partition_id = p_share_partition_id and j.journal_id >= p_snapshot_id
            and (p_until is null or j.journal_id <= p_until) and j.kind in ('outcome', 'outcome_total')
    )
    select c.cause, c.delivery_count, sum(c.records)::bigint from changes c
    where c.journal_id >= coalesce(c.total_at, 0)
    group by c.cause, c.delivery_count
$$;

-- FUNCTION replay_share_partition(bigint, bigint, bigint)

CREATE FUNCTION sharequeue.replay_share_partition(p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint DEFAULT NULL::bigint) RETURNS TABLE(spso bigint, speo bigint, delivery_complete_count bigint, accepted_first bigint, lost_records bigint, dead_letter_sequence bigint, next_expiry timestamp with time zone, state_epoch integer, redeliverable boolean, advance_due boolean, status text, paused_reason text, topic_id text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with changes as (
        select j.* from sharequeue.journal j
        where j.share_partition_id = p_share_partition_id and j.journal_id >= p_snapshot_id
            and (p_until is null or j.journal_id <= p_until)
            and j.kind in ('initialized', 'snapshot', 'share_partition', 'deleted', 'fetch')
    ), image as (
        select * from changes where kind <> 'fetch' order by journal_id desc limit 1
    ), fetched as (
        select f.* from changes f, image i where f.kind = 'fetch' and f.journal_id > i.journal_id
        order by f.journal_id desc limit 1
    )
    select coalesce(f.spso, f.first_offset, i.spso), coalesce(f.last_offset + 1, i.speo), i.delivery_complete_count,
        coalesce(f.accepted_first, i.accepted_first), i.lost_records, i.dead_letter_sequence, i.next_expiry, i.state_epoch, i.redeliverable, i.advance_due, i.status,
        i.paused_reason, i.topic_id
    from image i left join fetched f on true where i.kind <> 'deleted'
$$;

-- FUNCTION require_read_committed()

CREATE FUNCTION sharequeue.require_read_committed() RETURNS void
    LANGUAGE plpgsql STABLE
    AS $$
begin
    if pg_catalog.current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'this transaction is %, and share-partition state changes at READ COMMITTED only: begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED',
            pg_catalog.upper(pg_catalog.current_setting('transaction_isolation')) using errcode = 'SQ042';
    end if;
end
$$;

-- FUNCTION reset_offsets(text, text[], integer[], text[], bigint[], boolean)

CREATE FUNCTION sharequeue.reset_offsets(p_group_id text, p_topics text[], p_partitions integer[], p_topic_ids text[], p_start_offsets bigint[], p_execute boolean) RETURNS SETOF sharequeue.reset
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_epoch integer;
    v_named record;
    v_row sharequeue.reset;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_group_id(p_group_id);
    if p_topics is null or p_execute is null
            or (cardinality(p_partitions), cardinality(p_topic_ids), cardinality(p_start_offsets))
            is distinct from (cardinality(p_topics), cardinality(p_topics), cardinality(p_topics)) then
        raise exception 'every topic needs a partition, a topic id and a start offset' using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.lock_empty_group(p_group_id);
    -- In the order of ids, which is that of all who lock several share-partitions.
    for v_named in
        select n.topic, n.partition, n.topic_id, n.start_offset, n.number, sp.spso
        from unnest(p_topics, p_partitions, p_topic_ids, p_start_offsets) with ordinality
            as n (topic, partition, topic_id, start_offset, number)
        left join sharequeue.share_partitions sp
            on sp.group_id = p_group_id and sp.topic = n.topic and sp.partition = n.partition
        order by sp.share_partition_id, n.number
    loop
        v_row := row(0, null, v_named.topic, v_named.partition, v_named.spso, v_named.start_offset, null);
        begin
            perform sharequeue_internal.check_start(v_named.topic, v_named.partition, v_named.topic_id, v_named.start_offset);
        exception when sqlstate 'SQ042' then
            v_row.error_code := 42;
            v_row.error_message := sqlerrm;
        end;
        if v_row.error_code = 0 and p_execute then
            if v_epoch is null then
                v_epoch := sharequeue_internal.next_epoch_of_empty_group(p_group_id);
            end if;
            v_row.state_epoch := sharequeue.alter_offsets(p_group_id, v_named.topic, v_named.partition,
                v_named.topic_id, v_named.start_offset, v_epoch);
        end if;
        return next v_row;
    end loop;
end
$$;

-- FUNCTION roll_up_due_days()

CREATE FUNCTION sharequeue.roll_up_due_days() RETURNS date[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
declare
    v_day date;
begin
    perform sharequeue.require_read_committed();
    select p.day into v_day from sharequeue.journal_partitions() as p
    where p.day < sharequeue.clock()::date
        and not exists (select from sharequeue.journal_rolled_up r where r.day = p.day)
    order by p.day limit 1;
    if v_day is null then
        return '{}';
    end if;
    perform sharequeue.roll_up_journal(v_day);
    return array[v_day];
end
$$;

-- FUNCTION roll_up_journal(date)

CREATE FUNCTION sharequeue.roll_up_journal(p_day date) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET "TimeZone" TO 'UTC'
    AS $$
declare
    v_rows integer;
begin
    perform sharequeue.require_read_committed();
    if not coalesce(p_day between date '2000-01-01' and date '9999-12-31', false) then
        raise exception 'no journal is kept of %: give a day between 2000 and 9999', p_day using errcode = 'SQ042';
    end if;
    with changes as (
        select j.share_partition_id as id, j.journal_id, j.kind, j.delivery_complete_count, j.state_epoch,
            j.accepted_first, j.lost_records, coalesce(j.delivery_count, 1::smallint) as delivery_count, j.group_id,
            j.topic, j.partition,
            case j.kind when 'fetch' then coalesce(j.spso, j.first_offset) else j.spso end as spso,
            case j.kind when 'fetch' then j.last_offset + 1 else j.speo end as speo
        from sharequeue.journal j where j.at >= p_day::timestamptz and j.at < (p_day + 1)::timestamptz
    ), before as (
        -- What the day began with: the last day there is, or, of a share-partition without one, its first image.
        select c.id, coalesce(d.speo, c.speo) as speo, coalesce(d.total_accepted_first, c.accepted_first) as accepted_first,
            coalesce(d.total_lost_records, c.lost_records, 0) as lost_records, d.state_epoch,
            d.delivery_complete_count
        from (
            select distinct on (id) id, speo, accepted_first, lost_records from changes where speo is not null
            order by id, journal_id
        ) as c
        left join lateral (
            select d.speo, d.total_accepted_first, d.total_lost_records, d.state_epoch, d.delivery_complete_count
            from sharequeue.journal_daily d where d.share_partition_id = c.id and d.day < p_day
            order by d.day desc limit 1) as d on true
    ), steps as (
        select c.id, c.journal_id, c.speo - coalesce(lag(c.speo) over w, b.speo) as entered,
            coalesce(c.lost_records, 0) - coalesce(max(c.lost_records) over (w rows between unbounded preceding
                and 1 preceding), b.lost_records) as lost
        from changes c join before b using (id) where c.speo is not null
        window w as (partition by c.id order by c.journal_id)
    ), days as (
        select c.id, count(*) as updates, count(*) filter (where c.kind = 'snapshot') as snapshots,
            max(c.delivery_count) filter (where c.kind in ('batch', 'fetch')) as highest,
            (array_agg(c.spso order by c.journal_id desc) filter (where c.spso is not null))[1] as spso,
            (array_agg(c.speo order by c.journal_id desc) filter (where c.speo is not null))[1] as speo,
            (array_agg(c.delivery_complete_count order by c.journal_id desc)
                filter (where c.delivery_complete_count is not null))[1] as complete,
            (array_agg(c.state_epoch order by c.journal_id desc) filter (where c.state_epoch is not null))[1] as epoch,
            max(c.accepted_first) as accepted_first, max(c.lost_records) as lost_records,
            max(c.group_id) as group_id, max(c.topic) as topic, max(c.partition) as partition
        from changes c group by c.id
    ), granted as (
        select j.share_partition_id as id, count(distinct j.lease_id) as leases from sharequeue.journal j
        where j.at >= p_day::timestamptz and j.at < (p_day + 1)::timestamptz and j.kind in ('lease', 'fetch')
        group by j.share_partition_id
    )
    insert into sharequeue.journal_daily as d (day, share_partition_id, group_id, topic, partition, updates, snapshots,
        leases, entered, accepted_first, lost_records, highest_delivery_count, spso, speo, delivery_complete_count,
        state_epoch, total_accepted_first, total_lost_records)
    select p_day, y.id, coalesce(sp.group_id, y.group_id, '?'), coalesce(sp.topic, y.topic, '?'),
        coalesce(sp.partition, y.partition, -1), y.updates, y.snapshots, coalesce(g.leases, 0),
        coalesce((select sum(s.entered) from steps s where s.id = y.id and s.entered > 0 and s.lost <= 0), 0),
        coalesce(y.accepted_first - b.accepted_first, 0), coalesce(greatest(y.lost_records, b.lost_records) - b.lost_records, 0),
        coalesce(y.highest, 0), y.spso, y.speo, coalesce(y.complete, b.delivery_complete_count, 0),
        coalesce(y.epoch, b.state_epoch, 0), y.accepted_first, coalesce(greatest(y.lost_records, b.lost_records), 0)
    from days y join before b using (id) left join granted g using (id)
    left join sharequeue.share_partitions sp on sp.share_partition_id = y.id
    order by y.id
    on conflict on constraint journal_daily_pkey do update set updates = excluded.updates,
        snapshots = excluded.snapshots, leases = excluded.leases, entered = excluded.entered,
        accepted_first = excluded.accepted_first, lost_records = excluded.lost_records,
        highest_delivery_count = excluded.highest_delivery_count, spso = excluded.spso, speo = excluded.speo,
        delivery_complete_count = excluded.delivery_complete_count, state_epoch = excluded.state_epoch,
        total_accepted_first = excluded.total_accepted_first, total_lost_records = excluded.total_lost_records;
    get diagnostics v_rows = row_count;
    insert into sharequeue.journal_daily_outcomes as d (day, share_partition_id, outcome, delivery_count, records)
    select p_day, j.share_partition_id, j.cause, j.delivery_count, sum(j.records)
    from sharequeue.journal j
    where j.at >= p_day::timestamptz and j.at < (p_day + 1)::timestamptz and j.kind = 'outcome'
    group by j.share_partition_id, j.cause, j.delivery_count
    order by j.share_partition_id, j.cause, j.delivery_count
    on conflict on constraint journal_daily_outcomes_pkey do update set records = excluded.records;
    insert into sharequeue.journal_rolled_up (day) values (p_day) on conflict on constraint journal_rolled_up_pkey do nothing;
    return v_rows;
end
$$;

-- FUNCTION schema_version()

CREATE FUNCTION sharequeue.schema_version(OUT version text, OUT digest text) RETURNS record
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select max(name) filter (where name like 'migrations/%'),
        encode(sha256(convert_to(string_agg(name || ' ' || checksum, ',' order by name collate "C"), 'UTF8')), 'hex')
    from sharequeue.schema_migrations
$$;

-- FUNCTION service_drains()

CREATE FUNCTION sharequeue.service_drains() RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select exists (
        select from sharequeue.service_replicas where drains and heard_at > sharequeue.clock() - interval '15 s')
$$;

-- FUNCTION set_clock_offset(interval)

CREATE FUNCTION sharequeue.set_clock_offset(p_amount interval) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
begin
    perform sharequeue.require_read_committed();
    insert into sharequeue.clock_offset (amount) values (p_amount)
    on conflict on constraint clock_offset_pkey do update set amount = excluded.amount;
end
$$;

-- FUNCTION set_service_configs(jsonb)

CREATE FUNCTION sharequeue.set_service_configs(p_configs jsonb) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_before jsonb;
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_service_configs(p_configs);
    lock table sharequeue.service_configs in share row exclusive mode;
    select coalesce(jsonb_object_agg(name, value), '{}') into v_before from sharequeue.service_configs;
    if v_before = p_configs then
        -- The first to say so is written down too: who says otherwise later is told who that was.
        if not exists (select from sharequeue.audit_log where group_id is null and act = 'set_service_configs') then
            perform sharequeue_internal.audit('set_service_configs', null, v_before, p_configs);
        end if;
        return false;
    end if;
    delete from sharequeue.service_configs;
    insert into sharequeue.service_configs (name, value) select key, value from jsonb_each_text(p_configs);
    perform sharequeue_internal.lock_in_order(null, true, true);
    perform sharequeue_internal.compile_group_settings(group_id) from sharequeue.share_groups order by group_id;
    perform sharequeue_internal.audit('set_service_configs', null, v_before, p_configs);
    return true;
end
$$;

-- FUNCTION snapshots(bigint)

CREATE FUNCTION sharequeue.snapshots(p_share_partition_id bigint) RETURNS TABLE(journal_id bigint, taken_at timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select s.journal_id, s.taken_at from sharequeue.journal_snapshots s
    where s.share_partition_id = p_share_partition_id order by s.journal_id desc
$$;

-- FUNCTION state_id()

CREATE FUNCTION sharequeue.state_id() RETURNS uuid
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select state_id from sharequeue.state_identity
$$;

-- FUNCTION stored_configs(text)

CREATE FUNCTION sharequeue.stored_configs(p_group_id text) RETURNS TABLE(name text, value text)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform sharequeue_internal.authorise(p_group_id, 'DESCRIBE');
    perform sharequeue_internal.check_present('the group id', p_group_id);
    return query select c.name, c.value from sharequeue.group_configs c where c.group_id = p_group_id order by c.name;
end
$$;

-- FUNCTION stored_service_configs()

CREATE FUNCTION sharequeue.stored_service_configs() RETURNS TABLE(name text, value text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select name, value from sharequeue.service_configs order by name
$$;

-- FUNCTION sweep(integer)

CREATE FUNCTION sharequeue.sweep(p_limit integer, OUT leases bigint, OUT records bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_at timestamptz := sharequeue.clock();
    v_id bigint;
    v_settled record;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_between('the limit of leases', p_limit, 1, 2147483647);
    leases := 0;
    records := 0;
    for v_id in
        select sp.share_partition_id from sharequeue.share_partitions sp
        where sp.next_expiry <= v_at order by sp.next_expiry limit p_limit
    loop
        exit when leases >= p_limit;
        perform from sharequeue.share_partitions where share_partition_id = v_id for no key update skip locked;
        continue when not found;
        select s.leases, s.records into v_settled
        from sharequeue_internal.settle_lapsed(v_id, v_at, p_limit - leases) as s;
        leases := leases + v_settled.leases;
        records := records + v_settled.records;
    end loop;
    -- By address: by request id it read the whole table each time.
    delete from sharequeue.requests where ctid = any (array(
        select r.ctid from sharequeue.requests r where r.answered_at < v_at - interval '1 hour'
        order by r.answered_at limit 10000));
end
$$;

-- FUNCTION take_service_lease(text, text, uuid, double precision)

CREATE FUNCTION sharequeue.take_service_lease(p_task text, p_holder text, p_token uuid, p_seconds double precision) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_text('the task', p_task, 600);
    perform sharequeue_internal.check_name('the holder', p_holder);
    perform sharequeue_internal.check_present('the token', p_token);
    if not coalesce(p_seconds between 1 and 3600, false) then
        raise exception 'a task is taken for 1 to 3600 seconds, not for %', coalesce(p_seconds::text, 'none')
            using errcode = 'SQ042';
    end if;
    insert into sharequeue.service_leases as l (task, holder, token, expires_at)
    values (p_task, p_holder, p_token, sharequeue.clock() + make_interval(secs => p_seconds))
    on conflict on constraint service_leases_pkey do update
        set holder = excluded.holder, token = excluded.token, expires_at = excluded.expires_at
        where l.token = p_token or l.expires_at <= sharequeue.clock();
    return found;
end
$$;

-- FUNCTION take_snapshot(bigint, boolean)

CREATE FUNCTION sharequeue.take_snapshot(p_share_partition_id bigint, p_wait boolean DEFAULT true) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_sp sharequeue.share_partitions;
    v_at timestamptz;
    v_journal_id bigint;
    v_rows bigint;
    v_written bigint := 1;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_present('the share-partition id', p_share_partition_id),
        sharequeue_internal.check_present('whether to wait', p_wait);
    if p_wait then
        select * into v_sp from sharequeue.share_partitions
        where share_partition_id = p_share_partition_id for no key update;
    else
        select * into v_sp from sharequeue.share_partitions
        where share_partition_id = p_share_partition_id for no key update skip locked;
    end if;
    if not found then
        return null;
    end if;
    perform sharequeue_internal.unfold(p_share_partition_id);
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
        lock_duration_ms, acquired_at, expires_at, fan_out, own_lock_duration)
    select l.share_partition_id, v_at, 'lease', l.lease_id, l.member_id, l.member_epoch, l.token, l.lock_duration_ms,
        l.acquired_at, l.expires_at, l.fan_out, l.own_lock_duration
    from sharequeue.leases l where l.share_partition_id = p_share_partition_id;
    get diagnostics v_rows = row_count;
    v_written := v_written + v_rows;
    insert into sharequeue.journal (share_partition_id, at, kind, cause, delivery_count, records)
    select d.share_partition_id, v_at, 'outcome_total', d.outcome, d.delivery_count, d.records
    from sharequeue.delivery_counts d where d.share_partition_id = p_share_partition_id;
    get diagnostics v_rows = row_count;
    v_written := v_written + v_rows;
    insert into sharequeue.journal_snapshots (share_partition_id, journal_id, taken_at)
    values (p_share_partition_id, v_journal_id, v_at);
    -- The snapshot's own rows are yet to be counted, and are no growth.
    insert into sharequeue.journal_growth (share_partition_id, updates) values (p_share_partition_id, -v_written)
    on conflict on constraint journal_growth_pkey do update set updates = excluded.updates;
    return v_journal_id;
end
$$;

-- FUNCTION take_snapshots(integer, integer)

CREATE FUNCTION sharequeue.take_snapshots(p_updates integer, p_limit integer DEFAULT 100) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_counted bigint;
    v_last bigint;
    v_id bigint;
    v_taken integer := 0;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_between('the number of updates', p_updates, 1, 2147483647),
        sharequeue_internal.check_between('the limit of snapshots', p_limit, 1, 2147483647);
    select journal_id into v_counted from sharequeue.journal_counted for update skip locked;
    if not found then
        return 0;
    end if;
    with grown as (
        select j.share_partition_id, count(*) as updates, max(j.journal_id) as last_id
        from sharequeue.journal j where j.journal_id > v_counted group by j.share_partition_id
    ), counted as (
        insert into sharequeue.journal_growth as g (share_partition_id, updates)
        select share_partition_id, updates from grown order by share_partition_id
        on conflict on constraint journal_growth_pkey do update set updates = g.updates + excluded.updates
    )
    select max(last_id) into v_last from grown;
    if v_last is not null then
        update sharequeue.journal_counted set journal_id = v_last;
    end if;
    for v_id in
        select g.share_partition_id from sharequeue.journal_growth g where g.updates >= p_updates
        order by g.updates desc limit p_limit
    loop
        if sharequeue.take_snapshot(v_id, false) is not null then
            v_taken := v_taken + 1;
        end if;
    end loop;
    -- Of share-partitions that are gone: their last rows were counted after they went.
    delete from sharequeue.journal_growth g where g.updates >= p_updates and not exists (
        select from sharequeue.share_partitions sp where sp.share_partition_id = g.share_partition_id);
    return v_taken;
end
$$;

-- FUNCTION topics_redriven_for_others(text)

CREATE FUNCTION sharequeue.topics_redriven_for_others(p_group_id text) RETURNS SETOF text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select distinct t.topic from sharequeue.redrives r cross join unnest(r.target_topics) as t (topic)
    where r.only_group is not null and r.only_group <> p_group_id
$$;

-- FUNCTION trim_redrive(text, text, integer, bigint, int8multirange)

CREATE FUNCTION sharequeue.trim_redrive(p_topic text, p_topic_id text, p_partition integer, p_sequence bigint, p_offsets int8multirange) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_name('the topic', p_topic), sharequeue_internal.check_name('the topic id', p_topic_id),
        sharequeue_internal.check_between('the partition', p_partition, 0, 2147483647);
    perform sharequeue_internal.check_present('the sequence', p_sequence), sharequeue_internal.check_offsets(p_offsets);
    update sharequeue.redrive_batches b set offsets = b.offsets * p_offsets
    where b.dead_letter_topic = p_topic and b.topic_id = p_topic_id and b.partition = p_partition
        and b.sequence = p_sequence and b.sent_at is null;
end
$$;

-- FUNCTION verify(text)

CREATE FUNCTION sharequeue.verify(p_group_id text DEFAULT NULL::text) RETURNS TABLE(group_id text, topic text, partition integer, violation text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with checked as (
        select * from sharequeue.share_partitions sp where p_group_id is null or sp.group_id = p_group_id
    ), parts as (
        select sp.share_partition_id, sp.spso, sp.speo, f.first_offset, f.last_offset, f.part, f.state,
            f.delivery_count, f.lease_id, f.isolate, f.not_before, f.cause,
            sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) as offsets,
            row(f.state, f.delivery_count, f.lease_id, f.isolate, f.not_before, f.cause)::text as kind
        from checked sp join sharequeue.all_batches f using (share_partition_id)
    ), batches as (
        select share_partition_id, spso, speo, first_offset, max(last_offset) as last_offset,
            min(last_offset) <> max(last_offset) as torn,
            sum(sharequeue.records(offsets)) as added, range_agg(offsets) as together,
            count(*) <> count(distinct kind) as doubled,
            bool_or(state = 0 and lower(offsets) < spso) as below,
            bool_and(state in (2, 4)) as terminal,
            bool_or(state in (2, 4) and offsets @> spso) as head_is_terminal,
            coalesce(sum(sharequeue.records(offsets * int8multirange(int8range(spso, null))))
                filter (where state in (2, 4)), 0) as complete
        from parts group by share_partition_id, spso, speo, first_offset
    ), ordered as (
        select *, lag(last_offset) over (partition by share_partition_id order by first_offset) as before from batches
    ), violations as (
        select share_partition_id, 'an offset is in two states at once' as violation from ordered
        where added <> sharequeue.records(together) or before >= first_offset
        union all
        select share_partition_id, 'a batch has two rows of one state' from ordered where doubled
        union all
        select share_partition_id, 'the states of a batch do not fill it' from ordered
        where torn or together * int8multirange(int8range(spso, null))
            <> int8multirange(int8range(first_offset, last_offset + 1)) * int8multirange(int8range(spso, null))
            or not together <@ int8multirange(int8range(first_offset, last_offset + 1))
        union all
        select share_partition_id, 'a batch lies at or past SPEO' from ordered where last_offset >= speo
        union all
        select share_partition_id, 'an offset below SPSO is still available, or a finished batch still there'
        from ordered where below or (terminal and last_offset < spso)
        union all
        select o.share_partition_id, 'the record at SPSO is terminal' from ordered o
        join checked sp using (share_partition_id) where o.head_is_terminal and not sp.advance_due
        union all
        select sp.share_partition_id, 'there is nothing in flight between SPSO and SPEO' from checked sp
        where sp.spso < sp.speo and not exists (select from parts p where p.share_partition_id = sp.share_partition_id
            and p.last_offset >= sp.spso)
        union all
        select sp.share_partition_id, 'the delivery-complete count does not match the terminal records in flight'
        from checked sp
        where sp.delivery_complete_count <> coalesce((
            select sum(o.complete) from ordered o where o.share_partition_id = sp.share_partition_id), 0)
        union all
        select share_partition_id, 'a leased record has delivery count 0' from parts
        where state = 1 and delivery_count < 1
        union all
        select share_partition_id, 'a row of a batch says what cannot be' from parts
        where state not between 0 and 4 or delivery_count < 0 or first_offset < 0 or isempty(offsets)
            or (state = 1) <> (lease_id is not null) or (isolate is not null and (isolate < 1 or state <> 0))
            or (not_before is not null and state <> 0)
            or (state = 3 and cause is distinct from 'rejected' and cause is distinct from 'exceeded')
            or cause not in ('rejected', 'exceeded', 'gap')
        union all
        select sp.share_partition_id, 'a share-partition says what cannot be' from checked sp
        where not (0 <= sp.spso and sp.spso <= sp.speo and sp.delivery_complete_count >= 0 and sp.partition >= 0)
            or sp.status not in ('active', 'topic_recreated')
        union all
        select sp.share_partition_id, 'something is redeliverable and not marked so' from checked sp
        where not sp.redeliverable and exists (
            select from parts p where p.share_partition_id = sp.share_partition_id and p.state = 0)
        union all
        select c.share_partition_id, 'a circuit breaker says what cannot be' from sharequeue.circuit_breakers c
        join checked using (share_partition_id)
        where c.state not in ('closed', 'open', 'probing') or (c.state = 'probing') = isempty(c.probe)
            or (c.state <> 'closed') <> (c.retry_at is not null) or c.failed > c.answered or c.failed < 0
        union all
        select l.share_partition_id, 'a lease holds nothing' from sharequeue.all_leases l
        join checked using (share_partition_id)
        where not exists (select from sharequeue.all_batches f where f.lease_id = l.lease_id)
        union all
        select l.share_partition_id, 'a lock lapses before the share-partition says' from sharequeue.all_leases l
        join checked sp using (share_partition_id) where sp.next_expiry is null or l.expires_at < sp.next_expiry
        union all
        select p.share_partition_id, 'a record is held under a lease of another share-partition, or of none' from parts p
        where p.state = 1 and not exists (select from sharequeue.all_leases l
            where l.lease_id = p.lease_id and l.share_partition_id = p.share_partition_id)
    )
    select sp.group_id, sp.topic, sp.partition, v.violation
    from violations v join checked sp using (share_partition_id)
$$;

-- FUNCTION verify_journal(text, integer)

CREATE FUNCTION sharequeue.verify_journal(p_group_id text DEFAULT NULL::text, p_snapshots integer DEFAULT 1) RETURNS TABLE(group_id text, topic text, partition integer, journal_id bigint, differs text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with starts as (
        select sp.share_partition_id as id, sp.group_id, sp.topic, sp.partition, s.journal_id
        from sharequeue.share_partitions sp
        left join lateral (
            select s.journal_id from sharequeue.journal_snapshots s where s.share_partition_id = sp.share_partition_id
            order by s.journal_id desc
            limit sharequeue_internal.check_between('the number of snapshots', p_snapshots, 1, 2147483647)) as s on true
        where p_group_id is null or sp.group_id = p_group_id
    )
    select s.group_id, s.topic, s.partition, s.journal_id, d.differs
    from starts s cross join lateral (
        select 'there is no snapshot' as differs where s.journal_id is null
        union all
        select 'share_partitions' where s.journal_id is not null and (
            select row(sp.spso, sp.speo, sp.delivery_complete_count, sp.accepted_first, sp.lost_records,
                sp.dead_letter_sequence, sp.next_expiry, sp.state_epoch, sp.redeliverable, sp.advance_due, sp.status,
                sp.paused_reason, sp.topic_id)
            from sharequeue.share_partitions sp where sp.share_partition_id = s.id
        ) is distinct from (
            select row(r.spso, r.speo, r.delivery_complete_count, r.accepted_first, r.lost_records,
                r.dead_letter_sequence, r.next_expiry, r.state_epoch, r.redeliverable, r.advance_due, r.status,
                r.paused_reason, r.topic_id)
            from sharequeue.replay_share_partition(s.id, s.journal_id) as r)
        union all
        select 'in_flight_batches' where s.journal_id is not null and exists (
            select from (
                select f.first_offset, f.last_offset, f.part, f.state, f.delivery_count, f.lease_id, f.isolate,
                    f.not_before, f.cause, f.offsets
                from sharequeue.all_batches f where f.share_partition_id = s.id
            ) as f full join sharequeue.replay_batches(s.id, s.journal_id) as r
                on r.first_offset = f.first_offset and r.part = f.part
            where f is distinct from r)
        union all
        select 'leases' where s.journal_id is not null and exists (
            select from (
                select l.lease_id, l.member_id, l.member_epoch, l.token, l.lock_duration_ms, l.acquired_at, l.expires_at,
                    l.fan_out, l.own_lock_duration
                from sharequeue.all_leases l where l.share_partition_id = s.id
            ) as l full join sharequeue.replay_leases(s.id, s.journal_id) as r on r.lease_id = l.lease_id
            where l is distinct from r)
        union all
        select 'delivery_counts' where s.journal_id is not null and exists (
            select from (
                select d.outcome, d.delivery_count, d.records from sharequeue.delivery_counts d
                where d.share_partition_id = s.id
            ) as d full join sharequeue.replay_outcomes(s.id, s.journal_id) as r
                on r.outcome = d.outcome and r.delivery_count = d.delivery_count
            where d is distinct from r)
    ) as d
$$;

-- FUNCTION absent(text, text, integer)

CREATE FUNCTION sharequeue_internal.absent(p_group_id text, p_topic text, p_partition integer, OUT error_code smallint, OUT error_message text) RETURNS record
    LANGUAGE plpgsql STABLE
    AS $$
begin
    if not sharequeue_internal.authorised(p_group_id, 'READ') then
        error_code := 30;
        error_message := format('%s may not READ group %s', sharequeue.principal(), p_group_id);
    elsif exists (select from sharequeue.share_groups where group_id = p_group_id) then
        error_code := 3;
        error_message := format('share-partition %s-%s of group %s is not initialised', p_topic, p_partition, p_group_id);
    else
        error_code := 69;
        error_message := format('there is no share group %s', p_group_id);
    end if;
end
$$;

-- TABLE group_settings

CREATE TABLE sharequeue.group_settings (
    group_id text NOT NULL,
    delivery_count_limit integer NOT NULL,
    lock_duration_ms integer NOT NULL,
    min_lock_duration_ms integer NOT NULL,
    max_lock_duration_ms integer NOT NULL,
    max_record_locks bigint NOT NULL,
    read_committed boolean NOT NULL,
    renew_enabled boolean NOT NULL,
    dead_letters boolean NOT NULL,
    paused_reason text,
    acls_apply boolean DEFAULT false NOT NULL,
    breaker_percent integer DEFAULT 0 NOT NULL,
    breaker_min_records bigint DEFAULT 20 NOT NULL,
    breaker_window_records bigint DEFAULT 100 NOT NULL,
    breaker_probe_records bigint DEFAULT 10 NOT NULL,
    breaker_open_ms integer DEFAULT 30000 NOT NULL,
    refund_cancelled boolean DEFAULT false NOT NULL
)
WITH (fillfactor='70');

-- FUNCTION acknowledge_parts(bigint, sharequeue.group_settings, bigint[], bigint, bigint, sharequeue.acknowledgements, timestamp with time zone)

CREATE FUNCTION sharequeue_internal.acknowledge_parts(p_id bigint, p_settings sharequeue.group_settings, p_leases bigint[], p_from bigint, p_last bigint, p_acknowledgements sharequeue.acknowledgements, p_not_before timestamp with time zone) RETURNS TABLE(outcome text, state smallint, delivery_count smallint, records bigint)
    LANGUAGE plpgsql
    SET work_mem TO '64MB'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_dead smallint := case when p_settings.dead_letters then 3 else 4 end;
    v_limit integer := p_settings.delivery_count_limit;
begin
    return query
        with held as materialized (
            select dense_rank() over (order by f.first_offset) as batch, f.ctid as at, f.first_offset, f.last_offset, f.part,
                f.delivery_count, f.offsets is null as uniform,
                sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) as offsets
            from unnest(p_leases) as l (lease_id)
            cross join lateral (
                select ctid, * from sharequeue.in_flight_batches
                where lease_id = l.lease_id and first_offset between p_from and p_last offset 0) as f
        ), batches as materialized (
            select array_agg(first_offset order by batch) as firsts
            from (select distinct batch, first_offset from held) as b
        ), runs as (
            select type, run, generate_series(greatest(low, 1), high) as batch
            from (
                select a.type, a.run, width_bucket(lower(a.run), b.firsts) as low,
                    width_bucket(upper(a.run) - 1, b.firsts) as high
                from batches b cross join lateral (
                    select 1 as type, unnest((p_acknowledgements).accept) as run
                    union all select 2, unnest((p_acknowledgements).release)
                    union all select 3, unnest((p_acknowledgements).reject)
                    union all select 0, unnest((p_acknowledgements).gap)
                ) as a where cardinality(b.firsts) > 1
            ) as a
        ), slices as (
            select 1 as batch, (p_acknowledgements).accept, (p_acknowledgements).release, (p_acknowledgements).reject, (p_acknowledgements).gap
            from batches where cardinality(firsts) = 1
            union all
            select batch, coalesce(range_agg(run) filter (where type = 1), '{}'),
                coalesce(range_agg(run) filter (where type = 2), '{}'),
                coalesce(range_agg(run) filter (where type = 3), '{}'),
                coalesce(range_agg(run) filter (where type = 0), '{}')
            from runs group by batch
        ), together as (
            -- Grouped, not joined: a plan made for a few batches would join by a loop in a loop.
            select min(first_offset) as first_offset, min(last_offset) as last_offset,
                array_agg(at) filter (where part is not null) as ats,
                array_agg(delivery_count) filter (where part is not null) as delivery_counts,
                array_agg(uniform) filter (where part is not null) as uniforms,
                array_agg(offsets) filter (where part is not null) as sets,
                (array_agg(accept) filter (where part is null))[1] as accept,
                (array_agg(release) filter (where part is null))[1] as release,
                (array_agg(reject) filter (where part is null))[1] as reject,
                (array_agg(gap) filter (where part is null))[1] as gap
            from (
                select batch, at, first_offset, last_offset, part, delivery_count, uniform, offsets, null as accept,
                    null as release, null as reject, null as gap
                from held
                union all
                select batch, null, null, null, null, null, null, null, accept, release, reject, gap from slices
            ) as b
            group by batch having bool_or(part is null)
        ), parts as materialized (
            select t.first_offset, t.last_offset, h.at, h.delivery_count, h.offsets, t.accept, t.release, t.reject,
                t.gap, h.offsets - t.accept - t.release - t.reject - t.gap as rest,
                h.uniform and (h.offsets <@ t.accept or h.offsets <@ t.release or h.offsets <@ t.reject
                    or h.offsets <@ t.gap) as whole
            from together t
            cross join unnest(t.ats, t.delivery_counts, t.uniforms, t.sets)
                as h (at, delivery_count, uniform, offsets)
        ), pieces as materialized (
            select p.at, p.first_offset, p.last_offset, p.delivery_count, p.whole, a.outcome, a.state, a.cause,
                case when a.state = 0 then p_not_before end as not_before, x.offsets,
                (select sum(upper(r) - lower(r)) from (select unnest(x.offsets) as r) as r)::bigint as records
            from parts p
            cross join lateral (values
                ('accepted', 2::smallint, null, p.accept),
                ('exceeded', case when p.delivery_count >= v_limit then v_dead else 0::smallint end,
                    case when p.delivery_count >= v_limit then 'exceeded' end, p.release),
                ('rejected', v_dead, 'rejected', p.reject),
                ('gap', 4::smallint, 'gap', p.gap)
            ) as a (outcome, state, cause, offsets)
            cross join lateral (select p.offsets * a.offsets as offsets offset 0) as x
            where not isempty(x.offsets)
        ), whole as (
            update sharequeue.in_flight_batches f
            set state = p.state, lease_id = null, cause = p.cause, not_before = p.not_before
            from pieces p where p.whole and f.ctid = p.at
        ), gone as (
            delete from sharequeue.in_flight_batches f using parts p
            where isempty(p.rest) and not p.whole and f.ctid = p.at
        ), kept as (
            update sharequeue.in_flight_batches f set offsets = p.rest
            from parts p where not isempty(p.rest) and p.rest <> p.offsets and f.ctid = p.at
        ), targets as materialized (
            select t.*, f.at
            from (
                select first_offset, last_offset, state, delivery_count, cause, not_before,
                    range_agg(offsets) as offsets
                from pieces where not whole
                group by first_offset, last_offset, state, delivery_count, cause, not_before
            ) as t
            -- The row that has offsets of the batch in that state already.
            left join lateral (
                select ctid as at from sharequeue.in_flight_batches
                where share_partition_id = p_id and first_offset = t.first_offset and state = t.state
                    and delivery_count = t.delivery_count and lease_id is null and isolate is null
                    and cause is not distinct from t.cause and not_before is not distinct from t.not_before
                offset 0) as f on true
        ), joined as (
            update sharequeue.in_flight_batches f set offsets = f.offsets + t.offsets
            from targets t where f.ctid = t.at
        ), added as (
            insert into sharequeue.in_flight_batches
                (share_partition_id, first_offset, last_offset, part, state, delivery_count, cause, not_before, offsets)
            select p_id, t.first_offset, t.last_offset, row_number() over (partition by t.first_offset order by lower(t.offsets)) + (
                    select max(f.part) from sharequeue.in_flight_batches f
                    where f.share_partition_id = p_id and f.first_offset = t.first_offset),
                t.state, t.delivery_count, t.cause, t.not_before, t.offsets
            from targets t where t.at is null
        )
        select p.outcome, p.state, p.delivery_count, sum(p.records)::bigint
        from pieces p group by p.outcome, p.state, p.delivery_count;
end
$$;

-- TABLE share_partitions

CREATE TABLE sharequeue.share_partitions (
    share_partition_id bigint NOT NULL,
    group_id text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    topic_id text NOT NULL,
    status text DEFAULT 'active'::text NOT NULL,
    state_epoch integer NOT NULL,
    spso bigint NOT NULL,
    speo bigint NOT NULL,
    delivery_complete_count bigint DEFAULT 0 NOT NULL,
    lost_records bigint DEFAULT 0 NOT NULL,
    log_start bigint DEFAULT 0 NOT NULL,
    log_end bigint DEFAULT 0 NOT NULL,
    last_stable_offset bigint DEFAULT 0 NOT NULL,
    observed_at timestamp with time zone,
    dead_letter_sequence bigint DEFAULT 0 NOT NULL,
    next_expiry timestamp with time zone,
    redeliverable boolean DEFAULT false NOT NULL,
    accepted_first bigint DEFAULT 0 NOT NULL,
    advance_due boolean DEFAULT false NOT NULL,
    paused_reason text,
    folded_lease_id bigint,
    folded_acquired_at timestamp with time zone,
    folded_lag bigint,
    folded_max_record_locks bigint,
    folded_clock_offset interval,
    folded_token uuid,
    folded_request_id uuid,
    folded_lock_duration_ms integer,
    folded_member_epoch integer,
    folded_read_committed boolean,
    folded_fan_out boolean,
    folded_member_id text,
    previous_topic_id text
)
WITH (fillfactor='50');

-- FUNCTION acknowledge_under_lock(sharequeue.share_partitions, sharequeue.group_settings, text, uuid, bigint[], bigint[], smallint[], integer[], boolean, timestamp with time zone, timestamp with time zone)

CREATE FUNCTION sharequeue_internal.acknowledge_under_lock(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_member_id text, p_token uuid, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[], p_renew_allowed boolean, p_not_before timestamp with time zone, p_at timestamp with time zone) RETURNS sharequeue.acknowledged
    LANGUAGE plpgsql
    AS $$
declare
    v_result sharequeue.acknowledged;
    v_sp sharequeue.share_partitions := p_sp;
    v_read record;
    v_acknowledgements sharequeue.acknowledgements;
    v_span int8multirange;
    v_cached int8multirange;
    v_held int8multirange;
    v_failed record;
begin
    select * into v_read
    from sharequeue_internal.read_batches(p_firsts, p_lasts, p_types, p_type_counts, p_renew_allowed);
    if v_read.wrong is not null then
        v_result.error_code := 42;
        v_result.error_message := v_read.wrong;
        return v_result;
    end if;
    v_result.error_code := 0;
    if v_sp.next_expiry <= p_at then
        perform sharequeue_internal.settle_lapsed(v_sp.share_partition_id, p_at);
        select * into v_sp from sharequeue.share_partitions where share_partition_id = p_sp.share_partition_id;
    end if;
    v_acknowledgements := sharequeue_internal.acknowledgements_from(v_read.acknowledgements, v_sp.spso);
    v_span := sharequeue_internal.span(v_acknowledgements);
    if not isempty(v_span) then
        v_held := sharequeue_internal.held(v_sp.share_partition_id, lower(v_span), upper(v_span) - 1, p_member_id, p_token);
        if v_read.doubled or sharequeue_internal.first_outside(v_acknowledgements, v_held) is not null
                or (not isempty((v_acknowledgements).renew) and not p_settings.renew_enabled) then
            -- Something is not held, or named twice: which batch fails first, if any does?
            v_cached := sharequeue_internal.cached(v_sp.share_partition_id, lower(v_span), upper(v_span) - 1);
            select * into v_failed from sharequeue_internal.first_failure(v_sp, p_settings, p_firsts, p_lasts, p_types,
                p_type_counts, v_cached, v_held,
                (v_acknowledgements).accept + (v_acknowledgements).release + (v_acknowledgements).reject + (v_acknowledgements).gap + (v_acknowledgements).renew);
            if v_failed.run is not null then
                select coalesce(range_agg(int8range(r.first, r.past)), '{}') into v_acknowledgements.renew
                from sharequeue_internal.runs(p_firsts, p_lasts, p_types, p_type_counts) as r
                where r.type = 4 and r.run < v_failed.run;
                perform sharequeue_internal.renew_offsets(v_sp.share_partition_id, p_settings, p_member_id, p_token,
                    (v_acknowledgements).renew * v_held, p_at);
                v_result.error_code := v_failed.error_code;
                v_result.error_message := v_failed.error_message;
                return v_result;
            end if;
            v_acknowledgements.renew := (v_acknowledgements).renew
                - ((v_acknowledgements).accept + (v_acknowledgements).release + (v_acknowledgements).reject + (v_acknowledgements).gap);
        end if;
    end if;
    return sharequeue_internal.apply_acknowledgements(
        v_sp, p_settings, p_member_id, p_token, v_acknowledgements, coalesce(v_held, '{}'), p_not_before, p_at);
end
$$;

-- FUNCTION acknowledgements_fault(sharequeue.acknowledgements)

CREATE FUNCTION sharequeue_internal.acknowledgements_fault(p_acknowledgements sharequeue.acknowledgements) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    v_accept int8multirange := (p_acknowledgements).accept;
    v_release int8multirange := (p_acknowledgements).release;
    v_reject int8multirange := (p_acknowledgements).reject;
    v_gap int8multirange := (p_acknowledgements).gap;
    v_renew int8multirange := (p_acknowledgements).renew;
begin
    -- Plain expressions, where a query over the five would take 70 µs.
    if v_accept is null or v_release is null or v_reject is null or v_gap is null or v_renew is null then
        return 'every set of offsets must be given; an empty one is {}';
    elsif lower_inf(v_accept) or upper_inf(v_accept) or lower_inf(v_release) or upper_inf(v_release)
            or lower_inf(v_reject) or upper_inf(v_reject) or lower_inf(v_gap) or upper_inf(v_gap)
            or lower_inf(v_renew) or upper_inf(v_renew) or least(lower(v_accept), lower(v_release), lower(v_reject),
                lower(v_gap), lower(v_renew)) < 0 then
        return 'offsets lie between 0 and 2^63 - 2';
    -- A range takes 21 bytes: below that they need not be counted.
    elsif pg_column_size(p_acknowledgements) > 21 * sharequeue_internal.max_runs() and (
            select sum((select count(*) from (select unnest(s)) as ranges))
            from unnest(array[v_accept, v_release, v_reject, v_gap, v_renew]) as s) > sharequeue_internal.max_runs() then
        return format('more than %s runs of offsets in one call', sharequeue_internal.max_runs());
    elsif v_accept && v_release or v_accept && v_reject or v_accept && v_gap or v_accept && v_renew
            or v_release && v_reject or v_release && v_gap or v_release && v_renew or v_reject && v_gap
            or v_reject && v_renew or v_gap && v_renew then
        return 'an offset has more than one acknowledgement: the sets of one call must not overlap';
    end if;
    return null;
end
$$;

-- FUNCTION acknowledgements_from(sharequeue.acknowledgements, bigint)

CREATE FUNCTION sharequeue_internal.acknowledgements_from(p_acknowledgements sharequeue.acknowledgements, p_first bigint) RETURNS sharequeue.acknowledgements
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select row(sharequeue_internal.offsets_from((p_acknowledgements).accept, p_first),
        sharequeue_internal.offsets_from((p_acknowledgements).release, p_first), sharequeue_internal.offsets_from((p_acknowledgements).reject, p_first),
        sharequeue_internal.offsets_from((p_acknowledgements).gap, p_first), sharequeue_internal.offsets_from((p_acknowledgements).renew, p_first)
    )::sharequeue.acknowledgements
$$;

-- FUNCTION acls_apply(text)

CREATE FUNCTION sharequeue_internal.acls_apply(p_group_id text) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    select not coalesce((select allow_everyone_if_no_acl_found from sharequeue.authorizer), true)
        or exists (select from sharequeue.acls where sharequeue_internal.covers(pattern_type, resource_name, p_group_id))
$$;

-- FUNCTION acquire_under_lock(sharequeue.share_partitions, sharequeue.group_settings, text, integer, bigint, integer, text, text, bigint, bigint[], bigint[], int8multirange, timestamp with time zone, int8multirange)

CREATE FUNCTION sharequeue_internal.acquire_under_lock(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_member_id text, p_member_epoch integer, p_max_records bigint, p_lock_duration_ms integer, p_redelivery text, p_mode text, p_batch_size bigint, p_log_firsts bigint[], p_log_lasts bigint[], p_aborted int8multirange, p_at timestamp with time zone, p_leave_out int8multirange) RETURNS SETOF sharequeue.acquired
    LANGUAGE plpgsql
    AS $$
declare
    v_sp sharequeue.share_partitions := p_sp;
    v_lock_ms integer := coalesce(p_lock_duration_ms, p_settings.lock_duration_ms);
    v_expires_at timestamptz := p_at + v_lock_ms * interval '1 millisecond';
    v_lease_id bigint;
    v_token uuid := gen_random_uuid();
    v_taken sharequeue.taken;
    v_read_end bigint := case when p_settings.read_committed then p_sp.last_stable_offset else p_sp.log_end end;
    v_most bigint := p_max_records;
    v_probe boolean := false;
    v_at integer;
begin
    if v_sp.next_expiry <= p_at then
        perform sharequeue_internal.settle_lapsed(v_sp.share_partition_id, p_at);
        select * into v_sp from sharequeue.share_partitions where share_partition_id = p_sp.share_partition_id;
    end if;
    if p_settings.breaker_percent > 0 then
        select * into v_most, v_probe from sharequeue_internal.circuit_allows(v_sp, p_settings, v_most, p_at);
    end if;
    if v_most = 0 or v_sp.paused_reason is not null or p_settings.paused_reason is not null then
        return;
    end if;
    v_lease_id := nextval('sharequeue.leases_lease_id_seq');
    if p_redelivery = 'fan_out' then
        v_taken := sharequeue_internal.take_fan_out(v_sp, p_settings, v_most, v_read_end, v_lease_id, p_at, p_leave_out);
    else
        -- A probe is small whatever the log's batches are: its bound is hard.
        v_taken := sharequeue_internal.take_kafka(v_sp, p_settings, v_most, v_read_end, v_lease_id, p_at,
            case when v_probe then 'record_limit' else p_mode end, coalesce(p_batch_size, v_most), p_log_firsts,
            p_log_lasts, case when p_settings.read_committed then p_aborted else '{}' end);
    end if;
    if v_probe then
        perform sharequeue_internal.circuit_probes(v_sp.share_partition_id, v_lease_id);
    end if;
    -- Also where nothing is returned: aborted records may have been taken and archived.
    if exists (select from sharequeue.in_flight_batches where lease_id = v_lease_id) then
        insert into sharequeue.leases (lease_id, share_partition_id, member_id, member_epoch, token, lock_duration_ms,
            acquired_at, expires_at, fan_out, own_lock_duration)
        values (v_lease_id, v_sp.share_partition_id, p_member_id, coalesce(p_member_epoch, -1), v_token, v_lock_ms,
            p_at, v_expires_at, p_redelivery = 'fan_out', p_lock_duration_ms is not null);
        update sharequeue.share_partitions set next_expiry = v_expires_at
        where share_partition_id = v_sp.share_partition_id and (next_expiry is null or next_expiry > v_expires_at);
    end if;
    for v_at in 1 .. coalesce(array_length(v_taken.delivery_counts, 1), 0) loop
        return next row(0::smallint, null, v_lease_id, v_token, v_sp.state_epoch, v_lock_ms, v_expires_at,
            v_taken.delivery_counts[v_at], v_taken.offsets[v_at])::sharequeue.acquired;
    end loop;
end
$$;

-- FUNCTION advance_log_start(sharequeue.share_partitions, bigint)

CREATE FUNCTION sharequeue_internal.advance_log_start(p_sp sharequeue.share_partitions, p_log_start bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    v_id bigint := p_sp.share_partition_id;
    v_gone int8multirange := int8multirange(int8range(null, p_log_start));
    v_part record;
    v_lost bigint := 0;
    v_passed bigint := 0;
begin
    perform sharequeue_internal.unfold(v_id);
    for v_part in
        select first_offset, last_offset, part, state,
            sharequeue_internal.offsets_of(first_offset, last_offset, offsets) * v_gone as offsets
        from sharequeue.in_flight_batches
        where share_partition_id = v_id and first_offset < p_log_start and state <> 3
            and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) && v_gone
    loop
        if v_part.state = 1 then
            -- Once: below SPSO is what an earlier log start has overtaken.
            v_lost := v_lost + sharequeue.records(v_part.offsets * int8multirange(int8range(p_sp.spso, null)));
            continue;
        elsif v_part.state = 0 then
            v_lost := v_lost + sharequeue.records(v_part.offsets);
        else
            v_passed := v_passed + sharequeue.records(
                v_part.offsets * int8multirange(int8range(p_sp.spso, null)));
        end if;
        perform sharequeue_internal.take(v_id, v_part.first_offset, v_part.part, v_part.offsets);
    end loop;
    update sharequeue.share_partitions
    set spso = p_log_start, speo = greatest(speo, p_log_start),
        lost_records = lost_records + v_lost + greatest(0, p_log_start - speo),
        delivery_complete_count = delivery_complete_count - v_passed, advance_due = true
    where share_partition_id = v_id;
end
$$;

-- FUNCTION advance_spso(bigint, bigint, bigint)

CREATE FUNCTION sharequeue_internal.advance_spso(p_share_partition_id bigint, p_completed bigint DEFAULT 0, p_accepted_first bigint DEFAULT 0) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    v_sp record;
    v_first bigint;
    v_to bigint;
    v_passed bigint := 0;
begin
    select spso, speo, advance_due into v_sp from sharequeue.share_partitions where share_partition_id = p_share_partition_id;
    -- The first batch with something that holds SPSO, in the order of the primary key: behind a pinned head the walk ends
    -- at its first row, whatever lies behind.
    select first_offset into v_first
    from sharequeue.in_flight_batches
    where share_partition_id = p_share_partition_id and last_offset >= v_sp.spso and state not in (2, 4)
        and (offsets is null or upper(offsets) > v_sp.spso)
    order by share_partition_id, first_offset, part limit 1;
    if found then
        select min(case when offsets is null then greatest(first_offset, v_sp.spso)
            else lower(sharequeue_internal.offsets_from(offsets, v_sp.spso)) end)
        into v_to
        from sharequeue.in_flight_batches
        where share_partition_id = p_share_partition_id and first_offset = v_first and state not in (2, 4);
    else
        v_to := v_sp.speo;
    end if;
    if v_to > v_sp.spso then
        select coalesce(sum(least(last_offset + 1, v_to) - greatest(first_offset, v_sp.spso)), 0) into v_passed
        from (
            select distinct first_offset, last_offset from sharequeue.in_flight_batches
            where share_partition_id = p_share_partition_id and first_offset < v_to and last_offset >= v_sp.spso
        ) as b;
        delete from sharequeue.in_flight_batches
        where share_partition_id = p_share_partition_id and first_offset < v_to and last_offset < v_to
            and state in (2, 4);
    end if;
    if v_to > v_sp.spso or p_completed <> 0 or v_sp.advance_due then
        update sharequeue.share_partitions
        set spso = v_to, advance_due = false, speo = greatest(speo, v_to), accepted_first = accepted_first + p_accepted_first,
            delivery_complete_count = delivery_complete_count + p_completed - v_passed
        where share_partition_id = p_share_partition_id;
    end if;
end
$$;

-- FUNCTION apply_acknowledgements(sharequeue.share_partitions, sharequeue.group_settings, text, uuid, sharequeue.acknowledgements, int8multirange, timestamp with time zone, timestamp with time zone)

CREATE FUNCTION sharequeue_internal.apply_acknowledgements(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_member_id text, p_token uuid, p_acknowledgements sharequeue.acknowledgements, p_asked int8multirange, p_not_before timestamp with time zone, p_at timestamp with time zone) RETURNS sharequeue.acknowledged
    LANGUAGE plpgsql
    AS $$
declare
    v_result sharequeue.acknowledged;
    v_id bigint := p_sp.share_partition_id;
    v_acknowledgements sharequeue.acknowledgements;
    v_from bigint;
    v_last bigint := upper(p_asked) - 1;
    v_ended record;
    v_leases bigint[] := '{}';
    v_completed bigint := 0;
    v_accepted_first bigint := 0;
    -- To the second, so that different moments do not fragment a batch.
    v_not_before timestamptz := date_trunc('second', p_not_before + interval '999999 microseconds');
begin
    v_result.error_code := 0;
    v_result.accepted := 0;
    v_result.released := 0;
    v_result.rejected := 0;
    v_result.gaps := 0;
    v_result.exhausted := 0;
    if p_settings.breaker_percent > 0 then
        v_not_before := greatest(
            v_not_before, sharequeue_internal.circuit_acknowledgements(v_id, p_settings, p_acknowledgements, p_asked, p_at));
    end if;
    if v_last is not null then
        v_acknowledgements := sharequeue_internal.acknowledgements_from(p_acknowledgements, p_sp.spso);
        v_from := sharequeue_internal.batch_at(v_id, lower(p_asked));
        v_leases := sharequeue_internal.leases_between(v_id, v_from, v_last, p_member_id, p_token);
        if p_settings.dead_letters and not (isempty((v_acknowledgements).release) and isempty((v_acknowledgements).reject)) then
            perform sharequeue_internal.note_attempts(v_id, v_leases, (v_acknowledgements).release + (v_acknowledgements).reject);
        end if;
        for v_ended in
            select * from sharequeue_internal.acknowledge_parts(v_id, p_settings, v_leases, v_from, v_last, v_acknowledgements,
                case when v_not_before > p_at then v_not_before end)
        loop
            case v_ended.outcome
                when 'accepted' then
                    v_result.accepted := v_result.accepted + v_ended.records;
                    if v_ended.delivery_count = 1 then
                        v_accepted_first := v_accepted_first + v_ended.records;
                    end if;
                when 'rejected' then v_result.rejected := v_result.rejected + v_ended.records;
                when 'gap' then v_result.gaps := v_result.gaps + v_ended.records;
                else
                    if v_ended.state = 0 then
                        v_result.released := v_result.released + v_ended.records;
                    else
                        v_result.exhausted := v_result.exhausted + v_ended.records;
                    end if;
            end case;
            if v_ended.state in (2, 4) then
                v_completed := v_completed + v_ended.records;
                if v_ended.state = 4 or v_ended.delivery_count > 1 then
                    perform sharequeue_internal.count_outcome(v_id, v_ended.outcome, v_ended.delivery_count, v_ended.records);
                end if;
            end if;
        end loop;
    end if;
    if p_token is not null then
        v_leases := v_leases || sharequeue_internal.let_go_overtaken(p_sp, p_member_id, p_token);
    end if;
    if not isempty((v_acknowledgements).renew) then
        perform sharequeue_internal.renew_offsets(v_id, p_settings, p_member_id, p_token, (v_acknowledgements).renew, p_at);
    end if;
    delete from sharequeue.leases l where l.lease_id = any (v_leases)
        and not exists (select from sharequeue.in_flight_batches f where f.lease_id = l.lease_id);
    if v_result.released > 0 then
        update sharequeue.share_partitions set redeliverable = true
        where share_partition_id = v_id and not redeliverable;
    end if;
    perform sharequeue_internal.advance_spso(v_id, v_completed, v_accepted_first);
    -- Last, when SPSO has taken along what it passes.
    if v_last is not null then
        perform sharequeue_internal.join_terminal(v_id, v_from, v_last);
    end if;
    select spso, greatest(0, log_end - spso - delivery_complete_count) into v_result.spso, v_result.lag
    from sharequeue.share_partitions where share_partition_id = v_id;
    return v_result;
end
$$;

-- FUNCTION archive_available(bigint, bigint, bigint)

CREATE FUNCTION sharequeue_internal.archive_available(p_id bigint, p_first bigint, p_last bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
declare
    v_gone int8multirange := int8multirange(int8range(p_first, p_last + 1));
    v_part record;
    v_archived bigint := 0;
begin
    for v_part in
        select first_offset, last_offset, part, delivery_count,
            sharequeue_internal.offsets_of(first_offset, last_offset, offsets) * v_gone as offsets
        from sharequeue.in_flight_batches
        where share_partition_id = p_id and state = 0 and first_offset <= p_last and last_offset >= p_first
            and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) && v_gone
    loop
        perform sharequeue_internal.take(p_id, v_part.first_offset, v_part.part, v_part.offsets);
        perform sharequeue_internal.place(p_id, v_part.first_offset, v_part.last_offset, 4::smallint, v_part.delivery_count,
            v_part.offsets, null, 'gap');
        perform sharequeue_internal.count_outcome(p_id, 'gap', v_part.delivery_count, sharequeue.records(v_part.offsets));
        perform sharequeue_internal.join_terminal(p_id, v_part.first_offset, v_part.first_offset);
        v_archived := v_archived + sharequeue.records(v_part.offsets);
    end loop;
    update sharequeue.share_partitions set delivery_complete_count = delivery_complete_count + v_archived, advance_due = true
    where share_partition_id = p_id and v_archived > 0;
    return v_archived;
end
$$;

-- FUNCTION audit(text, text, jsonb, jsonb)

CREATE FUNCTION sharequeue_internal.audit(p_act text, p_group_id text, p_before jsonb, p_after jsonb) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    insert into sharequeue.audit_log (happened_at, principal, role_name, act, group_id, before, after)
    values (sharequeue.clock(), sharequeue.principal(), session_user, p_act, p_group_id, p_before, p_after);
end
$$;

-- FUNCTION audit_group_config()

CREATE FUNCTION sharequeue_internal.audit_group_config() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if tg_op = 'UPDATE' and old.value = new.value then
        return null;
    end if;
    perform sharequeue_internal.audit('alter_group_config', coalesce(new.group_id, old.group_id),
        case when tg_op <> 'INSERT' then jsonb_build_object(old.name, old.value) end,
        case when tg_op <> 'DELETE' then jsonb_build_object(new.name, new.value) end);
    return null;
end
$$;

-- FUNCTION audit_log_is_append_only()

CREATE FUNCTION sharequeue_internal.audit_log_is_append_only() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
begin
    raise exception 'the audit log is append only' using errcode = 'insufficient_privilege';
end
$$;

-- FUNCTION authorise(text, text)

CREATE FUNCTION sharequeue_internal.authorise(p_group_id text, p_operation text) RETURNS void
    LANGUAGE plpgsql STABLE
    AS $$
begin
    perform sharequeue.require_read_committed();
    if coalesce((select not acls_apply from sharequeue.group_settings where group_id = p_group_id), false) then
        return;
    end if;
    if not sharequeue_internal.authorised(p_group_id, p_operation) then
        raise exception '% may not % group %', sharequeue.principal(), p_operation, p_group_id using errcode = 'SQ030';
    end if;
end
$$;

-- FUNCTION authorise_cluster()

CREATE FUNCTION sharequeue_internal.authorise_cluster() RETURNS void
    LANGUAGE plpgsql STABLE
    AS $$
begin
    perform sharequeue.require_read_committed();
    if not sharequeue_internal.is_super_user() then
        raise exception '% may not alter the cluster', sharequeue.principal() using errcode = 'SQ031';
    end if;
end
$$;

-- FUNCTION authorised(text, text)

CREATE FUNCTION sharequeue_internal.authorised(p_group_id text, p_operation text) RETURNS boolean
    LANGUAGE plpgsql STABLE
    AS $$
declare
    v_principal text := sharequeue.principal();
    v_found record;
begin
    if sharequeue_internal.is_super_user() then
        return true;
    end if;
    select count(*) as acls,
        coalesce(bool_or(mine and permission = 'DENY' and operation in (p_operation, 'ALL')), false) as denied,
        coalesce(bool_or(mine and permission = 'ALLOW' and (operation in (p_operation, 'ALL')
            or (p_operation = 'DESCRIBE' and operation in ('READ', 'ALTER', 'DELETE'))
            or (p_operation = 'DESCRIBE_CONFIGS' and operation = 'ALTER_CONFIGS'))), false) as allowed
    into v_found
    from (
        select operation, permission, principal in (v_principal, 'User:*') as mine
        from sharequeue.acls where sharequeue_internal.covers(pattern_type, resource_name, p_group_id)
    ) as a;
    if v_found.acls = 0 then
        return coalesce((select allow_everyone_if_no_acl_found from sharequeue.authorizer), true);
    end if;
    return v_found.allowed and not v_found.denied;
end
$$;

-- FUNCTION batch_at(bigint, bigint)

CREATE FUNCTION sharequeue_internal.batch_at(p_id bigint, p_offset bigint) RETURNS bigint
    LANGUAGE plpgsql STABLE
    AS $$
begin
    return coalesce((select first_offset from sharequeue.in_flight_batches
        where share_partition_id = p_id and first_offset <= p_offset
        order by share_partition_id desc, first_offset desc limit 1), p_offset);
end
$$;

-- FUNCTION batch_fault(bigint[], bigint[], integer[], bigint)

CREATE FUNCTION sharequeue_internal.batch_fault(p_firsts bigint[], p_lasts bigint[], p_type_counts integer[], p_run bigint) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    v_first bigint := p_firsts[p_run];
    v_last bigint := p_lasts[p_run];
begin
    if p_run is null then
        return null;
    elsif v_first is null or v_last is null or v_first < 0 or v_last > 9223372036854775806 then
        return 'offsets lie between 0 and 2^63 - 2';
    elsif v_first > v_last then
        return format('batch %s to %s is reversed', v_first, v_last);
    elsif v_first < p_lasts[p_run - 1] then
        return format('batch %s to %s begins before the end of the one before it', v_first, v_last);
    else
        return format('batch %s to %s has %s types: expected one, or one per offset', v_first, v_last,
            p_type_counts[p_run]);
    end if;
end
$$;

-- FUNCTION bounded_group_config(text, text)

CREATE FUNCTION sharequeue_internal.bounded_group_config(p_group_id text, p_name text) RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog'
    AS $$
    select least(
        greatest(sharequeue_internal.group_config(p_group_id, p_name)::bigint,
            sharequeue_internal.group_config(p_group_id, 'group.share.min.' || substr(p_name, length('share.') + 1))::bigint),
        sharequeue_internal.group_config(p_group_id, 'group.share.max.' || substr(p_name, length('share.') + 1))::bigint)
$$;

-- FUNCTION cached(bigint, bigint, bigint)

CREATE FUNCTION sharequeue_internal.cached(p_id bigint, p_first bigint, p_last bigint) RETURNS int8multirange
    LANGUAGE plpgsql STABLE
    AS $$
declare
    v_from bigint := sharequeue_internal.batch_at(p_id, p_first);
begin
    return (select coalesce(range_agg(int8range(first_offset, last_offset + 1)), '{}')
        from sharequeue.in_flight_batches where share_partition_id = p_id and first_offset between v_from and p_last);
end
$$;

-- FUNCTION check_acl(text, text, text, text)

CREATE FUNCTION sharequeue_internal.check_acl(p_principal text, p_operation text, p_permission text, p_pattern_type text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    if not coalesce(p_principal like 'User:_%' and sharequeue_internal.check_name('the principal', p_principal) is not null
            and p_operation in ('ALL', 'READ', 'DESCRIBE', 'ALTER', 'DELETE', 'ALTER_CONFIGS', 'DESCRIBE_CONFIGS')
            and p_permission in ('ALLOW', 'DENY') and p_pattern_type in ('LITERAL', 'PREFIXED'), false) then
        raise exception 'no such ACL: a principal is User:<name>, an operation ALL, READ, DESCRIBE, ALTER, DELETE, '
            'ALTER_CONFIGS or DESCRIBE_CONFIGS, a permission ALLOW or DENY, a pattern type LITERAL or PREFIXED'
            using errcode = 'SQ042';
    end if;
end
$$;

-- FUNCTION check_acquire(sharequeue.share_partitions, sharequeue.group_settings, text, integer, bigint, integer, text, text, bigint[], bigint[])

CREATE FUNCTION sharequeue_internal.check_acquire(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_member_id text, p_member_epoch integer, p_max_records bigint, p_lock_duration_ms integer, p_redelivery text, p_mode text, p_log_firsts bigint[], p_log_lasts bigint[], OUT error_code smallint, OUT error_message text) RETURNS record
    LANGUAGE plpgsql
    AS $$
begin
    error_code := 0;
    if p_sp.status = 'topic_recreated' then
        error_code := 100;
        error_message := format('topic %s was deleted and made again since group %s started on it', p_sp.topic, p_sp.group_id);
    elsif p_max_records is null or p_max_records not between 0 and 4611686018427387904 then
        error_code := 42;
        error_message := 'acquire needs a number of records between 0 and 2^62';
    elsif p_redelivery is null or p_redelivery not in ('kafka', 'fan_out') then
        error_code := 42;
        error_message := format('redelivery is kafka or fan_out, not %s', p_redelivery);
    elsif p_mode is null or p_mode not in ('batch_optimized', 'record_limit') then
        error_code := 42;
        error_message := format('the acquire mode is batch_optimized or record_limit, not %s', p_mode);
    elsif p_lock_duration_ms not between p_settings.min_lock_duration_ms and p_settings.max_lock_duration_ms then
        error_code := 42;
        error_message := format('a lock of %s ms is outside the service''s bounds, %s to %s ms: ask for one inside, or '
            'set group.share.min.record.lock.duration.ms and its max where the service starts', p_lock_duration_ms,
            p_settings.min_lock_duration_ms, p_settings.max_lock_duration_ms);
    elsif p_log_firsts is not null and (p_log_lasts is null
            or array_length(p_log_firsts, 1) is distinct from array_length(p_log_lasts, 1)
            or exists (select from unnest(p_log_firsts, p_log_lasts) as b (first, last)
                where first is null or last is null or first > last or first < 0)
            or exists (select from (
                select first, lag(last) over () as before from unnest(p_log_firsts, p_log_lasts) as b (first, last)) as b
                where first <= before)) then
        error_code := 42;
        error_message := 'log batches are pairs of first and last offset, in order, not overlapping';
    else
        select m.error_code, m.error_message into error_code, error_message
        from sharequeue_internal.check_member(p_sp.group_id, p_member_id, p_member_epoch) as m;
    end if;
end
$$;

-- FUNCTION check_between(text, bigint, bigint, bigint)

CREATE FUNCTION sharequeue_internal.check_between(p_what text, p_value bigint, p_least bigint, p_most bigint) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
begin
    if p_value is null or p_value not between p_least and p_most then
        raise exception '% is %: give a number between % and %', p_what, coalesce(p_value::text, 'missing'), p_least,
            p_most using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- FUNCTION check_group_id(text)

CREATE FUNCTION sharequeue_internal.check_group_id(p_group_id text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
begin
    return sharequeue_internal.check_name('the group id', p_group_id);
exception when sqlstate 'SQ042' then
    raise exception '%', sqlerrm using errcode = 'SQ024';
end
$$;

-- FUNCTION check_many(integer, text[], integer[], integer[])

CREATE FUNCTION sharequeue_internal.check_many(p_most integer, p_topics text[], p_partitions integer[], VARIADIC p_lengths integer[]) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    v_count integer := cardinality(p_topics);
begin
    if p_topics is null or p_partitions is null or cardinality(p_partitions) <> v_count
            or exists (select from unnest(p_lengths) as l where l is distinct from v_count) then
        raise exception 'topics, partitions and what belongs to them are arrays of one length: an element for each '
            'share-partition' using errcode = 'SQ042';
    elsif array_position(p_topics, null) is not null or array_position(p_partitions, null) is not null then
        raise exception 'a share-partition needs a topic and a partition: one of them is null' using errcode = 'SQ042';
    elsif v_count > p_most then
        raise exception 'a call names at most % share-partitions, not %: send several calls', p_most, v_count
            using errcode = 'SQ042';
    end if;
end
$$;

-- FUNCTION check_member(text, text, integer)

CREATE FUNCTION sharequeue_internal.check_member(p_group_id text, p_member_id text, p_member_epoch integer, OUT error_code smallint, OUT error_message text) RETURNS record
    LANGUAGE plpgsql STABLE
    AS $$
declare
    v_member record;
begin
    error_code := 0;
    if p_member_id is null or length(p_member_id) not between 1 and 36 then
        error_code := 42;
        error_message := 'a member id has 1 to 36 characters';
        return;
    end if;
    if p_member_epoch is null then
        return;
    end if;
    select member_epoch, previous_member_epoch into v_member
    from sharequeue.members where group_id = p_group_id and member_id = p_member_id;
    if not found then
        error_code := 25;
        error_message := format('%s is not a member of group %s: it left, or its session expired', p_member_id, p_group_id);
    elsif p_member_epoch not in (v_member.member_epoch, v_member.previous_member_epoch) then
        error_code := 110;
        error_message := format('member epoch %s is not the present one, %s', p_member_epoch, v_member.member_epoch);
    end if;
end
$$;

-- FUNCTION check_name(text, text)

CREATE FUNCTION sharequeue_internal.check_name(p_what text, p_value text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
begin
    perform sharequeue_internal.check_text(p_what, p_value, 249);
    if p_value ~ '[\x01-\x1f\x7f]' then
        raise exception '% has a control character in it: leave it out', p_what using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- FUNCTION check_offsets(int8multirange)

CREATE FUNCTION sharequeue_internal.check_offsets(p_offsets int8multirange) RETURNS int8multirange
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
begin
    if sharequeue_internal.offsets_fault(p_offsets) is not null then
        raise exception '%', sharequeue_internal.offsets_fault(p_offsets) using errcode = 'SQ042';
    end if;
    return p_offsets;
end
$$;

-- FUNCTION check_outputs(bigint, text, uuid, sharequeue.acknowledgements, jsonb)

CREATE FUNCTION sharequeue_internal.check_outputs(p_id bigint, p_member_id text, p_token uuid, p_acknowledgements sharequeue.acknowledgements, p_outputs jsonb, OUT error_code smallint, OUT error_message text, OUT lease_id bigint) RETURNS record
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
declare
    v_span int8multirange := sharequeue_internal.span(p_acknowledgements);
    v_outside bigint;
    v_sink text;
begin
    error_code := 0;
    select min(l.lease_id) into lease_id from sharequeue.leases l
    where l.share_partition_id = p_id and l.token = p_token and l.member_id = p_member_id;
    if lease_id is not null and not isempty(v_span) then
        v_outside := sharequeue_internal.first_outside(p_acknowledgements,
            sharequeue_internal.held(p_id, lower(v_span), upper(v_span) - 1, p_member_id, p_token));
    end if;
    if lease_id is null or v_outside is not null then
        error_code := 121;
        error_message := case when lease_id is null then 'an output needs the token of a lease that is held'
            else format('an output needs every offset acknowledged with it held under its lease, and %s is not', v_outside)
            end || ': its lock lapsed, it was acknowledged already, or another member holds it';
        return;
    end if;
    select c.sink into v_sink from sharequeue.lease_outputs c
    where c.lease_id = check_outputs.lease_id and c.sink in (select o->>'sink' from jsonb_array_elements(p_outputs) as o)
    limit 1;
    if found then
        error_code := 42;
        error_message := format('sink %s has one output of lease %s at most: name it in the acknowledgement that ends '
            'the lease, and only there', v_sink, lease_id);
    end if;
end
$$;

-- FUNCTION check_present(text, anyelement)

CREATE FUNCTION sharequeue_internal.check_present(p_what text, p_value anyelement) RETURNS anyelement
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
begin
    if p_value is null then
        raise exception '% is missing: give one', p_what using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- FUNCTION check_service_configs(jsonb)

CREATE FUNCTION sharequeue_internal.check_service_configs(p_configs jsonb) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
declare
    v_config record;
begin
    if p_configs is null or jsonb_typeof(p_configs) <> 'object' then
        raise exception 'service configs are one object of names and values' using errcode = 'SQ040';
    end if;
    for v_config in select key, value, p_configs->>key as text from jsonb_each(p_configs) loop
        if v_config.key !~ '^(group\.share|share\.coordinator|errors\.deadletterqueue|journal|deleted\.topics)\.[a-z.]{1,200}$' then
            raise exception 'there is no service config %', left(v_config.key, 300) using errcode = 'SQ040';
        elsif jsonb_typeof(v_config.value) <> 'string' then
            raise exception 'service config % must be a text', v_config.key using errcode = 'SQ040';
        elsif v_config.key ~ '\.(ms|limit|locks|size|minutes|snapshot)$' and not (v_config.text ~ '^[0-9]{1,10}$'
                and (v_config.text)::bigint <= 2147483647) then
            raise exception 'service config % must be a whole number, 2147483647 at most', v_config.key
                using errcode = 'SQ040';
        end if;
    end loop;
end
$_$;

-- FUNCTION check_span(text, interval)

CREATE FUNCTION sharequeue_internal.check_span(p_what text, p_value interval) RETURNS interval
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
begin
    if p_value is null or p_value not between interval '0' and interval '100 years' then
        raise exception '% is %: give a time span between 0 and 100 years', p_what, coalesce(p_value::text, 'missing')
            using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- FUNCTION check_start(text, integer, text, bigint)

CREATE FUNCTION sharequeue_internal.check_start(p_topic text, p_partition integer, p_topic_id text, p_start_offset bigint) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
begin
    if not coalesce(p_topic ~ '^[a-zA-Z0-9._-]{1,249}$' and p_topic_id <> '' and p_partition >= 0, false) then
        raise exception 'a share-partition has a topic (1 to 249 letters, digits, dots, underscores and hyphens), its id and a '
            'partition from 0 on, not %-% of id %', left(p_topic, 300), p_partition, left(p_topic_id, 300)
            using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.check_name('the topic id', p_topic_id);
    if p_start_offset is null or p_start_offset not between 0 and 9223372036854775806 then
        raise exception 'a start offset lies between 0 and 2^63 - 2, not at %', p_start_offset using errcode = 'SQ042';
    end if;
end
$_$;

-- FUNCTION check_text(text, text, integer)

CREATE FUNCTION sharequeue_internal.check_text(p_what text, p_value text, p_longest integer) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
begin
    if p_value is null or length(p_value) not between 1 and p_longest then
        raise exception '% has % characters: give 1 to %', p_what, coalesce(length(p_value), 0), p_longest
            using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- FUNCTION circuit_acknowledgements(bigint, sharequeue.group_settings, sharequeue.acknowledgements, int8multirange, timestamp with time zone)

CREATE FUNCTION sharequeue_internal.circuit_acknowledgements(p_id bigint, p_settings sharequeue.group_settings, p_acknowledgements sharequeue.acknowledgements, p_asked int8multirange, p_at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql
    AS $$
    select sharequeue_internal.circuit_counts(p_id, p_settings,
        ((p_acknowledgements).accept + (p_acknowledgements).release + (p_acknowledgements).reject) * p_asked,
        ((p_acknowledgements).release + (p_acknowledgements).reject) * p_asked, (p_acknowledgements).release * p_asked, p_at)
$$;

-- FUNCTION circuit_allows(sharequeue.share_partitions, sharequeue.group_settings, bigint, timestamp with time zone)

CREATE FUNCTION sharequeue_internal.circuit_allows(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_most bigint, p_at timestamp with time zone, OUT most bigint, OUT probe boolean) RETURNS record
    LANGUAGE plpgsql STABLE
    AS $$
declare
    v_circuit sharequeue.circuit_breakers;
begin
    most := p_most;
    probe := false;
    select * into v_circuit from sharequeue.circuit_breakers where share_partition_id = p_sp.share_partition_id;
    if not found or v_circuit.state = 'closed' then
        return;
    end if;
    -- A probe that nobody holds any more (released by hand, gone with retention) will not be acknowledged.
    if (v_circuit.state = 'open' and p_at >= v_circuit.retry_at) or (v_circuit.state = 'probing' and not exists (
            select from sharequeue.in_flight_batches f
            where f.share_partition_id = p_sp.share_partition_id and f.state = 1
                and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) && v_circuit.probe)) then
        most := least(p_most, p_settings.breaker_probe_records);
        probe := true;
    else
        most := 0;
    end if;
end
$$;

-- FUNCTION circuit_counts(bigint, sharequeue.group_settings, int8multirange, int8multirange, int8multirange, timestamp with time zone)

CREATE FUNCTION sharequeue_internal.circuit_counts(p_id bigint, p_settings sharequeue.group_settings, p_acknowledged int8multirange, p_failed int8multirange, p_returning int8multirange, p_at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql
    AS $$
declare
    v_circuit sharequeue.circuit_breakers;
    v_acknowledged double precision := sharequeue.records(p_acknowledged);
    v_failed double precision := sharequeue.records(p_failed);
    v_window double precision := p_settings.breaker_window_records;
    v_share double precision := p_settings.breaker_percent / 100.0;
    v_kept double precision;
    v_probed bigint;
begin
    if v_acknowledged = 0 then
        return null;
    end if;
    select * into v_circuit from sharequeue.circuit_breakers where share_partition_id = p_id;
    if not found then
        insert into sharequeue.circuit_breakers (share_partition_id) values (p_id) returning * into v_circuit;
    end if;
    if v_circuit.state = 'closed' then
        -- A window without a memory of single records: what is older than the last window fades in proportion.
        v_kept := least(v_circuit.answered, greatest(0, v_window - v_acknowledged));
        -- Multiplied first: 147 * (20 / 147) is more than 20, and more would have failed than were acknowledged.
        v_failed := v_failed * v_window / greatest(v_acknowledged, v_window)
            + case when v_circuit.answered > 0 then v_circuit.failed * v_kept / v_circuit.answered else 0 end;
        v_acknowledged := least(v_acknowledged, v_window) + v_kept;
        update sharequeue.circuit_breakers set answered = v_acknowledged, failed = v_failed
        where share_partition_id = p_id;
        if v_acknowledged >= least(p_settings.breaker_min_records, v_window) and v_failed > v_share * v_acknowledged then
            perform sharequeue_internal.open_circuit(p_id, p_settings, p_at, format(
                '%s of the last %s records failed', round(v_failed::numeric), round(v_acknowledged::numeric)));
        end if;
        return null;
    end if;
    -- What was leased before it opened says nothing new.
    if v_circuit.state = 'open' or not v_circuit.probe && p_acknowledged then
        return null;
    end if;
    perform sharequeue_internal.refund(p_id, p_returning * v_circuit.probe);
    v_probed := sharequeue.records(p_failed * v_circuit.probe) + v_circuit.probe_failed;
    if v_probed > v_share * v_circuit.probe_records then
        perform sharequeue_internal.open_circuit(p_id, p_settings, p_at, format(
            '%s of the %s records of the probe failed', v_probed, v_circuit.probe_records));
        return date_trunc('second', p_at + 2 * p_settings.breaker_open_ms * interval '1 millisecond'
            + interval '999999 microseconds');
    end if;
    if v_circuit.probe <@ p_acknowledged then
        update sharequeue.circuit_breakers
        set state = 'closed', answered = 0, failed = 0, opened_at = null, retry_at = null, reason = null, probe = '{}'
        where share_partition_id = p_id;
    else
        update sharequeue.circuit_breakers set probe = probe - p_acknowledged, probe_failed = v_probed
        where share_partition_id = p_id;
    end if;
    return null;
end
$$;

-- FUNCTION circuit_lapse(bigint, bigint)

CREATE FUNCTION sharequeue_internal.circuit_lapse(p_id bigint, p_lease_id bigint) RETURNS timestamp with time zone
    LANGUAGE plpgsql
    AS $$
declare
    v_settings sharequeue.group_settings;
    v_offsets int8multirange;
begin
    select s.* into v_settings from sharequeue.share_partitions sp join sharequeue.group_settings s using (group_id)
    where sp.share_partition_id = p_id;
    select coalesce(range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)), '{}')
        * int8multirange(int8range((
            select spso from sharequeue.share_partitions where share_partition_id = p_id), null))
    into v_offsets from sharequeue.in_flight_batches f where f.lease_id = p_lease_id;
    return sharequeue_internal.circuit_counts(
        p_id, v_settings, v_offsets, v_offsets, v_offsets, sharequeue.clock());
end
$$;

-- FUNCTION circuit_probes(bigint, bigint)

CREATE FUNCTION sharequeue_internal.circuit_probes(p_id bigint, p_lease_id bigint) RETURNS void
    LANGUAGE sql
    AS $$
    update sharequeue.circuit_breakers c
    set state = 'probing', probe = l.offsets, probe_records = sharequeue.records(l.offsets), probe_failed = 0
    from (
        select range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)) as offsets
        from sharequeue.in_flight_batches where lease_id = p_lease_id and state = 1
    ) as l
    where c.share_partition_id = p_id and l.offsets is not null
$$;

-- FUNCTION clock_unfold()

CREATE FUNCTION sharequeue_internal.clock_unfold() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
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

-- FUNCTION compile_group_settings(text)

CREATE FUNCTION sharequeue_internal.compile_group_settings(p_group_id text) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog'
    AS $$
    -- First, so that what another transaction is just setting is waited for, and then read.
    select sharequeue_internal.lock_in_order(array[p_group_id], true, false);
    insert into sharequeue.group_settings as s (group_id, delivery_count_limit, lock_duration_ms, min_lock_duration_ms,
        max_lock_duration_ms, max_record_locks, read_committed, renew_enabled, dead_letters, breaker_percent,
        breaker_min_records, breaker_window_records, breaker_probe_records, breaker_open_ms, refund_cancelled)
    select g.group_id,
        sharequeue_internal.bounded_group_config(g.group_id, 'share.delivery.count.limit')::integer,
        sharequeue_internal.bounded_group_config(g.group_id, 'share.record.lock.duration.ms')::integer,
        sharequeue_internal.group_config(g.group_id, 'group.share.min.record.lock.duration.ms')::integer,
        sharequeue_internal.group_config(g.group_id, 'group.share.max.record.lock.duration.ms')::integer,
        sharequeue_internal.bounded_group_config(g.group_id, 'share.partition.max.record.locks'),
        sharequeue_internal.group_config(g.group_id, 'share.isolation.level') = 'read_committed',
        sharequeue_internal.group_config(g.group_id, 'share.renew.acknowledge.enable') <> 'false',
        sharequeue_internal.group_config(g.group_id, 'errors.deadletterqueue.topic.name') <> '',
        sharequeue_internal.group_config(g.group_id, 'sharequeue.circuit.breaker.failure.percent')::integer,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.circuit.breaker.min.records')::bigint,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.circuit.breaker.window.records')::bigint,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.circuit.breaker.probe.records')::bigint,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.circuit.breaker.open.ms')::integer,
        sharequeue_internal.group_config(g.group_id, 'sharequeue.cancelled.run.refund.enable') = 'true'
    from sharequeue.share_groups g where g.group_id = p_group_id
    on conflict on constraint group_settings_pkey do update set
        delivery_count_limit = excluded.delivery_count_limit, lock_duration_ms = excluded.lock_duration_ms,
        min_lock_duration_ms = excluded.min_lock_duration_ms, max_lock_duration_ms = excluded.max_lock_duration_ms,
        max_record_locks = excluded.max_record_locks, read_committed = excluded.read_committed,
        renew_enabled = excluded.renew_enabled, dead_letters = excluded.dead_letters,
        breaker_percent = excluded.breaker_percent, breaker_min_records = excluded.breaker_min_records,
        breaker_window_records = excluded.breaker_window_records,
        breaker_probe_records = excluded.breaker_probe_records, breaker_open_ms = excluded.breaker_open_ms,
        refund_cancelled = excluded.refund_cancelled
$$;

-- FUNCTION count_outcome(bigint, text, smallint, bigint)

CREATE FUNCTION sharequeue_internal.count_outcome(p_share_partition_id bigint, p_outcome text, p_delivery_count smallint, p_records bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    if p_records = 0 then
        return;
    end if;
    insert into sharequeue.delivery_counts as d (share_partition_id, outcome, delivery_count, records)
    values (p_share_partition_id, p_outcome, p_delivery_count, p_records)
    on conflict on constraint delivery_counts_pkey do update set records = d.records + excluded.records;
end
$$;

-- FUNCTION covers(text, text, text)

CREATE FUNCTION sharequeue_internal.covers(p_pattern_type text, p_resource_name text, p_group_id text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select case p_pattern_type
        when 'PREFIXED' then pg_catalog.starts_with(p_group_id, p_resource_name)
        else p_resource_name = p_group_id or p_resource_name = '*' end
$$;

-- FUNCTION delete_share_partitions(bigint[])

CREATE FUNCTION sharequeue_internal.delete_share_partitions(p_ids bigint[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    v_id bigint;
begin
    foreach v_id in array p_ids loop
        delete from sharequeue.share_partitions where share_partition_id = v_id;
    end loop;
end
$$;

-- FUNCTION end_cancelled(bigint, bigint, boolean)

CREATE FUNCTION sharequeue_internal.end_cancelled(p_share_partition_id bigint, p_lease_id bigint, p_refund boolean, OUT held bigint, OUT completed bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
declare
    v_sp record;
    v_refund boolean;
    v_part record;
begin
    held := 0;
    completed := 0;
    select sp.spso, s.delivery_count_limit, s.dead_letters, s.refund_cancelled into v_sp
    from sharequeue.share_partitions sp join sharequeue.group_settings s using (group_id)
    where sp.share_partition_id = p_share_partition_id;
    v_refund := p_refund or v_sp.refund_cancelled;
    if v_sp.dead_letters and not v_refund then
        perform sharequeue_internal.note_attempts(p_share_partition_id, array[p_lease_id]);
    end if;
    delete from sharequeue.leases where lease_id = p_lease_id;
    for v_part in
        select first_offset, last_offset, part, delivery_count,
            sharequeue_internal.offsets_of(first_offset, last_offset, offsets) as offsets
        from sharequeue.in_flight_batches where lease_id = p_lease_id order by first_offset, part
    loop
        held := held + sharequeue.records(v_part.offsets);
        perform sharequeue_internal.take(p_share_partition_id, v_part.first_offset, v_part.part, v_part.offsets);
        perform sharequeue_internal.place(p_share_partition_id, v_part.first_offset, v_part.last_offset, 0::smallint,
            least(v_part.delivery_count - v_refund::integer, v_sp.delivery_count_limit - 1)::smallint,
            v_part.offsets * int8multirange(int8range(v_sp.spso, null)));
    end loop;
    update sharequeue.share_partitions set redeliverable = true
    where share_partition_id = p_share_partition_id and not redeliverable and held > completed;
end
$$;

-- FUNCTION end_leases(bigint, bigint[])

CREATE FUNCTION sharequeue_internal.end_leases(p_share_partition_id bigint, p_lease_ids bigint[], OUT held bigint, OUT completed bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
declare
    v_lease_id bigint;
    v_ended record;
begin
    if not (select s.breaker_percent > 0 from sharequeue.share_partitions sp
            join sharequeue.group_settings s using (group_id) where sp.share_partition_id = p_share_partition_id) then
        select e.held, e.completed into held, completed
        from sharequeue_internal.end_leases_at(p_share_partition_id, p_lease_ids, null) as e;
        return;
    end if;
    -- The circuit breaker looks at each before it ends, and says until when its records shall wait. Its window depends
    -- on the order.
    held := 0;
    completed := 0;
    for v_lease_id in
        select lease_id from sharequeue.leases where lease_id = any (p_lease_ids) order by expires_at, lease_id
    loop
        select e.held, e.completed into v_ended
        from sharequeue_internal.end_leases_at(p_share_partition_id, array[v_lease_id],
            sharequeue_internal.circuit_lapse(p_share_partition_id, v_lease_id)) as e;
        held := held + v_ended.held;
        completed := completed + v_ended.completed;
    end loop;
end
$$;

-- FUNCTION end_leases_at(bigint, bigint[], timestamp with time zone)

CREATE FUNCTION sharequeue_internal.end_leases_at(p_share_partition_id bigint, p_lease_ids bigint[], p_not_before timestamp with time zone, OUT held bigint, OUT completed bigint) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_sp record;
    v_ended record;
    v_part record;
    v_gone record;
begin
    select sp.spso, s.delivery_count_limit, s.dead_letters into v_sp
    from sharequeue.share_partitions sp join sharequeue.group_settings s using (group_id)
    where sp.share_partition_id = p_share_partition_id;
    if v_sp.dead_letters then
        perform sharequeue_internal.note_attempts(p_share_partition_id, p_lease_ids);
    end if;
    with parts as (
        select f.*, sum(f.records) over (partition by e.lease_id)::bigint as together,
            -- By delivery count: suspects are divided by how many they are, over all batches of the lease.
            sum(f.live) over (partition by e.lease_id, f.delivery_count)::bigint as suspects, l.fan_out
        from unnest(p_lease_ids) as e (lease_id)
        cross join lateral (select fan_out from sharequeue.leases where lease_id = e.lease_id offset 0) as l
        cross join lateral (
            select ctid as at, first_offset, part, delivery_count,
                offsets is null and first_offset >= v_sp.spso as whole,
                case when offsets is null then last_offset - first_offset + 1 else sharequeue.records(offsets) end
                    as records,
                case when offsets is null then greatest(0, last_offset + 1 - greatest(first_offset, v_sp.spso))
                    else sharequeue.records(sharequeue_internal.offsets_from(offsets, v_sp.spso)) end as live
            from sharequeue.in_flight_batches where lease_id = e.lease_id offset 0) as f
    ), fates as materialized (
        select p.*, x.again, case when x.again then 0 when v_sp.dead_letters then 3 else 4 end::smallint as state,
            case when not x.again then 'exceeded' end as cause,
            case when x.again and p.fan_out and p.delivery_count >= v_sp.delivery_count_limit then 1
                when x.again and p.fan_out then greatest(1, ceil(p.suspects / ceil(power(greatest(p.suspects, 1)::numeric,
                    1.0 / (v_sp.delivery_count_limit - p.delivery_count)) - 1e-9))::bigint) end as isolate
        from parts p cross join lateral (
            select p.delivery_count < v_sp.delivery_count_limit or (p.fan_out and p.together > 1) as again) as x
    ), ended as (
        delete from sharequeue.leases where lease_id = any (p_lease_ids)
    ), whole as (
        update sharequeue.in_flight_batches f
        set state = t.state, lease_id = null, cause = t.cause, isolate = t.isolate,
            not_before = case when t.again then p_not_before end
        from fates t where t.whole and f.ctid = t.at
    ), counted as (
        insert into sharequeue.delivery_counts as d (share_partition_id, outcome, delivery_count, records)
        select p_share_partition_id, 'exceeded', delivery_count, sum(live)
        from fates where state = 4 and live > 0 group by delivery_count
        on conflict on constraint delivery_counts_pkey do update set records = d.records + excluded.records
    )
    select coalesce(sum(records), 0)::bigint as records, coalesce(sum(live) filter (where state = 4), 0)::bigint as completed,
        coalesce(bool_or(again and live > 0), false) as again,
        min(first_offset) filter (where state = 4) as first_archived,
        max(first_offset) filter (where state = 4) as last_archived,
        array_agg(first_offset) filter (where not whole) as firsts, array_agg(part) filter (where not whole) as parts,
        array_agg(state) filter (where not whole) as states, array_agg(cause) filter (where not whole) as causes,
        array_agg(isolate) filter (where not whole) as isolates
    into v_ended from fates;
    held := v_ended.records;
    completed := v_ended.completed;
    for v_part in
        select * from unnest(v_ended.firsts, v_ended.parts, v_ended.states, v_ended.causes, v_ended.isolates)
            as e (first_offset, part, state, cause, isolate)
    loop
        delete from sharequeue.in_flight_batches f
        where f.share_partition_id = p_share_partition_id and f.first_offset = v_part.first_offset
            and f.part = v_part.part
        -- What the log start has overtaken is gone, whatever its count (R-LT-3).
        returning f.last_offset, f.delivery_count, sharequeue_internal.offsets_from(
            sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets), v_sp.spso) as offsets into v_gone;
        perform sharequeue_internal.place(p_share_partition_id, v_part.first_offset, v_gone.last_offset, v_part.state,
            v_gone.delivery_count, v_gone.offsets, null, v_part.cause, v_part.isolate,
            case when v_part.state = 0 then p_not_before end);
    end loop;
    if v_ended.first_archived is not null then
        perform sharequeue_internal.join_terminal(
            p_share_partition_id, v_ended.first_archived, v_ended.last_archived);
    end if;
    if v_ended.again then
        update sharequeue.share_partitions set redeliverable = true
        where share_partition_id = p_share_partition_id and not redeliverable;
    end if;
end
$$;

-- FUNCTION end_unacknowledged(bigint, bigint)

CREATE FUNCTION sharequeue_internal.end_unacknowledged(p_share_partition_id bigint, p_lease_id bigint, OUT held bigint, OUT completed bigint) RETURNS record
    LANGUAGE sql
    AS $$
    select e.held, e.completed from sharequeue_internal.end_leases(p_share_partition_id, array[p_lease_id]) as e
$$;

-- FUNCTION fetch_fault(bigint, bigint[], bigint[], int8multirange)

CREATE FUNCTION sharequeue_internal.fetch_fault(p_batch_size bigint, p_log_firsts bigint[], p_log_lasts bigint[], p_aborted int8multirange) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    if p_batch_size < 1 then
        return 'a batch size is 1 or more; leave it out for the number of records asked for';
    elsif (p_log_firsts is null) <> (p_log_lasts is null) then
        return 'log batches are pairs of first and last offset: give both lists or neither';
    elsif 9223372036854775807 = any (p_log_lasts) then
        return 'offsets lie between 0 and 2^63 - 2';
    elsif p_aborted is null then
        return 'the offsets of aborted transactions must be given; none are {}';
    end if;
    return sharequeue_internal.offsets_fault(p_aborted);
end
$$;

-- FUNCTION fetch_whole_batch(text, text, integer, integer, text, integer, uuid, uuid, bigint, bigint, bigint, text)

CREATE FUNCTION sharequeue_internal.fetch_whole_batch(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_member_id text, p_member_epoch integer, p_token uuid, p_request_id uuid, p_first bigint, p_last bigint, p_max_records bigint, p_redelivery text) RETURNS sharequeue.acknowledged_and_acquired
    LANGUAGE plpgsql
    AS $$
declare
    v_sp record;
    v_settings record;
    v_lease record;
    v_row sharequeue.acknowledged_and_acquired;
    v_reused boolean;
    v_past bigint;
begin
    -- A queue before the row. Whoever waits for a row lock waits for one version of the row, and finds it gone when its
    -- turn comes: eight connections on one share-partition did 977 calls a second, with the queue 1,470. Not for who may
    -- hold the row already, and a transaction with an id may: the update before this locks the row it waited for
    -- even where the row no longer meets its conditions. In the queue it would wait for one that waits for the row.
    if pg_current_xact_id_if_assigned() is null then
        perform pg_advisory_xact_lock(-1, hashtext(p_group_id || '/' || p_topic || '/' || p_partition));
    end if;
    -- Two statements: joined with the settings it took 13 µs, apart 4 and 2; and settings read behind the lock are those
    -- of now. Where ACLs apply to the group, the long way asks them.
    select share_partition_id as id, spso, speo, log_end, last_stable_offset, delivery_complete_count, state_epoch,
        next_expiry, accepted_first, folded_lease_id is not null as folded,
        not redeliverable and not advance_due and p_first >= spso and status = 'active' and paused_reason is null
            and log_end < 9223372032559808512 as usual
    into v_sp from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    if v_sp.folded then
        perform sharequeue_internal.unfold(v_sp.id);
    end if;
    select lock_duration_ms, max_record_locks, xmin as version,
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
        where lease_id = f.lease_id and member_id = p_member_id and (p_token is null or token = p_token) offset 0) as l
    where f.share_partition_id = v_sp.id and f.first_offset = p_first and f.part = 0 and f.last_offset = p_last
        and f.state = 1 and f.delivery_count = 1 and f.offsets is null
        and 1 = (select count(*) from (
            select from sharequeue.in_flight_batches o where o.lease_id = f.lease_id limit 2) as o);
    if not found then
        return null;
    end if;
    -- Where SPSO goes no further, and there is something fresh, the batch's row becomes the next one's: less than a delete
    -- and an insert.
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
            insert into sharequeue.requests (request_key, operation, answered_at, fetched)
            values (sharequeue_internal.request_key(v_sp.id, 'acknowledge_and_acquire', p_member_id, p_request_id),
                'acknowledge_and_acquire', v_settings.at, v_row);
        end if;
        return v_row;
    end if;
    v_row.error_code := 0;
    -- As unique as a new one, and 5 µs cheaper.
    v_row.token := coalesce(p_request_id, gen_random_uuid());
    v_row.state_epoch := v_sp.state_epoch;
    v_row.lock_duration_ms := v_settings.lock_duration_ms;
    v_row.expires_at := v_settings.at + v_settings.lock_duration_ms * interval '1 millisecond';
    v_row.delivery_count := 1;
    v_row.offsets := int8multirange(int8range(v_sp.speo, v_past));
    v_row.lease_id := nextval('sharequeue.leases_lease_id_seq');
    if v_row.expires_at < v_sp.next_expiry then
        update sharequeue.share_partitions set next_expiry = v_row.expires_at where share_partition_id = v_sp.id;
    end if;
    if v_reused and v_sp.spso = v_sp.speo and p_token is not null and v_sp.speo < 4611686018427387904
            and sharequeue_internal.may_fold(p_group_id, v_settings.version, v_sp.id) then
        delete from sharequeue.leases where lease_id = v_lease.lease_id;
        delete from sharequeue.in_flight_batches
        where share_partition_id = v_sp.id and first_offset = p_first and part = 0;
        update sharequeue.share_partitions sp set folded_lease_id = v_row.lease_id, folded_acquired_at = v_settings.at,
            folded_lag = v_row.lag, folded_max_record_locks = s.max_record_locks, folded_token = v_row.token,
            folded_request_id = p_request_id, folded_lock_duration_ms = s.lock_duration_ms,
            folded_member_epoch = coalesce(p_member_epoch, -1), folded_read_committed = s.read_committed,
            folded_fan_out = p_redelivery = 'fan_out', folded_member_id = p_member_id, folded_clock_offset = c.amount
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
    -- One statement over three tables; three apart cost the same. The lease keeps the result for a repeated call.
    with held as (
        update sharequeue.leases set lease_id = v_row.lease_id, token = v_row.token,
            member_epoch = coalesce(p_member_epoch, -1), lock_duration_ms = v_row.lock_duration_ms,
            acquired_at = v_settings.at, expires_at = v_row.expires_at, fan_out = p_redelivery = 'fan_out',
            own_lock_duration = false, request_id = p_request_id,
            fetched = case when p_request_id is not null then v_row end, journalled = not journalled
        where lease_id = v_lease.lease_id
    ), written as (
        insert into sharequeue.journal (share_partition_id, at, kind, first_offset, last_offset, gone_first, lease_id,
            gone_lease_id, member_id, member_epoch, token, lock_duration_ms, fan_out, spso, accepted_first)
        values (v_sp.id, v_settings.at, 'fetch', v_sp.speo, v_past - 1, case when v_reused then p_first end,
            v_row.lease_id, v_lease.lease_id, p_member_id, coalesce(p_member_epoch, -1), v_row.token,
            v_row.lock_duration_ms, p_redelivery = 'fan_out', v_sp.spso, v_sp.accepted_first)
    )
    update sharequeue.share_partitions
    set spso = v_sp.spso, speo = v_past, accepted_first = v_sp.accepted_first
    where share_partition_id = v_sp.id;
    return v_row;
end
$$;

-- FUNCTION first_failure(sharequeue.share_partitions, sharequeue.group_settings, bigint[], bigint[], smallint[], integer[], int8multirange, int8multirange, int8multirange)

CREATE FUNCTION sharequeue_internal.first_failure(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[], p_cached int8multirange, p_held int8multirange, p_asked int8multirange, OUT run bigint, OUT error_code smallint, OUT error_message text) RETURNS record
    LANGUAGE plpgsql
    AS $$
declare
    v_floor bigint := (select min(first_offset) from sharequeue.in_flight_batches
        where share_partition_id = p_sp.share_partition_id);
    v_not_held bigint := lower(p_asked * p_cached - p_held);
    v_batch record;
begin
    select b.run, b.first, b.last,
        case when coalesce(greatest(b.first, p_sp.spso) < v_floor, true) then 1
            when not p_cached @> b.last then 2
            when v_not_held between b.first and b.last then 3
            when b.first = b.before then 4
            else 5 end as how
    into v_batch
    from (
        select b.run, b.first, b.last, lag(b.last) over (order by b.run) as before,
            lag(b.last_type) over (order by b.run) as before_type, b.any_renew
        from (
            select r.run, min(r.first) as first, max(r.past) - 1 as last, bool_or(r.type = 4 and r.past > p_sp.spso)
                as any_renew, (array_agg(r.type order by r.first desc))[1] as last_type
            from sharequeue_internal.runs(p_firsts, p_lasts, p_types, p_type_counts) as r group by r.run
        ) as b
    ) as b
    where b.last >= p_sp.spso and (
        coalesce(greatest(b.first, p_sp.spso) < v_floor, true)
        or not p_cached @> b.last
        or v_not_held between b.first and b.last
        or (b.first = b.before and b.first >= p_sp.spso and b.before_type <> 4)
        or (b.any_renew and not p_settings.renew_enabled))
    order by b.run limit 1;
    run := v_batch.run;
    error_code := case when v_batch.how = 2 then 42 else 121 end;
    error_message := case v_batch.how
        when 1 then format('offset %s is not found in the cache: nothing is in flight at or below it', v_batch.first)
        when 2 then format('batch %s to %s reaches past what was acquired', v_batch.first, v_batch.last)
        when 3 then format('offset %s is not acquired by this member', v_not_held)
        when 4 then format('offset %s is acknowledged twice', v_batch.first)
        when 5 then 'Renewing acquisition locks is not enabled for the group.' end;
end
$$;

-- FUNCTION first_outside(sharequeue.acknowledgements, int8multirange)

CREATE FUNCTION sharequeue_internal.first_outside(p_acknowledgements sharequeue.acknowledgements, p_offsets int8multirange) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select min(lower(a.offsets - p_offsets))
    from (values ((p_acknowledgements).accept), ((p_acknowledgements).release), ((p_acknowledgements).reject), ((p_acknowledgements).gap),
        ((p_acknowledgements).renew)) as a (offsets)
    where not a.offsets <@ p_offsets
$$;

-- FUNCTION first_records(int8multirange, bigint)

CREATE FUNCTION sharequeue_internal.first_records(p_offsets int8multirange, p_count bigint) RETURNS int8multirange
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog'
    AS $$
    select coalesce(range_agg(int8range(first, first + least(past - first, p_count - before))), '{}'::int8multirange)
    from (
        select
            lower(r) as first,
            upper(r) as past,
            (sum(upper(r) - lower(r)) over (order by lower(r)))::bigint - (upper(r) - lower(r)) as before
        from unnest(p_offsets) as r
    ) as ranges
    where before < p_count
$$;

-- FUNCTION folded_fetch(sharequeue.share_partitions)

CREATE FUNCTION sharequeue_internal.folded_fetch(p_sp sharequeue.share_partitions) RETURNS sharequeue.acknowledged_and_acquired
    LANGUAGE plpgsql STABLE
    AS $$
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
    return v_result;
end
$$;

-- FUNCTION force_part(bigint, bigint, bigint, integer, smallint, int8multirange, text, integer)

CREATE FUNCTION sharequeue_internal.force_part(p_id bigint, p_first bigint, p_last bigint, p_part integer, p_delivery_count smallint, p_offsets int8multirange, p_act text, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
begin
    perform sharequeue_internal.take(p_id, p_first, p_part, p_offsets);
    if p_act = 'release' then
        perform sharequeue_internal.place(p_id, p_first, p_last, 0::smallint, least(p_delivery_count, p_limit - 1)::smallint,
            p_offsets);
        return 0;
    elsif p_act = 'dead_letter' then
        perform sharequeue_internal.place(p_id, p_first, p_last, 3::smallint, p_delivery_count, p_offsets, null, 'rejected');
        return 0;
    end if;
    perform sharequeue_internal.place(p_id, p_first, p_last, 4::smallint, p_delivery_count, p_offsets, null, 'rejected');
    perform sharequeue_internal.join_terminal(p_id, p_first, p_first);
    perform sharequeue_internal.count_outcome(p_id, 'rejected', p_delivery_count, sharequeue.records(p_offsets));
    return sharequeue.records(p_offsets);
end
$$;

-- FUNCTION forced_plan(text, smallint, smallint, text, int8multirange, boolean, sharequeue.group_settings)

CREATE FUNCTION sharequeue_internal.forced_plan(p_act text, p_state smallint, p_delivery_count smallint, p_member_id text, p_offsets int8multirange, p_held_back boolean, p_settings sharequeue.group_settings) RETURNS sharequeue.forced
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    v_row sharequeue.forced;
begin
    v_row.error_code := 0;
    v_row.state := p_state;
    v_row.delivery_count := p_delivery_count;
    v_row.member_id := p_member_id;
    v_row.offsets := p_offsets;
    if p_state in (2, 4) then
        v_row.act := 'refuse';
        v_row.reason := 'done with: ' || case p_state when 2 then 'acknowledged' else 'archived' end;
    elsif p_state = 3 then
        v_row.act := 'refuse';
        v_row.reason := 'on its way to the dead-letter topic';
    elsif p_act = 'dead_letter' then
        v_row.act := case when p_settings.dead_letters then 'dead_letter' else 'archive' end;
    elsif p_state = 0 and not p_held_back and p_delivery_count < p_settings.delivery_count_limit then
        v_row.act := 'none';
        v_row.reason := 'available already';
    else
        v_row.act := 'release';
        v_row.reason := case when p_delivery_count >= p_settings.delivery_count_limit
            then 'its deliveries are used up: it gets the last one back' end;
    end if;
    return v_row;
end
$$;

-- FUNCTION gone_topic_silence()

CREATE FUNCTION sharequeue_internal.gone_topic_silence() RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ select pg_catalog.make_interval(mins => 1) $$;

-- FUNCTION group_config(text, text)

CREATE FUNCTION sharequeue_internal.group_config(p_group_id text, p_name text) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog'
    AS $$
    select coalesce(
        (select value from sharequeue.group_configs
            where group_id = p_group_id and name = p_name and p_name not like 'group.share.%'),
        (select value from sharequeue.service_configs
            where name = case when p_name like 'share.%' then 'group.' || p_name else p_name end),
        case p_name
            when 'share.delivery.count.limit' then '5'
            when 'share.record.lock.duration.ms' then '30000'
            when 'share.partition.max.record.locks' then '2000'
            when 'share.isolation.level' then 'read_uncommitted'
            when 'share.renew.acknowledge.enable' then 'true'
            when 'errors.deadletterqueue.topic.name' then ''
            -- Bounds of a lock's duration, the group's and one that an acquire asks for. They bind unset, too.
            when 'group.share.min.record.lock.duration.ms' then '15000'
            when 'group.share.max.record.lock.duration.ms' then '60000'
            when 'sharequeue.circuit.breaker.failure.percent' then '0'
            when 'sharequeue.circuit.breaker.min.records' then '20'
            when 'sharequeue.circuit.breaker.window.records' then '100'
            when 'sharequeue.circuit.breaker.probe.records' then '10'
            when 'sharequeue.circuit.breaker.open.ms' then '30000'
            when 'sharequeue.cancelled.run.refund.enable' then 'false'
        end
    )
$$;

-- FUNCTION group_configs_lock_group()

CREATE FUNCTION sharequeue_internal.group_configs_lock_group() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if tg_op = 'DELETE' then
        perform sharequeue_internal.lock_group(old.group_id);
        return old;
    end if;
    perform sharequeue_internal.lock_group(new.group_id);
    return new;
end
$$;

-- FUNCTION group_settings_follow()

CREATE FUNCTION sharequeue_internal.group_settings_follow() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform sharequeue.require_read_committed();
    if tg_op <> 'INSERT' then
        perform sharequeue_internal.compile_group_settings(old.group_id);
    end if;
    if tg_op <> 'DELETE' then
        perform sharequeue_internal.compile_group_settings(new.group_id);
    end if;
    return null;
end
$$;

-- FUNCTION group_settings_learn_acls()

CREATE FUNCTION sharequeue_internal.group_settings_learn_acls() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
begin
    new.acls_apply := sharequeue_internal.acls_apply(new.group_id);
    return new;
end
$$;

-- FUNCTION group_settings_unfold()

CREATE FUNCTION sharequeue_internal.group_settings_unfold() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
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

-- FUNCTION groups_learn_acls()

CREATE FUNCTION sharequeue_internal.groups_learn_acls() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
begin
    perform sharequeue.require_read_committed();
    lock table sharequeue.group_settings in share row exclusive mode;
    perform sharequeue_internal.lock_in_order(
        array(select group_id from sharequeue.group_settings where acls_apply <> sharequeue_internal.acls_apply(group_id)),
        true, true);
    update sharequeue.group_settings set acls_apply = not acls_apply
    where acls_apply <> sharequeue_internal.acls_apply(group_id);
    return null;
end
$$;

-- FUNCTION held(bigint, bigint, bigint, text, uuid)

CREATE FUNCTION sharequeue_internal.held(p_id bigint, p_first bigint, p_last bigint, p_member_id text, p_token uuid) RETURNS int8multirange
    LANGUAGE plpgsql STABLE
    AS $$
declare
    v_from bigint := sharequeue_internal.batch_at(p_id, p_first);
    v_leases bigint[] := sharequeue_internal.leases_between(p_id, v_from, p_last, p_member_id, p_token);
begin
    return (select coalesce(range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)), '{}')
        from unnest(v_leases) as l (lease_id)
        cross join lateral (
            select first_offset, last_offset, offsets from sharequeue.in_flight_batches
            where lease_id = l.lease_id and first_offset between v_from and p_last offset 0) as f);
end
$$;

-- FUNCTION in_flight_span(sharequeue.share_partitions, timestamp with time zone)

CREATE FUNCTION sharequeue_internal.in_flight_span(p_sp sharequeue.share_partitions, p_at timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql STABLE
    AS $$
begin
    if not p_sp.redeliverable then
        return p_sp.speo - p_sp.spso;
    end if;
    return p_sp.speo - p_sp.spso - coalesce((
        select sum(sharequeue.records(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)))
        from sharequeue.in_flight_batches
        where share_partition_id = p_sp.share_partition_id and state = 0 and not_before > p_at), 0);
end
$$;

-- FUNCTION is_folded_until_later(bigint, timestamp with time zone)

CREATE FUNCTION sharequeue_internal.is_folded_until_later(p_share_partition_id bigint, p_at timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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

-- FUNCTION is_holder(bigint, text, uuid)

CREATE FUNCTION sharequeue_internal.is_holder(p_lease_id bigint, p_member_id text, p_token uuid) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    select coalesce((select member_id = p_member_id and (p_token is null or token = p_token)
        from sharequeue.leases where lease_id = p_lease_id), false)
$$;

-- FUNCTION is_super_user()

CREATE FUNCTION sharequeue_internal.is_super_user() RETURNS boolean
    LANGUAGE plpgsql STABLE
    AS $$
begin
    return coalesce(current_setting('sharequeue.principal', true), '') = '' and sharequeue_internal.is_trusted();
end
$$;

-- FUNCTION is_trusted()

CREATE FUNCTION sharequeue_internal.is_trusted() RETURNS boolean
    LANGUAGE plpgsql STABLE
    AS $$
declare
    v_service oid := to_regrole(quote_ident(coalesce(
        (select role_name from sharequeue.roles where purpose = 'service'), 'sharequeue_service')));
begin
    if v_service is not null and pg_has_role(session_user, v_service, 'MEMBER') then
        return true;
    end if;
    return pg_has_role(session_user,
        (select nspowner from pg_catalog.pg_namespace where nspname = 'sharequeue'), 'MEMBER');
end
$$;

-- FUNCTION join_terminal(bigint, bigint, bigint)

CREATE FUNCTION sharequeue_internal.join_terminal(p_share_partition_id bigint, p_first bigint, p_last bigint) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
declare
    -- With the neighbours on both sides.
    v_from bigint := coalesce((select first_offset from sharequeue.in_flight_batches
        where share_partition_id = p_share_partition_id and first_offset < p_first
        order by share_partition_id desc, first_offset desc limit 1), p_first);
    v_to bigint := coalesce((select first_offset from sharequeue.in_flight_batches
        where share_partition_id = p_share_partition_id and first_offset > p_last
        order by share_partition_id, first_offset limit 1), p_last);
begin
    with batches as (
        select first_offset, min(last_offset) as last_offset, min(state) as state,
            min(delivery_count) as delivery_count, min(cause) as cause,
            bool_or(part <> 0 or offsets is not null) as exploded, (array_agg(ctid))[1] as at
        from sharequeue.in_flight_batches
        where share_partition_id = p_share_partition_id and first_offset between v_from and v_to
        group by first_offset
        having count(*) = 1 and min(state) in (2, 4)
            and bool_and(offsets is null or offsets = int8multirange(int8range(first_offset, last_offset + 1)))
    ), islands as (
        select *, count(*) filter (where not joins) over (order by first_offset) as island
        from (
            select *, coalesce(first_offset = lag(last_offset) over o + 1 and state = lag(state) over o
                and delivery_count = lag(delivery_count) over o
                and cause is not distinct from lag(cause) over o, false) as joins
            from batches window o as (order by first_offset)
        ) as b
    ), wanted as (
        select max(last_offset) as last_offset, (array_agg(at order by first_offset))[1] as at
        from islands group by island having count(*) > 1 or bool_or(exploded)
    ), gone as (
        delete from sharequeue.in_flight_batches f using islands i where i.joins and f.ctid = i.at
    )
    update sharequeue.in_flight_batches f set last_offset = w.last_offset, offsets = null, part = 0
    from wanted w where f.ctid = w.at;
end
$$;

-- FUNCTION joined(sharequeue.taken_offsets, sharequeue.taken_offsets)

CREATE FUNCTION sharequeue_internal.joined(p_result sharequeue.taken_offsets, p_got sharequeue.taken_offsets) RETURNS sharequeue.taken_offsets
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    v_result sharequeue.taken_offsets := p_result;
    v_end integer;
    v_at integer;
begin
    v_result.by_offset := false;
    for v_at in 1 .. coalesce(array_length(p_got.firsts, 1), 0) loop
        v_end := array_upper(v_result.firsts, 1);
        if p_got.by_offset and v_result.by_offset and v_result.lasts[v_end] = p_got.firsts[v_at] - 1
                and v_result.delivery_counts[v_end] = p_got.delivery_counts[v_at] then
            v_result.lasts[v_end] := p_got.lasts[v_at];
        else
            v_result.firsts := v_result.firsts || p_got.firsts[v_at];
            v_result.lasts := v_result.lasts || p_got.lasts[v_at];
            v_result.delivery_counts := v_result.delivery_counts || p_got.delivery_counts[v_at];
        end if;
        v_result.by_offset := p_got.by_offset;
    end loop;
    return v_result;
end
$$;

-- FUNCTION journal_batch()

CREATE FUNCTION sharequeue_internal.journal_batch() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    if tg_op <> 'INSERT' then
        if tg_op = 'DELETE' then
            insert into sharequeue.journal (share_partition_id, at, kind, first_offset, part)
            values (old.share_partition_id, sharequeue.clock(), 'batch_gone', old.first_offset, old.part);
            return null;
        elsif new.first_offset <> old.first_offset or new.part <> old.part then
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
    end if;
    insert into sharequeue.journal (share_partition_id, at, kind, first_offset, last_offset, part, state,
        delivery_count, lease_id, isolate, not_before, cause, offsets)
    values (new.share_partition_id, sharequeue.clock(), 'batch', new.first_offset, new.last_offset, new.part,
        new.state, new.delivery_count, new.lease_id, new.isolate, new.not_before, new.cause, new.offsets);
    return null;
end
$$;

-- FUNCTION journal_lease()

CREATE FUNCTION sharequeue_internal.journal_lease() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    if tg_op = 'DELETE' then
        insert into sharequeue.journal (share_partition_id, at, kind, lease_id)
        values (old.share_partition_id, sharequeue.clock(), 'lease_gone', old.lease_id);
        if old.request_id is not null then
            -- A repeat of the fetch that granted it may still come.
            insert into sharequeue.requests (request_key, operation, answered_at, fetched)
            values (sharequeue_internal.request_key(old.share_partition_id, 'acknowledge_and_acquire', old.member_id,
                old.request_id), 'acknowledge_and_acquire', sharequeue.clock(), old.fetched)
            on conflict on constraint requests_pkey do nothing;
        end if;
        return null;
    end if;
    insert into sharequeue.journal (share_partition_id, at, kind, lease_id, member_id, member_epoch, token,
        lock_duration_ms, acquired_at, expires_at, fan_out, own_lock_duration)
    values (new.share_partition_id, sharequeue.clock(), 'lease', new.lease_id, new.member_id, new.member_epoch,
        new.token, new.lock_duration_ms, new.acquired_at, new.expires_at, new.fan_out, new.own_lock_duration);
    return null;
end
$$;

-- FUNCTION journal_outcome()

CREATE FUNCTION sharequeue_internal.journal_outcome() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into sharequeue.journal (share_partition_id, at, kind, cause, delivery_count, records)
    values (new.share_partition_id, sharequeue.clock(), 'outcome', new.outcome, new.delivery_count,
        new.records - case when tg_op = 'UPDATE' then old.records else 0 end);
    return null;
end
$$;

-- FUNCTION journal_pause()

CREATE FUNCTION sharequeue_internal.journal_pause() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into sharequeue.journal (share_partition_id, at, kind, paused_reason)
    select sp.share_partition_id, sharequeue.clock(), 'group_paused', new.paused_reason
    from sharequeue.share_partitions sp where sp.group_id = new.group_id;
    return null;
end
$$;

-- FUNCTION journal_share_partition(sharequeue.share_partitions, text, boolean)

CREATE FUNCTION sharequeue_internal.journal_share_partition(p_sp sharequeue.share_partitions, p_kind text, p_named boolean) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
declare
    v_journal_id bigint;
begin
    insert into sharequeue.journal (share_partition_id, at, kind, spso, speo, delivery_complete_count, accepted_first,
        lost_records, dead_letter_sequence, next_expiry, state_epoch, redeliverable, advance_due, status, paused_reason,
        topic_id, group_id, topic, partition)
    values (p_sp.share_partition_id, sharequeue.clock(), p_kind, p_sp.spso, p_sp.speo, p_sp.delivery_complete_count,
        p_sp.accepted_first, p_sp.lost_records, p_sp.dead_letter_sequence, p_sp.next_expiry, p_sp.state_epoch,
        p_sp.redeliverable, p_sp.advance_due, p_sp.status, p_sp.paused_reason, p_sp.topic_id,
        case when p_named then p_sp.group_id end, case when p_named then p_sp.topic end,
        case when p_named then p_sp.partition end)
    returning journal_id into v_journal_id;
    return v_journal_id;
end
$$;

-- FUNCTION journal_share_partition_change()

CREATE FUNCTION sharequeue_internal.journal_share_partition_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
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

-- FUNCTION leases_between(bigint, bigint, bigint, text, uuid)

CREATE FUNCTION sharequeue_internal.leases_between(p_id bigint, p_from bigint, p_last bigint, p_member_id text, p_token uuid) RETURNS bigint[]
    LANGUAGE plpgsql STABLE
    AS $$
begin
    return array(
        select l.lease_id
        from (
            select distinct f.lease_id from sharequeue.in_flight_batches f
            where f.share_partition_id = p_id and f.state = 1 and f.first_offset between p_from and p_last
            offset 0
        ) as f
        cross join lateral (
            select lease_id from sharequeue.leases
            where lease_id = f.lease_id and member_id = p_member_id and (p_token is null or token = p_token)
            offset 0
        ) as l);
end
$$;

-- FUNCTION let_go_overtaken(sharequeue.share_partitions, text, uuid)

CREATE FUNCTION sharequeue_internal.let_go_overtaken(p_sp sharequeue.share_partitions, p_member_id text, p_token uuid) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
declare
    v_part record;
    v_leases bigint[] := '{}';
begin
    for v_part in
        select f.first_offset, f.part, f.lease_id
        from sharequeue.in_flight_batches f
        where f.share_partition_id = p_sp.share_partition_id and f.state = 1 and f.first_offset < p_sp.spso
            and sharequeue_internal.is_holder(f.lease_id, p_member_id, p_token)
    loop
        perform sharequeue_internal.take(p_sp.share_partition_id, v_part.first_offset, v_part.part,
            int8multirange(int8range(null, p_sp.spso)));
        v_leases := v_leases || v_part.lease_id;
    end loop;
    return v_leases;
end
$$;

-- FUNCTION lock_empty_group(text)

CREATE FUNCTION sharequeue_internal.lock_empty_group(p_group_id text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
declare
    v_members bigint;
begin
    if not sharequeue_internal.lock_group(p_group_id) then
        return false;
    end if;
    select count(*) into v_members from sharequeue.members where group_id = p_group_id;
    if v_members > 0 then
        raise exception 'group % has % members: stop them, or wait until their sessions have expired', p_group_id,
            v_members using errcode = 'SQ068';
    end if;
    return true;
end
$$;

-- FUNCTION lock_group(text)

CREATE FUNCTION sharequeue_internal.lock_group(p_group_id text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    perform from sharequeue.share_groups where group_id = p_group_id for no key update;
    return found;
end
$$;

-- FUNCTION lock_in_order(text[], boolean, boolean, text, integer)

CREATE FUNCTION sharequeue_internal.lock_in_order(p_group_ids text[], p_settings boolean, p_share_partitions boolean, p_topic text DEFAULT NULL::text, p_partition integer DEFAULT NULL::integer) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
begin
    if p_settings then
        -- Before the rows: who changes ACLs locks the table against changes (groups_learn_acls).
        lock table sharequeue.group_settings in row exclusive mode;
        perform from sharequeue.group_settings where p_group_ids is null or group_id = any (p_group_ids)
        order by group_id for no key update;
    end if;
    if not p_share_partitions then
        return '{}';
    end if;
    return array(
        select share_partition_id from sharequeue.share_partitions
        where (p_group_ids is null or group_id = any (p_group_ids)) and (p_topic is null or topic = p_topic)
            and (p_partition is null or partition = p_partition)
        order by share_partition_id for update);
end
$$;

-- FUNCTION lock_many(text, text[], integer[], integer[])

CREATE FUNCTION sharequeue_internal.lock_many(p_group_id text, p_topics text[], p_partitions integer[], VARIADIC p_lengths integer[]) RETURNS boolean[]
    LANGUAGE plpgsql
    AS $$
declare
    v_ids bigint[];
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_present('the group id', p_group_id);
    perform sharequeue_internal.check_many(1000, p_topics, p_partitions, variadic p_lengths);
    v_ids := array(
        select sp.share_partition_id from sharequeue.share_partitions sp
        where sp.group_id = p_group_id and (sp.topic, sp.partition) in (
            select n.topic, n.partition from unnest(p_topics, p_partitions) as n (topic, partition))
        order by sp.share_partition_id for update);
    return array(
        select sp.share_partition_id is not null
        from unnest(p_topics, p_partitions) with ordinality as n (topic, partition, place)
        left join sharequeue.share_partitions sp on sp.group_id = p_group_id and sp.topic = n.topic
            and sp.partition = n.partition and sp.share_partition_id = any (v_ids)
        order by n.place);
end
$$;

-- FUNCTION lock_share_partition(text, text, integer, integer, text)

CREATE FUNCTION sharequeue_internal.lock_share_partition(p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_operation text DEFAULT 'READ'::text, OUT error_code smallint, OUT error_message text, OUT sp sharequeue.share_partitions, OUT settings sharequeue.group_settings) RETURNS record
    LANGUAGE plpgsql
    AS $$
begin
    perform sharequeue.require_read_committed();
    error_code := 0;
    select s.* into sp from sharequeue.share_partitions s
    where s.group_id = p_group_id and s.topic = p_topic and s.partition = p_partition for update;
    if found then
        select g.* into settings from sharequeue.group_settings g where g.group_id = p_group_id;
        if sp.folded_lease_id is not null then
            perform sharequeue_internal.unfold(sp.share_partition_id);
        end if;
    end if;
    if coalesce(settings.acls_apply, true) and not sharequeue_internal.authorised(p_group_id, p_operation) then
        error_code := 30;
        error_message := format('%s may not %s group %s', sharequeue.principal(), p_operation, p_group_id);
    elsif sp.share_partition_id is null then
        if exists (select from sharequeue.share_groups where group_id = p_group_id) then
            error_code := 3;
            error_message := format('share-partition %s-%s of group %s is not initialised', p_topic, p_partition, p_group_id);
        else
            error_code := 69;
            error_message := format('there is no share group %s', p_group_id);
        end if;
    elsif p_state_epoch is not null and p_state_epoch <> sp.state_epoch then
        error_code := 124;
        error_message := format('state epoch %s is not the present one, %s: the offsets were altered since',
            p_state_epoch, sp.state_epoch);
    end if;
end
$$;

-- FUNCTION max_runs()

CREATE FUNCTION sharequeue_internal.max_runs() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ select 2000000 $$;

-- FUNCTION may_fold(text, xid, bigint)

CREATE FUNCTION sharequeue_internal.may_fold(p_group_id text, p_version xid, p_share_partition_id bigint) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    perform from sharequeue.group_settings s, sharequeue.clock_offset c
    where s.group_id = p_group_id and s.xmin = p_version for share skip locked;
    return found and 1 = (select count(*) from (
        select from sharequeue.in_flight_batches where share_partition_id = p_share_partition_id limit 2) as f);
end
$$;

-- FUNCTION next_available(bigint, bigint, timestamp with time zone, int8multirange)

CREATE FUNCTION sharequeue_internal.next_available(p_share_partition_id bigint, p_from bigint, p_at timestamp with time zone, p_leave_out int8multirange DEFAULT '{}'::int8multirange) RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
    select first_offset from sharequeue.in_flight_batches
    where share_partition_id = p_share_partition_id and state = 0 and first_offset >= p_from
        and (not_before is null or not_before <= p_at)
        and (isempty(p_leave_out) or not sharequeue_internal.offsets_of(first_offset, last_offset, offsets) <@ p_leave_out)
    order by share_partition_id, state, first_offset limit 1
$$;

-- FUNCTION next_delivery(smallint, bigint, integer)

CREATE FUNCTION sharequeue_internal.next_delivery(p_delivery_count smallint, p_isolate bigint, p_limit integer) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select case when p_isolate is not null and p_delivery_count >= p_limit then p_delivery_count
        else p_delivery_count + 1 end::smallint
$$;

-- FUNCTION next_epoch_of_empty_group(text)

CREATE FUNCTION sharequeue_internal.next_epoch_of_empty_group(p_group_id text) RETURNS integer
    LANGUAGE plpgsql
    AS $$
declare
    v_epoch integer;
begin
    insert into sharequeue.share_groups (group_id, group_epoch) values (p_group_id, 0)
    on conflict on constraint share_groups_pkey do nothing;
    -- Somebody else may have made it meanwhile, and joined it.
    perform sharequeue_internal.lock_empty_group(p_group_id);
    update sharequeue.share_groups set group_epoch = group_epoch + 1, assignment_epoch = group_epoch + 1
    where group_id = p_group_id returning group_epoch into v_epoch;
    return v_epoch;
end
$$;

-- FUNCTION next_suspects(text, text, integer, int8multirange)

CREATE FUNCTION sharequeue_internal.next_suspects(p_group_id text, p_topic text, p_partition integer, p_leave_out int8multirange, OUT suspects boolean, OUT last_attempt boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
declare
    v_sp record;
    v_at timestamptz := sharequeue.clock();
begin
    suspects := false;
    last_attempt := false;
    select sp.share_partition_id, sp.redeliverable, sp.next_expiry, s.delivery_count_limit into v_sp
    from sharequeue.share_partitions sp join sharequeue.group_settings s using (group_id)
    where sp.group_id = p_group_id and sp.topic = p_topic and sp.partition = p_partition;
    if v_sp.next_expiry <= v_at then
        perform sharequeue_internal.settle_lapsed(v_sp.share_partition_id, v_at);
    elsif not coalesce(v_sp.redeliverable, false) then
        return;
    end if;
    select f.isolate is not null, f.isolate is not null and f.delivery_count >= v_sp.delivery_count_limit - 1
    into suspects, last_attempt
    from sharequeue.in_flight_batches f
    where f.share_partition_id = v_sp.share_partition_id and f.state = 0
        and f.first_offset = sharequeue_internal.next_available(v_sp.share_partition_id, 0, v_at, p_leave_out)
        and (f.not_before is null or f.not_before <= v_at)
        and not sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) <@ p_leave_out
    order by lower(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)) limit 1;
    suspects := coalesce(suspects, false);
    last_attempt := coalesce(last_attempt, false);
end
$$;

-- FUNCTION not_before_fault(timestamp with time zone)

CREATE FUNCTION sharequeue_internal.not_before_fault(p_not_before timestamp with time zone) RETURNS text
    LANGUAGE plpgsql STABLE
    AS $$
begin
    if p_not_before = 'infinity' or p_not_before > sharequeue.clock() + interval '100 years' then
        return 'records wait for 100 years at most: to keep them for good, reject them';
    end if;
    return null;
end
$$;

-- FUNCTION note_attempts(bigint, bigint[], int8multirange)

CREATE FUNCTION sharequeue_internal.note_attempts(p_id bigint, p_lease_ids bigint[], p_offsets int8multirange DEFAULT NULL::int8multirange) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_group_id text;
    v_spso bigint;
begin
    select group_id, spso into v_group_id, v_spso from sharequeue.share_partitions where share_partition_id = p_id;
    delete from sharequeue.failed_attempts where share_partition_id = p_id and past <= v_spso;
    insert into sharequeue.failed_attempts (share_partition_id, lease_id, member_id, client_id, acquired_at, past, offsets)
    select p_id, l.lease_id, l.member_id, coalesce((select m.client_id from sharequeue.members m
            where m.group_id = v_group_id and m.member_id = l.member_id), ''), l.acquired_at, upper(x.offsets), x.offsets
    from unnest(p_lease_ids) as e (lease_id)
    cross join lateral (
        select lease_id, member_id, acquired_at from sharequeue.leases where lease_id = e.lease_id offset 0) as l
    cross join lateral (
        -- One lease alone: whatever of it fails was asked for by name, and need not be looked up.
        select case when p_offsets is not null and cardinality(p_lease_ids) = 1 then p_offsets else (
            select range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets))
                * coalesce(p_offsets, int8multirange(int8range(v_spso, null)))
            from sharequeue.in_flight_batches f where f.lease_id = e.lease_id) end as offsets offset 0) as x
    where not isempty(x.offsets);
end
$$;

-- FUNCTION note_outage(interval, boolean)

CREATE FUNCTION sharequeue_internal.note_outage(p_longer_than interval, p_beat boolean) RETURNS interval
    LANGUAGE plpgsql
    AS $$
declare
    v_beat sharequeue.service_beat;
    v_at timestamptz;
begin
    select * into v_beat from sharequeue.service_beat for no key update;
    v_at := sharequeue.clock();
    if sharequeue_internal.was_away(v_beat) or v_at - v_beat.beat_at > p_longer_than then
        insert into sharequeue.service_run default values on conflict on constraint service_run_pkey do nothing;
        update sharequeue.service_beat
        set outage_from = v_beat.beat_at, outage_until = v_at + sharequeue_internal.outage_margin(), beat_at = v_at,
            server_started_at = pg_postmaster_start_time();
        return v_at - v_beat.beat_at;
    elsif p_beat then
        update sharequeue.service_beat set beat_at = v_at;
    end if;
    return null;
end
$$;

-- FUNCTION offsets_fault(int8multirange)

CREATE FUNCTION sharequeue_internal.offsets_fault(p_offsets int8multirange) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
begin
    if p_offsets is null or lower_inf(p_offsets) or upper_inf(p_offsets) or lower(p_offsets) < 0
            or upper(p_offsets) > 9223372036854775807 then
        return 'a set of offsets lies between 0 and 2^63 - 2 and has both ends';
    end if;
    return null;
end
$$;

-- FUNCTION offsets_from(int8multirange, bigint)

CREATE FUNCTION sharequeue_internal.offsets_from(p_offsets int8multirange, p_first bigint) RETURNS int8multirange
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (lower(p_offsets) < p_first) THEN (p_offsets * int8multirange(int8range(p_first, NULL::bigint))) ELSE p_offsets END;

-- FUNCTION offsets_of(bigint, bigint, int8multirange)

CREATE FUNCTION sharequeue_internal.offsets_of(p_first bigint, p_last bigint, p_offsets int8multirange) RETURNS int8multirange
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select coalesce(p_offsets, pg_catalog.int8multirange(pg_catalog.int8range(p_first, p_last + 1)))
$$;

-- FUNCTION open_circuit(bigint, sharequeue.group_settings, timestamp with time zone, text)

CREATE FUNCTION sharequeue_internal.open_circuit(p_id bigint, p_settings sharequeue.group_settings, p_at timestamp with time zone, p_reason text) RETURNS void
    LANGUAGE sql
    AS $$
    update sharequeue.circuit_breakers
    set state = 'open', opened_at = coalesce(opened_at, p_at), probe = '{}',
        retry_at = p_at + p_settings.breaker_open_ms * interval '1 millisecond',
        reason = p_reason || ', more than ' || p_settings.breaker_percent || ' %'
    where share_partition_id = p_id
$$;

-- FUNCTION outage_margin()

CREATE FUNCTION sharequeue_internal.outage_margin() RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ select pg_catalog.make_interval(secs => 5) $$;

-- FUNCTION outlast_outage(bigint, timestamp with time zone)

CREATE FUNCTION sharequeue_internal.outlast_outage(p_share_partition_id bigint, p_at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    v_beat sharequeue.service_beat;
begin
    select * into v_beat from sharequeue.service_beat;
    if not found then
        return;
    end if;
    if sharequeue_internal.was_away(v_beat) then
        -- Skipped where somebody else is at it, who notes the same: who waited for the row could hold a share-partition
        -- that he waits for (30_state/lock_order.sql).
        perform from sharequeue.service_beat for no key update skip locked;
        if found then
            perform sharequeue_internal.note_outage(null, false);
        end if;
        select * into v_beat from sharequeue.service_beat;
        if sharequeue_internal.was_away(v_beat) then
            v_beat.outage_from := v_beat.beat_at;
            v_beat.outage_until := sharequeue.clock() + sharequeue_internal.outage_margin();
        end if;
    end if;
    if v_beat.outage_until is not null then
        update sharequeue.leases set expires_at = expires_at + (v_beat.outage_until - v_beat.outage_from)
        where share_partition_id = p_share_partition_id and expires_at <= p_at
            and expires_at > v_beat.outage_from and expires_at <= v_beat.outage_until
            and expires_at - lock_duration_ms * interval '1 millisecond'
                <= v_beat.outage_from + sharequeue_internal.outage_margin();
    end if;
end
$$;

-- FUNCTION outputs_fault(jsonb)

CREATE FUNCTION sharequeue_internal.outputs_fault(p_outputs jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
declare
    v_output jsonb;
    v_sinks text[] := '{}';
begin
    if p_outputs = '[]' then
        return null;
    elsif p_outputs is null or jsonb_typeof(p_outputs) <> 'array' then
        return 'outputs are a list of objects with sink, location and records';
    end if;
    for v_output in select * from jsonb_array_elements(p_outputs) loop
        if jsonb_typeof(v_output) <> 'object' or jsonb_typeof(v_output->'sink') is distinct from 'string'
                or jsonb_typeof(v_output->'location') is distinct from 'string'
                or jsonb_typeof(v_output->'records') is distinct from 'number' then
            return 'an output has a sink and a location in words, and its number of records';
        elsif length(v_output->>'sink') not between 1 and 249 or length(v_output->>'location') not between 1 and 4096 then
            return 'the name of a sink has 1 to 249 characters, a location 1 to 4,096';
        elsif (v_output->>'records')::numeric not between 0 and 9223372036854775807
                or (v_output->>'records')::numeric <> trunc((v_output->>'records')::numeric) then
            return 'an output has a whole number of records, 0 or more';
        elsif v_output->>'sink' = any (v_sinks) then
            return format('sink %s is named twice', v_output->>'sink');
        end if;
        v_sinks := v_sinks || (v_output->>'sink');
    end loop;
    return null;
end
$$;

-- FUNCTION place(bigint, bigint, bigint, smallint, smallint, int8multirange, bigint, text, bigint, timestamp with time zone)

CREATE FUNCTION sharequeue_internal.place(p_share_partition_id bigint, p_first bigint, p_last bigint, p_state smallint, p_delivery_count smallint, p_offsets int8multirange, p_lease_id bigint DEFAULT NULL::bigint, p_cause text DEFAULT NULL::text, p_isolate bigint DEFAULT NULL::bigint, p_not_before timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    if isempty(p_offsets) then
        return;
    end if;
    update sharequeue.in_flight_batches set offsets = offsets + p_offsets
    where share_partition_id = p_share_partition_id and first_offset = p_first and state = p_state
        and delivery_count = p_delivery_count and lease_id is not distinct from p_lease_id
        and cause is not distinct from p_cause and isolate is not distinct from p_isolate
        and not_before is not distinct from p_not_before;
    if not found then
        insert into sharequeue.in_flight_batches
            (share_partition_id, first_offset, last_offset, part, state, delivery_count, lease_id, cause, isolate,
             not_before, offsets)
        select p_share_partition_id, p_first, p_last, coalesce(max(part), 0) + 1, p_state, p_delivery_count, p_lease_id,
            p_cause, p_isolate, p_not_before, p_offsets
        from sharequeue.in_flight_batches where share_partition_id = p_share_partition_id and first_offset = p_first;
    end if;
end
$$;

-- FUNCTION read_batches(bigint[], bigint[], smallint[], integer[], boolean)

CREATE FUNCTION sharequeue_internal.read_batches(p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[], p_renew_allowed boolean, OUT wrong text, OUT doubled boolean, OUT acknowledgements sharequeue.acknowledgements) RETURNS record
    LANGUAGE plpgsql IMMUTABLE
    AS $$
declare
    v_batches integer := coalesce(array_length(p_firsts, 1), 0);
    v_read record;
begin
    if p_firsts is null or p_lasts is null or p_types is null then
        wrong := 'batches need first offsets, last offsets and types';
    elsif v_batches > sharequeue_internal.max_runs() then
        wrong := format('%s batches in one call; at most %s', v_batches, sharequeue_internal.max_runs());
    elsif coalesce(array_length(p_lasts, 1), 0) <> v_batches
            or coalesce(array_length(coalesce(p_type_counts, p_types), 1), 0) <> v_batches then
        wrong := 'every batch needs a first offset, a last offset and at least one type';
    elsif p_type_counts is not null and (
            select coalesce(sum(c), 0) <> coalesce(array_length(p_types, 1), 0) or bool_or(c is null or c < 1)
            from unnest(p_type_counts) as c) then
        wrong := 'the types do not match their counts';
    end if;
    if wrong is not null then
        return;
    end if;
    if p_type_counts is null then
        -- The usual case, at 0.9 µs a batch; an aggregate a type costs a tenth of that. What is wrong stays out of the sets:
        -- a reversed range could not even be made.
        select min(run) filter (where not fine) as wrong, min(run) filter (where fine and type_wrong) as type_wrong,
            coalesce(bool_or(first = before), false) as doubled,
            coalesce(range_agg(int8range(first, last + 1)) filter (where fine and type = 1), '{}') as accept,
            coalesce(range_agg(int8range(first, last + 1)) filter (where fine and type = 2), '{}') as release,
            coalesce(range_agg(int8range(first, last + 1)) filter (where fine and type = 3), '{}') as reject,
            coalesce(range_agg(int8range(first, last + 1)) filter (where fine and type = 0), '{}') as gap,
            coalesce(range_agg(int8range(first, last + 1)) filter (where fine and type = 4), '{}') as renew
        into v_read
        from (
            select run, first, last, type, before,
                coalesce(first >= 0 and last <= 9223372036854775806 and first <= last
                    and first >= coalesce(before, 0), false) as fine,
                coalesce(type not between 0 and 4 or (type = 4 and not p_renew_allowed), true) as type_wrong
            from (
                select run, first, last, type, lag(last) over (order by run) as before
                from unnest(p_firsts, p_lasts, p_types) with ordinality as b (first, last, type, run)
            ) as b
        ) as b;
    else
        select min(run) filter (where not fine) as wrong, null::bigint as type_wrong,
            coalesce(bool_or(first = before), false) as doubled
        into v_read
        from (
            select run, first, before,
                coalesce(first >= 0 and last <= 9223372036854775806 and first <= last
                    and first >= coalesce(before, 0) and (types = 1 or types = last - first + 1), false) as fine
            from (
                select run, first, last, types, lag(last) over (order by run) as before
                from unnest(p_firsts, p_lasts, p_type_counts) with ordinality as b (first, last, types, run)
            ) as b
        ) as b;
    end if;
    wrong := sharequeue_internal.batch_fault(p_firsts, p_lasts, p_type_counts, v_read.wrong);
    if wrong is null and (p_type_counts is not null or v_read.type_wrong is not null) then
        select case when type = 4 then 'a renewal in a request that is not marked as renewing (IsRenewAck)'
            else format('there is no acknowledge type %s', type) end into wrong
        from unnest(p_types) as type
        where type is null or type not between 0 and 4 or (type = 4 and not p_renew_allowed) limit 1;
    end if;
    doubled := v_read.doubled;
    if wrong is not null then
        return;
    elsif p_type_counts is null then
        acknowledgements := row(v_read.accept, v_read.release, v_read.reject, v_read.gap, v_read.renew);
    else
        select coalesce(range_agg(int8range(first, past)) filter (where type = 1), '{}') as accept,
            coalesce(range_agg(int8range(first, past)) filter (where type = 2), '{}') as release,
            coalesce(range_agg(int8range(first, past)) filter (where type = 3), '{}') as reject,
            coalesce(range_agg(int8range(first, past)) filter (where type = 0), '{}') as gap,
            coalesce(range_agg(int8range(first, past)) filter (where type = 4), '{}') as renew
        into acknowledgements
        from sharequeue_internal.runs(p_firsts, p_lasts, p_types, p_type_counts);
    end if;
end
$$;

-- FUNCTION redeliver(bigint, bigint, bigint, bigint, sharequeue.taken_offsets, integer)

CREATE FUNCTION sharequeue_internal.redeliver(p_id bigint, p_first bigint, p_last bigint, p_lease_id bigint, p_got sharequeue.taken_offsets, p_limit integer) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    v_part record;
begin
    for v_part in
        select f.part, t.delivery_count,
            sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) * t.offsets as offsets
        from sharequeue.in_flight_batches f
        join (
            select c.delivery_count, range_agg(int8range(c.first, c.last + 1)) as offsets
            from unnest(p_got.firsts, p_got.lasts, p_got.delivery_counts) as c (first, last, delivery_count)
            group by c.delivery_count
        ) as t on t.delivery_count = sharequeue_internal.next_delivery(f.delivery_count, f.isolate, p_limit)
            and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) && t.offsets
        where f.share_partition_id = p_id and f.first_offset = p_first and f.state = 0
    loop
        perform sharequeue_internal.take(p_id, p_first, v_part.part, v_part.offsets);
        perform sharequeue_internal.place(p_id, p_first, p_last, 1::smallint, v_part.delivery_count, v_part.offsets,
            p_lease_id);
    end loop;
end
$$;

-- FUNCTION refund(bigint, int8multirange)

CREATE FUNCTION sharequeue_internal.refund(p_id bigint, p_offsets int8multirange) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    v_part record;
begin
    if isempty(p_offsets) then
        return;
    end if;
    for v_part in
        select f.first_offset, f.last_offset, f.part, f.delivery_count, f.lease_id, f.offsets,
            sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) * p_offsets as refunded
        from sharequeue.in_flight_batches f
        where f.share_partition_id = p_id and f.state = 1 and f.first_offset < upper(p_offsets)
            and f.last_offset >= lower(p_offsets)
            and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) && p_offsets
        order by f.first_offset, f.delivery_count
    loop
        if v_part.offsets is null
                and v_part.refunded = int8multirange(int8range(v_part.first_offset, v_part.last_offset + 1)) then
            update sharequeue.in_flight_batches set delivery_count = delivery_count - 1
            where share_partition_id = p_id and first_offset = v_part.first_offset;
        else
            perform sharequeue_internal.take(p_id, v_part.first_offset, v_part.part, v_part.refunded);
            perform sharequeue_internal.place(p_id, v_part.first_offset, v_part.last_offset, 1::smallint,
                (v_part.delivery_count - 1)::smallint, v_part.refunded, v_part.lease_id);
        end if;
    end loop;
end
$$;

-- FUNCTION release_of(bigint, text, uuid, boolean, boolean)

CREATE FUNCTION sharequeue_internal.release_of(p_share_partition_id bigint, p_member_id text, p_token uuid, p_cancelled boolean, p_refund boolean) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
declare
    v_lease_id bigint;
    v_ended record;
    v_completed bigint := 0;
    v_released bigint := 0;
begin
    perform sharequeue_internal.unfold(p_share_partition_id);
    for v_lease_id in
        select l.lease_id from sharequeue.leases l
        where l.share_partition_id = p_share_partition_id and l.member_id = p_member_id
            and (p_token is null or l.token = p_token)
        order by l.lease_id
    loop
        if p_cancelled or p_refund then
            select e.held, e.completed into v_ended
            from sharequeue_internal.end_cancelled(p_share_partition_id, v_lease_id, p_refund) as e;
        else
            select e.held, e.completed into v_ended from sharequeue_internal.end_unacknowledged(p_share_partition_id, v_lease_id) as e;
        end if;
        v_released := v_released + v_ended.held;
        v_completed := v_completed + v_ended.completed;
    end loop;
    perform sharequeue_internal.advance_spso(p_share_partition_id, v_completed);
    return v_released;
end
$$;

-- FUNCTION remember(uuid, text, jsonb)

CREATE FUNCTION sharequeue_internal.remember(p_request_key uuid, p_operation text, p_result jsonb) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    if p_request_key is not null then
        insert into sharequeue.requests (request_key, operation, answer, answered_at)
        values (p_request_key, p_operation, p_result, sharequeue.clock());
    end if;
end
$$;

-- FUNCTION renew_next_expiry(bigint)

CREATE FUNCTION sharequeue_internal.renew_next_expiry(p_share_partition_id bigint) RETURNS void
    LANGUAGE sql
    AS $$
    update sharequeue.share_partitions set next_expiry = (
        select l.expires_at from sharequeue.leases l where l.share_partition_id = p_share_partition_id
        order by l.share_partition_id, l.expires_at limit 1)
    where share_partition_id = p_share_partition_id
$$;

-- FUNCTION renew_offsets(bigint, sharequeue.group_settings, text, uuid, int8multirange, timestamp with time zone)

CREATE FUNCTION sharequeue_internal.renew_offsets(p_id bigint, p_settings sharequeue.group_settings, p_member_id text, p_token uuid, p_offsets int8multirange, p_at timestamp with time zone) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
declare
    v_lease record;
    v_part record;
    v_leases bigint[];
    v_lease_id bigint;
    v_renewed bigint := 0;
    v_soonest timestamptz;
begin
    if isempty(p_offsets) then
        return 0;
    end if;
    v_leases := sharequeue_internal.leases_between(p_id, sharequeue_internal.batch_at(p_id, lower(p_offsets)), upper(p_offsets) - 1,
        p_member_id, p_token);
    for v_lease in
        select l.lease_id, bool_and(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) <@ p_offsets)
                as whole, sum(sharequeue.records(
                    sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) * p_offsets)) as records,
            p_at + case when l.own_lock_duration then l.lock_duration_ms else p_settings.lock_duration_ms end
                * interval '1 millisecond' as expires_at
        from sharequeue.leases l join sharequeue.in_flight_batches f using (lease_id)
        where l.lease_id = any (v_leases)
        group by l.lease_id order by l.lease_id
    loop
        continue when v_lease.records = 0;
        v_renewed := v_renewed + v_lease.records;
        v_soonest := least(v_soonest, v_lease.expires_at);
        if v_lease.whole then
            update sharequeue.leases set expires_at = v_lease.expires_at where lease_id = v_lease.lease_id;
            continue;
        end if;
        insert into sharequeue.leases (share_partition_id, member_id, member_epoch, token, lock_duration_ms,
            acquired_at, expires_at, fan_out, own_lock_duration)
        select share_partition_id, member_id, member_epoch, token, lock_duration_ms, acquired_at, v_lease.expires_at,
            fan_out, own_lock_duration
        from sharequeue.leases where lease_id = v_lease.lease_id
        returning lease_id into v_lease_id;
        for v_part in
            select first_offset, last_offset, part, delivery_count, offsets,
                sharequeue_internal.offsets_of(first_offset, last_offset, offsets) * p_offsets as renewed
            from sharequeue.in_flight_batches
            where lease_id = v_lease.lease_id
                and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) && p_offsets
        loop
            if v_part.offsets is null
                    and v_part.renewed = int8multirange(int8range(v_part.first_offset, v_part.last_offset + 1)) then
                update sharequeue.in_flight_batches set lease_id = v_lease_id
                where share_partition_id = p_id and first_offset = v_part.first_offset;
            else
                perform sharequeue_internal.take(p_id, v_part.first_offset, v_part.part, v_part.renewed);
                perform sharequeue_internal.place(p_id, v_part.first_offset, v_part.last_offset, 1::smallint,
                    v_part.delivery_count, v_part.renewed, v_lease_id);
            end if;
        end loop;
    end loop;
    -- Sooner than before, where the group's lock duration has become shorter since.
    update sharequeue.share_partitions set next_expiry = v_soonest
    where share_partition_id = p_id and next_expiry > v_soonest;
    return v_renewed;
end
$$;

-- FUNCTION replay_from(bigint, bigint, bigint)

CREATE FUNCTION sharequeue_internal.replay_from(p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint) RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
    select coalesce(max(j.journal_id), p_snapshot_id) from sharequeue.journal j
    where j.share_partition_id = p_share_partition_id and j.journal_id >= p_snapshot_id
        and (p_until is null or j.journal_id <= p_until) and j.kind = 'fetch' and j.gone_lease_id is null
$$;

-- FUNCTION replay_offsets(int8multirange, text, int8multirange)

CREATE FUNCTION sharequeue_internal.replay_offsets(p_before int8multirange, p_kind text, p_offsets int8multirange) RETURNS int8multirange
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select case p_kind
        when 'offsets_added' then p_before + p_offsets
        when 'offsets_taken' then p_before - p_offsets
        else p_offsets end
$$;

-- FUNCTION request_key(bigint, text, text, uuid)

CREATE FUNCTION sharequeue_internal.request_key(p_share_partition_id bigint, p_operation text, p_member_id text, p_request_id uuid) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select encode(substr(sha256(convert_to(
        p_share_partition_id || ' ' || p_operation || ' ' || p_request_id || ' ' || p_member_id, 'UTF8')), 1, 16),
        'hex')::uuid
$$;

-- FUNCTION request_key_many(text, text[], integer[], text, text, uuid)

CREATE FUNCTION sharequeue_internal.request_key_many(p_group_id text, p_topics text[], p_partitions integer[], p_operation text, p_member_id text, p_request_id uuid) RETURNS uuid
    LANGUAGE sql STABLE
    AS $$
    select md5(p_operation || p_request_id || jsonb_build_array(p_group_id, p_topics, p_partitions, p_member_id))::uuid
    where p_request_id is not null and sharequeue_internal.authorised(p_group_id, 'READ')
$$;

-- FUNCTION role_named(text)

CREATE FUNCTION sharequeue_internal.role_named(p_purpose text) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select coalesce(
        (select role_name from sharequeue.roles where purpose = p_purpose), 'sharequeue_' || p_purpose)
$$;

-- FUNCTION runs(bigint[], bigint[], smallint[], integer[])

CREATE FUNCTION sharequeue_internal.runs(p_firsts bigint[], p_lasts bigint[], p_types smallint[], p_type_counts integer[]) RETURNS TABLE(run bigint, first bigint, past bigint, type smallint)
    LANGUAGE plpgsql IMMUTABLE
    AS $$
begin
    if p_type_counts is null then
        return query
            select b.run, b.first, b.last + 1, b.type
            from unnest(p_firsts, p_lasts, p_types) with ordinality as b (first, last, type, run);
    else
        return query
            with batches as (
                select b.run, b.first, b.last, b.types, sum(b.types) over (order by b.run) - b.types as before
                from unnest(p_firsts, p_lasts, p_type_counts) with ordinality as b (first, last, types, run)
            )
            select b.run, case when b.types = 1 then b.first else b.first + i - 1 end,
                case when b.types = 1 then b.last + 1 else b.first + i end, p_types[b.before + i]
            from batches b, generate_series(1, b.types) as i;
    end if;
end
$$;

-- FUNCTION settle_lapsed(bigint, timestamp with time zone, bigint)

CREATE FUNCTION sharequeue_internal.settle_lapsed(p_share_partition_id bigint, p_at timestamp with time zone, p_limit bigint DEFAULT NULL::bigint, OUT leases bigint, OUT records bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
declare
    v_lease_ids bigint[];
    v_completed bigint;
    v_later boolean;
begin
    leases := 0;
    records := 0;
    v_later := sharequeue_internal.is_folded_until_later(p_share_partition_id, p_at);
    perform sharequeue_internal.outlast_outage(p_share_partition_id, p_at);
    if v_later then
        return;
    end if;
    v_lease_ids := array(
        select l.lease_id from sharequeue.leases l
        where l.share_partition_id = p_share_partition_id and l.expires_at <= p_at
        order by l.share_partition_id, l.expires_at limit p_limit);
    leases := cardinality(v_lease_ids);
    if leases > 0 then
        select e.held, e.completed into records, v_completed
        from sharequeue_internal.end_leases(p_share_partition_id, v_lease_ids) as e;
        perform sharequeue_internal.advance_spso(p_share_partition_id, v_completed);
    end if;
    perform sharequeue_internal.renew_next_expiry(p_share_partition_id);
end
$$;

-- FUNCTION share_group_named()

CREATE FUNCTION sharequeue_internal.share_group_named() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform sharequeue_internal.check_group_id(new.group_id);
    return new;
end
$$;

-- FUNCTION share_partition_gone()

CREATE FUNCTION sharequeue_internal.share_partition_gone() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
begin
    delete from sharequeue.in_flight_batches where share_partition_id = old.share_partition_id;
    delete from sharequeue.leases where share_partition_id = old.share_partition_id;
    return null;
end
$$;

-- FUNCTION span(sharequeue.acknowledgements)

CREATE FUNCTION sharequeue_internal.span(p_acknowledgements sharequeue.acknowledgements) RETURNS int8multirange
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select case when first is null then '{}' else int8multirange(int8range(first, past)) end
    from (
        select least(lower((p_acknowledgements).accept), lower((p_acknowledgements).release), lower((p_acknowledgements).reject),
                lower((p_acknowledgements).gap), lower((p_acknowledgements).renew)) as first,
            greatest(upper((p_acknowledgements).accept), upper((p_acknowledgements).release), upper((p_acknowledgements).reject),
                upper((p_acknowledgements).gap), upper((p_acknowledgements).renew)) as past
    ) as ends
$$;

-- FUNCTION stored_fetch(text, text, integer, uuid, text, uuid, bigint)

CREATE FUNCTION sharequeue_internal.stored_fetch(p_group_id text, p_topic text, p_partition integer, p_request_id uuid, p_member_id text, p_token uuid, p_first bigint) RETURNS sharequeue.acknowledged_and_acquired
    LANGUAGE plpgsql
    AS $$
declare
    v_sp sharequeue.share_partitions;
    v_result sharequeue.acknowledged_and_acquired;
begin
    select * into v_sp from sharequeue.share_partitions
    where group_id = p_group_id and topic = p_topic and partition = p_partition for no key update;
    if coalesce((select acls_apply from sharequeue.group_settings where group_id = p_group_id), true)
            and not sharequeue_internal.authorised(p_group_id, 'READ') then
        return null;
    elsif v_sp.folded_request_id = p_request_id and v_sp.folded_member_id = p_member_id then
        return sharequeue_internal.folded_fetch(v_sp);
    end if;
    select (fetched).* into v_result from sharequeue.requests
    where request_key = sharequeue_internal.request_key(
        v_sp.share_partition_id, 'acknowledge_and_acquire', p_member_id, p_request_id);
    if v_result.acknowledge_error_code is null and not exists (
        -- What it acknowledges is still held: it has not been done before. Spares a walk over the leases.
        select from sharequeue.in_flight_batches f
        where f.share_partition_id = v_sp.share_partition_id and f.first_offset = p_first and f.part = 0
            and f.state = 1 and p_token is not null and sharequeue_internal.is_holder(f.lease_id, p_member_id, p_token)
    ) then
        select (l.fetched).* into v_result from sharequeue.leases l
        where l.share_partition_id = v_sp.share_partition_id and l.request_id = p_request_id
            and l.member_id = p_member_id;
    end if;
    return v_result;
end
$$;

-- FUNCTION stored_result(uuid)

CREATE FUNCTION sharequeue_internal.stored_result(p_request_key uuid) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    AS $$
begin
    return (select coalesce(answer, jsonb_build_array(fetched)) from sharequeue.requests
        where request_key = p_request_key);
end
$$;

-- FUNCTION take(bigint, bigint, integer, int8multirange)

CREATE FUNCTION sharequeue_internal.take(p_share_partition_id bigint, p_first bigint, p_part integer, p_offsets int8multirange) RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    if isempty(p_offsets) then
        return;
    end if;
    delete from sharequeue.in_flight_batches
    where share_partition_id = p_share_partition_id and first_offset = p_first and part = p_part
        and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) <@ p_offsets;
    if not found then
        update sharequeue.in_flight_batches
        set offsets = sharequeue_internal.offsets_of(first_offset, last_offset, offsets) - p_offsets
        where share_partition_id = p_share_partition_id and first_offset = p_first and part = p_part;
    end if;
end
$$;

-- FUNCTION take_batch(bigint, bigint, bigint, bigint, bigint, timestamp with time zone, bigint, bigint, integer)

CREATE FUNCTION sharequeue_internal.take_batch(p_id bigint, p_first bigint, p_read_first bigint, p_read_last bigint, p_lease_id bigint, p_at timestamp with time zone, p_most bigint, p_before bigint, p_limit integer) RETURNS sharequeue.taken_offsets
    LANGUAGE plpgsql
    AS $$
declare
    v_threshold integer := greatest(2, (p_limit + 1) / 2);
    v_batch record;
    v_run record;
    v_cap bigint;
    v_take bigint;
    v_stop boolean := false;
    v_got sharequeue.taken_offsets;
    v_read int8multirange := int8multirange(int8range(p_read_first, p_read_last + 1));
begin
    v_got.records := 0;
    v_got.by_offset := false;
    v_got.throttled := false;
    select f.last_offset, bool_or(f.offsets is not null) as exploded,
        max(f.delivery_count) filter (where v_read && sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets))
            as highest
    into v_batch
    from sharequeue.in_flight_batches f
    where f.share_partition_id = p_id and f.first_offset = p_first and f.state = 0
        and (f.not_before is null or f.not_before <= p_at)
    group by f.last_offset;
    if v_batch.highest is null then
        return v_got;
    end if;
    v_got.throttled := v_batch.highest >= v_threshold;
    if v_got.throttled and p_before > 0 then
        return v_got;
    end if;
    if not v_got.throttled and not v_batch.exploded and p_first >= p_read_first and v_batch.last_offset <= p_read_last
            and (p_most is null or v_batch.last_offset - p_first + 1 <= p_most) then
        update sharequeue.in_flight_batches
        set state = 1, delivery_count = delivery_count + 1, lease_id = p_lease_id, isolate = null, not_before = null
        where share_partition_id = p_id and first_offset = p_first
        returning array[first_offset], array[last_offset], array[delivery_count]
        into v_got.firsts, v_got.lasts, v_got.delivery_counts;
        v_got.records := v_batch.last_offset - p_first + 1;
        return v_got;
    end if;
    v_got.by_offset := true;
    for v_run in
        select f.part, f.delivery_count, lower(r) as first, upper(r) - lower(r) as records,
            sharequeue_internal.next_delivery(f.delivery_count, f.isolate, p_limit) as delivery
        from sharequeue.in_flight_batches f,
            unnest(v_read * sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)) as r
        where f.share_partition_id = p_id and f.first_offset = p_first and f.state = 0
            and (f.not_before is null or f.not_before <= p_at)
        order by lower(r)
    loop
        v_take := v_run.records;
        -- The last attempt goes alone (R-TH-5); so does one more for a suspect that shared its last.
        if (p_limit > 2 and v_run.delivery_count = p_limit - 1) or v_run.delivery = v_run.delivery_count then
            exit when v_got.records > 0;
            v_take := 1;
            v_stop := true;
        elsif v_got.throttled then
            if v_cap is null and v_run.delivery_count >= v_threshold then
                v_cap := greatest(1, (v_batch.last_offset - p_first + 1) >> (v_run.delivery_count - v_threshold + 1));
            end if;
            -- It stops where the number acquired equals the cap. Where runs of another count have gone past it
            -- already, it never does: the broker's own quirk (R-TH-4).
            if v_cap > v_got.records and v_cap <= v_got.records + v_take then
                v_take := v_cap - v_got.records;
                v_stop := true;
            end if;
        end if;
        if p_most is not null and p_most <= v_got.records + v_take then
            v_take := p_most - v_got.records;
            v_stop := true;
        end if;
        v_got.firsts := v_got.firsts || v_run.first;
        v_got.lasts := v_got.lasts || (v_run.first + v_take - 1);
        v_got.delivery_counts := v_got.delivery_counts || v_run.delivery;
        v_got.records := v_got.records + v_take;
        exit when v_stop;
    end loop;
    perform sharequeue_internal.redeliver(p_id, p_first, v_batch.last_offset, p_lease_id, v_got, p_limit);
    return v_got;
end
$$;

-- FUNCTION take_fan_out(sharequeue.share_partitions, sharequeue.group_settings, bigint, bigint, bigint, timestamp with time zone, int8multirange)

CREATE FUNCTION sharequeue_internal.take_fan_out(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_max_records bigint, p_read_end bigint, p_lease_id bigint, p_at timestamp with time zone, p_leave_out int8multirange) RETURNS sharequeue.taken
    LANGUAGE plpgsql
    AS $$
declare
    v_id bigint := p_sp.share_partition_id;
    v_head record;
    v_first bigint;
    v_part record;
    v_offsets int8multirange;
    v_budget bigint := p_max_records;
    v_count smallint;
    v_fresh_to bigint;
    v_taken sharequeue.taken;
    -- Nothing past what may be read is delivered again: after a change to read_committed, the records of a transaction that
    -- is still open would be absent to their reader, and pass for gaps.
    v_leave_out int8multirange := case when p_read_end < p_sp.speo
        then p_leave_out + int8multirange(int8range(p_read_end, null)) else p_leave_out end;
begin
    if p_sp.redeliverable then
        v_first := sharequeue_internal.next_available(v_id, 0, p_at, v_leave_out);
        select f.isolate, f.delivery_count into v_head
        from sharequeue.in_flight_batches f
        where f.share_partition_id = v_id and f.first_offset = v_first and f.state = 0
            and (f.not_before is null or f.not_before <= p_at)
            and not sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) <@ v_leave_out
        order by lower(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets)) limit 1;
        if v_first is null then
            update sharequeue.share_partitions set redeliverable = false
            where share_partition_id = v_id and not exists (
                select from sharequeue.in_flight_batches where share_partition_id = v_id and state = 0);
        elsif v_head.isolate is not null then
            v_budget := least(v_budget, v_head.isolate);
        end if;
        while v_first is not null and v_budget > 0 loop
            select sharequeue_internal.first_records(
                range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets) - v_leave_out), v_budget)
            into v_offsets
            from sharequeue.in_flight_batches
            where share_partition_id = v_id and first_offset = v_first and state = 0
                and (not_before is null or not_before <= p_at) and isolate is not distinct from v_head.isolate
                and (isolate is null or delivery_count = v_head.delivery_count);
            for v_part in
                select f.part, f.last_offset, f.delivery_count, f.offsets,
                    sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) * v_offsets as taken
                from sharequeue.in_flight_batches f
                where f.share_partition_id = v_id and f.first_offset = v_first and f.state = 0
                    and (f.not_before is null or f.not_before <= p_at) and f.isolate is not distinct from v_head.isolate
                    and (f.isolate is null or f.delivery_count = v_head.delivery_count)
                    and sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) && v_offsets
            loop
                v_count := sharequeue_internal.next_delivery(
                    v_part.delivery_count, v_head.isolate, p_settings.delivery_count_limit);
                if v_part.offsets is null
                        and v_part.taken = int8multirange(int8range(v_first, v_part.last_offset + 1)) then
                    update sharequeue.in_flight_batches
                    set state = 1, delivery_count = v_count, lease_id = p_lease_id, isolate = null, not_before = null
                    where share_partition_id = v_id and first_offset = v_first;
                else
                    perform sharequeue_internal.take(v_id, v_first, v_part.part, v_part.taken);
                    perform sharequeue_internal.place(v_id, v_first, v_part.last_offset, 1::smallint, v_count, v_part.taken,
                        p_lease_id);
                end if;
            end loop;
            v_budget := v_budget - sharequeue.records(coalesce(v_offsets, '{}'));
            v_first := sharequeue_internal.next_available(v_id, v_first + 1, p_at, v_leave_out);
        end loop;
        if v_head.isolate is not null then
            v_budget := 0;
        end if;
    end if;
    -- Numbers of records are compared, not offsets: near 2^63 a sum would overflow.
    v_fresh_to := p_sp.speo + least(p_read_end - p_sp.speo, v_budget,
        p_settings.max_record_locks - sharequeue_internal.in_flight_span(p_sp, p_at));
    if v_fresh_to > p_sp.speo then
        insert into sharequeue.in_flight_batches
            (share_partition_id, first_offset, last_offset, state, delivery_count, lease_id)
        values (v_id, p_sp.speo, v_fresh_to - 1, 1, 1, p_lease_id);
        -- redeliverable is named so that the journal hears of it (70_journal/triggers.sql).
        update sharequeue.share_partitions set speo = v_fresh_to, redeliverable = redeliverable
        where share_partition_id = v_id;
    end if;
    select array_agg(t.delivery_count order by t.delivery_count), array_agg(t.offsets order by t.delivery_count)
    into v_taken.delivery_counts, v_taken.offsets
    from (
        select delivery_count, range_agg(sharequeue_internal.offsets_of(first_offset, last_offset, offsets)) as offsets
        from sharequeue.in_flight_batches where lease_id = p_lease_id group by delivery_count
    ) as t;
    return v_taken;
end
$$;

-- FUNCTION take_fresh(sharequeue.share_partitions, bigint, bigint, bigint, bigint, text, bigint, bigint[], bigint[], boolean)

CREATE FUNCTION sharequeue_internal.take_fresh(p_sp sharequeue.share_partitions, p_first bigint, p_last bigint, p_budget bigint, p_lease_id bigint, p_mode text, p_batch_size bigint, p_log_firsts bigint[], p_log_lasts bigint[], p_empty boolean) RETURNS sharequeue.taken_offsets
    LANGUAGE plpgsql
    AS $$
declare
    -- Nothing below SPEO is fresh: a log batch may begin below it, even where nothing in flight covers that.
    v_first bigint := greatest(p_first, p_sp.speo);
    v_last bigint := p_last;
    v_acquired_to bigint;
    v_log_first bigint;
    v_got sharequeue.taken_offsets;
begin
    v_got.records := 0;
    v_got.by_offset := false;
    v_got.throttled := false;
    if v_first > v_last then
        return v_got;
    end if;
    if p_budget < v_last - v_first + 1 then
        v_last := v_first + p_budget - 1;
        if p_log_firsts is not null then
            v_last := coalesce((select max(b.last) from unnest(p_log_firsts, p_log_lasts) as b (first, last)
                where b.first <= v_last and b.last >= v_last), v_last);
        end if;
    end if;
    v_acquired_to := v_last;
    if p_mode = 'record_limit' then
        v_acquired_to := least(v_last, v_first + p_budget - 1);
    elsif p_log_firsts is not null and v_last - v_first + 1 > p_batch_size then
        foreach v_log_first in array p_log_firsts loop
            exit when v_log_first > v_last;
            if v_log_first - v_first >= p_batch_size then
                v_got.firsts := v_got.firsts || v_first;
                v_got.lasts := v_got.lasts || (v_log_first - 1);
                v_first := v_log_first;
            end if;
        end loop;
    end if;
    v_got.firsts := v_got.firsts || v_first;
    v_got.lasts := v_got.lasts || v_acquired_to;
    v_got.delivery_counts := array_fill(1::smallint, array[array_length(v_got.firsts, 1)]);
    insert into sharequeue.in_flight_batches
        (share_partition_id, first_offset, last_offset, part, state, delivery_count, lease_id, offsets)
    select p_sp.share_partition_id, b.first, case when b.last = v_acquired_to then v_last else b.last end, 0, 1, 1,
        p_lease_id,
        case when v_last > v_acquired_to then int8multirange(int8range(b.first, b.last + 1)) end
    from unnest(v_got.firsts, v_got.lasts) as b (first, last);
    if v_last > v_acquired_to then
        perform sharequeue_internal.place(p_sp.share_partition_id, v_first, v_last, 0::smallint, 0::smallint,
            int8multirange(int8range(v_acquired_to + 1, v_last + 1)));
    end if;
    v_got.records := v_acquired_to - v_got.firsts[1] + 1;
    -- A first batch takes SPSO along: what lies before it was a hole (R-AQ-14).
    update sharequeue.share_partitions
    set speo = greatest(speo, v_last + 1), redeliverable = redeliverable or v_last > v_acquired_to,
        spso = case when p_empty then v_got.firsts[1] else spso end
    where share_partition_id = p_sp.share_partition_id;
    return v_got;
end
$$;

-- FUNCTION take_kafka(sharequeue.share_partitions, sharequeue.group_settings, bigint, bigint, bigint, timestamp with time zone, text, bigint, bigint[], bigint[], int8multirange)

CREATE FUNCTION sharequeue_internal.take_kafka(p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_max_records bigint, p_read_end bigint, p_lease_id bigint, p_at timestamp with time zone, p_mode text, p_batch_size bigint, p_log_firsts bigint[], p_log_lasts bigint[], p_aborted int8multirange) RETURNS sharequeue.taken
    LANGUAGE plpgsql
    AS $$
declare
    v_id bigint := p_sp.share_partition_id;
    -- Nothing in the window; what the log start has overtaken below it does not count.
    v_empty boolean := p_sp.spso = p_sp.speo;
    v_in_flight bigint := sharequeue_internal.in_flight_span(p_sp, p_at);
    v_available bigint;
    v_fetch bigint;
    v_log_base bigint;
    v_base bigint;
    v_from bigint;
    v_last bigint;
    v_budget bigint;
    v_acquired bigint := 0;
    v_firsts bigint[];
    v_lasts bigint[];
    v_cached record;
    v_batch record;
    v_got sharequeue.taken_offsets;
    v_result sharequeue.taken_offsets;
begin
    -- Where the fetch reads from (R-NF): the first redeliverable offset, else the first never delivered.
    if p_sp.redeliverable then
        v_available := sharequeue_internal.next_available(v_id, 0, p_at);
        if v_available is not null then
            select min(lower(sharequeue_internal.offsets_of(first_offset, last_offset, offsets))) into v_available
            from sharequeue.in_flight_batches
            where share_partition_id = v_id and first_offset = v_available and state = 0
                and (not_before is null or not_before <= p_at);
        else
            update sharequeue.share_partitions set redeliverable = false
            where share_partition_id = v_id and not exists (
                select from sharequeue.in_flight_batches where share_partition_id = v_id and state = 0);
        end if;
    end if;
    v_fetch := coalesce(v_available, p_sp.speo);
    if v_available is null and v_in_flight >= p_settings.max_record_locks and not v_empty then
        return null;
    end if;
    -- What the fetch read.
    if p_log_firsts is null then
        v_log_base := v_fetch;
        v_last := p_read_end - 1;
    else
        select array_agg(b.first order by b.first), array_agg(b.last order by b.first) into v_firsts, v_lasts
        from unnest(p_log_firsts, p_log_lasts) as b (first, last) where b.last >= v_fetch and b.last < p_read_end;
        v_log_base := v_firsts[1];
        v_last := v_lasts[array_upper(v_lasts, 1)];
    end if;
    if v_last is null or v_last < v_fetch or v_last < p_sp.spso then
        return null;
    end if;
    -- The budget (R-AQ-2).
    v_budget := least(p_max_records, p_settings.max_record_locks - v_in_flight);
    if v_budget <= 0 then
        if v_fetch >= p_sp.speo then
            return null;
        end if;
        v_budget := least(p_max_records, p_sp.speo - v_fetch);
        v_last := least(v_last, p_sp.speo - 1);
    end if;
    -- Redeliverable offsets that compaction has removed before the first batch read (R-AQ-3).
    if v_fetch < v_log_base then
        perform sharequeue_internal.archive_available(v_id, v_fetch, v_log_base - 1);
    end if;
    -- From which cached batch on (R-AQ-4).
    v_base := v_log_base;
    select first_offset, last_offset into v_cached from sharequeue.in_flight_batches
    where share_partition_id = v_id and first_offset <= v_log_base
    order by share_partition_id desc, first_offset desc limit 1;
    if not found then
        v_base := greatest(v_base, p_sp.spso);
    elsif v_cached.last_offset >= v_log_base then
        v_base := v_cached.first_offset;
    end if;
    v_from := least(v_base, v_log_base);
    select max(last_offset) into v_cached.last_offset from (
        select last_offset from sharequeue.in_flight_batches
        where share_partition_id = v_id and first_offset between v_from and v_last
        order by share_partition_id desc, first_offset desc limit 1) as f;
    if v_cached.last_offset is not null then
        v_from := v_from - 1;
        loop
            exit when v_acquired >= v_budget;
            v_from := sharequeue_internal.next_available(v_id, v_from + 1, p_at);
            exit when v_from is null or v_from > v_last;
            v_got := sharequeue_internal.take_batch(v_id, v_from, v_log_base, v_last, p_lease_id, p_at,
                case when p_mode = 'record_limit' or p_log_firsts is null then v_budget - v_acquired end, v_acquired,
                p_settings.delivery_count_limit);
            v_acquired := v_acquired + v_got.records;
            v_result := sharequeue_internal.joined(v_result, v_got);
            if v_got.throttled then
                return sharequeue_internal.without_aborted(v_id, v_result, p_aborted, p_lease_id);
            end if;
        end loop;
        v_base := v_cached.last_offset + 1;
    end if;
    if v_acquired < v_budget and v_base <= v_last then
        v_got := sharequeue_internal.take_fresh(p_sp, v_base, v_last, v_budget - v_acquired, p_lease_id, p_mode, p_batch_size,
            v_firsts, v_lasts, v_empty);
        v_result := sharequeue_internal.joined(v_result, v_got);
    end if;
    return sharequeue_internal.without_aborted(v_id, v_result, p_aborted, p_lease_id);
end
$$;

-- FUNCTION unfold(bigint)

CREATE FUNCTION sharequeue_internal.unfold(p_share_partition_id bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
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
        acquired_at, expires_at, fan_out, own_lock_duration, request_id, fetched, journalled)
    values (v_sp.folded_lease_id, v_sp.share_partition_id, v_sp.folded_member_id, v_sp.folded_member_epoch,
        v_sp.folded_token, v_sp.folded_lock_duration_ms, v_sp.folded_acquired_at,
        v_sp.folded_acquired_at + v_sp.folded_lock_duration_ms * interval '1 millisecond', v_sp.folded_fan_out, false,
        v_sp.folded_request_id,
        case when v_sp.folded_request_id is not null then sharequeue_internal.folded_fetch(v_sp) end, true);
    update sharequeue.share_partitions set folded_lease_id = null, folded_acquired_at = null,
        folded_lag = null, folded_max_record_locks = null, folded_clock_offset = null, folded_token = null,
        folded_request_id = null, folded_lock_duration_ms = null, folded_member_epoch = null,
        folded_read_committed = null, folded_fan_out = null, folded_member_id = null
    where share_partition_id = p_share_partition_id;
end
$$;

-- TABLE service_beat

CREATE TABLE sharequeue.service_beat (
    singleton boolean DEFAULT true NOT NULL,
    beat_at timestamp with time zone NOT NULL,
    server_started_at timestamp with time zone NOT NULL,
    outage_from timestamp with time zone,
    outage_until timestamp with time zone,
    CONSTRAINT service_beat_singleton CHECK (singleton)
)
WITH (fillfactor='50');

-- FUNCTION was_away(sharequeue.service_beat)

CREATE FUNCTION sharequeue_internal.was_away(p_beat sharequeue.service_beat) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    select p_beat.server_started_at <> pg_postmaster_start_time() or not exists (select from sharequeue.service_run)
$$;

-- FUNCTION without_aborted(bigint, sharequeue.taken_offsets, int8multirange, bigint)

CREATE FUNCTION sharequeue_internal.without_aborted(p_id bigint, p_result sharequeue.taken_offsets, p_aborted int8multirange, p_lease_id bigint) RETURNS sharequeue.taken
    LANGUAGE plpgsql
    AS $$
declare
    v_taken sharequeue.taken;
    v_part record;
    v_archived bigint := 0;
begin
    if isempty(p_aborted) then
        select array_agg(b.delivery_count order by b.number),
            array_agg(int8multirange(int8range(b.first, b.last + 1)) order by b.number)
        into v_taken.delivery_counts, v_taken.offsets
        from unnest(p_result.firsts, p_result.lasts, p_result.delivery_counts)
            with ordinality as b (first, last, delivery_count, number);
        return v_taken;
    end if;
    for v_part in
        select first_offset, last_offset, part, delivery_count,
            sharequeue_internal.offsets_of(first_offset, last_offset, offsets) * p_aborted as offsets
        from sharequeue.in_flight_batches
        where lease_id = p_lease_id and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) && p_aborted
    loop
        perform sharequeue_internal.take(p_id, v_part.first_offset, v_part.part, v_part.offsets);
        perform sharequeue_internal.place(p_id, v_part.first_offset, v_part.last_offset, 4::smallint, v_part.delivery_count,
            v_part.offsets, null, 'gap');
        perform sharequeue_internal.count_outcome(p_id, 'gap', v_part.delivery_count, sharequeue.records(v_part.offsets));
        perform sharequeue_internal.join_terminal(p_id, v_part.first_offset, v_part.first_offset);
        v_archived := v_archived + sharequeue.records(v_part.offsets);
    end loop;
    update sharequeue.share_partitions set delivery_complete_count = delivery_complete_count + v_archived, advance_due = true
    where share_partition_id = p_id and v_archived > 0;
    select array_agg(b.delivery_count order by b.number, lower(r)),
        array_agg(int8multirange(r) order by b.number, lower(r))
    into v_taken.delivery_counts, v_taken.offsets
    from unnest(p_result.firsts, p_result.lasts, p_result.delivery_counts)
            with ordinality as b (first, last, delivery_count, number),
        unnest(int8multirange(int8range(b.first, b.last + 1)) - p_aborted) as r;
    return v_taken;
end
$$;

-- AGGREGATE replayed(text, int8multirange)

CREATE AGGREGATE sharequeue_internal.replayed(text, int8multirange) (
    SFUNC = sharequeue_internal.replay_offsets,
    STYPE = int8multirange
);

-- TABLE in_flight_batches

CREATE TABLE sharequeue.in_flight_batches (
    share_partition_id bigint NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    part integer DEFAULT 0 NOT NULL,
    state smallint NOT NULL,
    delivery_count smallint NOT NULL,
    lease_id bigint,
    isolate bigint,
    not_before timestamp with time zone,
    cause text,
    offsets int8multirange,
    journalled boolean DEFAULT false NOT NULL
)
WITH (fillfactor='90');
ALTER TABLE ONLY sharequeue.in_flight_batches ALTER COLUMN offsets SET STORAGE EXTERNAL;

-- VIEW all_batches

CREATE VIEW sharequeue.all_batches AS
 SELECT in_flight_batches.share_partition_id,
    in_flight_batches.first_offset,
    in_flight_batches.last_offset,
    in_flight_batches.part,
    in_flight_batches.state,
    in_flight_batches.delivery_count,
    in_flight_batches.lease_id,
    in_flight_batches.isolate,
    in_flight_batches.not_before,
    in_flight_batches.cause,
    in_flight_batches.offsets
   FROM sharequeue.in_flight_batches
UNION ALL
 SELECT share_partitions.share_partition_id,
    share_partitions.spso AS first_offset,
    (share_partitions.speo - 1) AS last_offset,
    0 AS part,
    (1)::smallint AS state,
    (1)::smallint AS delivery_count,
    share_partitions.folded_lease_id AS lease_id,
    NULL::bigint AS isolate,
    NULL::timestamp with time zone AS not_before,
    NULL::text AS cause,
    NULL::int8multirange AS offsets
   FROM sharequeue.share_partitions
  WHERE (share_partitions.folded_lease_id IS NOT NULL);

-- TABLE leases

CREATE TABLE sharequeue.leases (
    lease_id bigint NOT NULL,
    share_partition_id bigint NOT NULL,
    member_id text NOT NULL,
    member_epoch integer NOT NULL,
    token uuid DEFAULT gen_random_uuid() NOT NULL,
    lock_duration_ms integer NOT NULL,
    acquired_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    fan_out boolean DEFAULT true NOT NULL,
    own_lock_duration boolean DEFAULT true NOT NULL,
    journalled boolean DEFAULT false NOT NULL,
    request_id uuid,
    fetched sharequeue.acknowledged_and_acquired
);

-- VIEW all_leases

CREATE VIEW sharequeue.all_leases AS
 SELECT leases.lease_id,
    leases.share_partition_id,
    leases.member_id,
    leases.member_epoch,
    leases.token,
    leases.lock_duration_ms,
    leases.acquired_at,
    leases.expires_at,
    leases.fan_out,
    leases.own_lock_duration
   FROM sharequeue.leases
UNION ALL
 SELECT share_partitions.folded_lease_id AS lease_id,
    share_partitions.share_partition_id,
    share_partitions.folded_member_id AS member_id,
    share_partitions.folded_member_epoch AS member_epoch,
    share_partitions.folded_token AS token,
    share_partitions.folded_lock_duration_ms AS lock_duration_ms,
    share_partitions.folded_acquired_at AS acquired_at,
    (share_partitions.folded_acquired_at + ((share_partitions.folded_lock_duration_ms)::double precision * '00:00:00.001'::interval)) AS expires_at,
    share_partitions.folded_fan_out AS fan_out,
    false AS own_lock_duration
   FROM sharequeue.share_partitions
  WHERE (share_partitions.folded_lease_id IS NOT NULL);

-- TABLE assignments

CREATE TABLE sharequeue.assignments (
    group_id text NOT NULL,
    member_id text NOT NULL,
    share_partition_id bigint NOT NULL
);

-- TABLE audit_log

CREATE TABLE sharequeue.audit_log (
    audit_id bigint NOT NULL,
    happened_at timestamp with time zone NOT NULL,
    principal text NOT NULL,
    role_name text NOT NULL,
    act text NOT NULL,
    group_id text,
    before jsonb,
    after jsonb
);

-- SEQUENCE audit_log_audit_id_seq

ALTER TABLE sharequeue.audit_log ALTER COLUMN audit_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME sharequeue.audit_log_audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

-- VIEW audit_trail

CREATE VIEW sharequeue.audit_trail AS
 SELECT audit_id,
    happened_at,
    principal,
    role_name,
    act,
    group_id,
    before,
    after
   FROM sharequeue.audit_log;

-- TABLE authorizer

CREATE TABLE sharequeue.authorizer (
    singleton boolean DEFAULT true NOT NULL,
    allow_everyone_if_no_acl_found boolean DEFAULT true NOT NULL,
    CONSTRAINT authorizer_singleton CHECK (singleton)
);

-- TABLE circuit_breakers

CREATE TABLE sharequeue.circuit_breakers (
    share_partition_id bigint NOT NULL,
    state text DEFAULT 'closed'::text NOT NULL,
    answered double precision DEFAULT 0 NOT NULL,
    failed double precision DEFAULT 0 NOT NULL,
    opened_at timestamp with time zone,
    retry_at timestamp with time zone,
    reason text,
    probe int8multirange DEFAULT '{}'::int8multirange NOT NULL,
    probe_records bigint DEFAULT 0 NOT NULL,
    probe_failed bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70');

-- TABLE clock_offset

CREATE TABLE sharequeue.clock_offset (
    singleton boolean DEFAULT true NOT NULL,
    amount interval DEFAULT '00:00:00'::interval NOT NULL,
    CONSTRAINT clock_offset_singleton CHECK (singleton)
);

-- TABLE compactions

CREATE TABLE sharequeue.compactions (
    compaction_id uuid NOT NULL,
    group_id text NOT NULL,
    sink text NOT NULL,
    location text NOT NULL,
    began_at timestamp with time zone NOT NULL,
    committed_at timestamp with time zone,
    replaced text[] DEFAULT '{}'::text[] NOT NULL,
    abandoned_at timestamp with time zone,
    CONSTRAINT compactions_committed_or_abandoned CHECK (((committed_at IS NULL) OR (abandoned_at IS NULL)))
);

-- TABLE lease_outputs

CREATE TABLE sharequeue.lease_outputs (
    lease_id bigint NOT NULL,
    sink text NOT NULL,
    share_partition_id bigint NOT NULL,
    location text NOT NULL,
    records bigint NOT NULL,
    acknowledged_at timestamp with time zone NOT NULL
);

-- VIEW counted_outputs

CREATE VIEW sharequeue.counted_outputs AS
 SELECT o.lease_id,
    sp.group_id,
    sp.topic,
    sp.partition,
    o.sink,
    o.location,
    o.records,
    o.acknowledged_at
   FROM (sharequeue.lease_outputs o
     JOIN sharequeue.share_partitions sp USING (share_partition_id));

-- TABLE journal_daily

CREATE TABLE sharequeue.journal_daily (
    day date NOT NULL,
    share_partition_id bigint NOT NULL,
    group_id text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    updates bigint NOT NULL,
    snapshots bigint NOT NULL,
    leases bigint NOT NULL,
    entered bigint NOT NULL,
    accepted_first bigint NOT NULL,
    lost_records bigint NOT NULL,
    highest_delivery_count smallint NOT NULL,
    spso bigint NOT NULL,
    speo bigint NOT NULL,
    delivery_complete_count bigint NOT NULL,
    state_epoch integer NOT NULL,
    total_accepted_first bigint NOT NULL,
    total_lost_records bigint NOT NULL
);

-- VIEW daily_rollups

CREATE VIEW sharequeue.daily_rollups AS
 SELECT day,
    group_id,
    topic,
    partition,
    updates,
    snapshots,
    leases,
    entered,
    accepted_first,
    lost_records,
    highest_delivery_count,
    spso,
    speo,
    delivery_complete_count,
    state_epoch
   FROM sharequeue.journal_daily;

-- TABLE dead_letter_batches

CREATE TABLE sharequeue.dead_letter_batches (
    share_partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    opened_at timestamp with time zone NOT NULL,
    written_at timestamp with time zone,
    dropped boolean DEFAULT false NOT NULL,
    total_letters bigint,
    total_dropped bigint
);

-- TABLE dead_letter_runs

CREATE TABLE sharequeue.dead_letter_runs (
    share_partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    cause text NOT NULL,
    delivery_count smallint NOT NULL,
    offsets int8multirange NOT NULL,
    CONSTRAINT dead_letter_runs_cause_known CHECK ((cause = ANY (ARRAY['rejected'::text, 'exceeded'::text])))
);

-- TABLE held_dead_letters

CREATE TABLE sharequeue.held_dead_letters (
    share_partition_id bigint NOT NULL,
    reason text NOT NULL,
    since timestamp with time zone NOT NULL
);

-- VIEW dead_letters_held

CREATE VIEW sharequeue.dead_letters_held AS
 SELECT sp.group_id,
    sp.topic,
    sp.partition,
    w.records,
    h.reason,
    h.since
   FROM ((sharequeue.held_dead_letters h
     JOIN sharequeue.share_partitions sp USING (share_partition_id))
     CROSS JOIN LATERAL ( SELECT (COALESCE(sum(sharequeue.records(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets))), (0)::numeric))::bigint AS records
           FROM sharequeue.all_batches b
          WHERE ((b.share_partition_id = h.share_partition_id) AND (b.state = 3))) w)
  WHERE (w.records > 0);

-- TABLE delivery_count_history

CREATE TABLE sharequeue.delivery_count_history (
    reported_at timestamp with time zone NOT NULL,
    share_partition_id bigint NOT NULL,
    outcome text NOT NULL,
    delivery_count smallint NOT NULL,
    records bigint NOT NULL
);

-- TABLE delivery_counts

CREATE TABLE sharequeue.delivery_counts (
    share_partition_id bigint NOT NULL,
    outcome text NOT NULL,
    delivery_count smallint NOT NULL,
    records bigint NOT NULL,
    CONSTRAINT delivery_counts_outcome_known CHECK ((outcome = ANY (ARRAY['accepted'::text, 'rejected'::text, 'exceeded'::text, 'gap'::text])))
)
WITH (fillfactor='70');

-- VIEW delivery_count_totals

CREATE VIEW sharequeue.delivery_count_totals AS
 SELECT d.share_partition_id,
    d.outcome,
    d.delivery_count,
    d.records,
    sp.group_id,
    sp.topic,
    sp.partition
   FROM (sharequeue.delivery_counts d
     JOIN sharequeue.share_partitions sp USING (share_partition_id))
UNION ALL
 SELECT share_partitions.share_partition_id,
    'accepted'::text AS outcome,
    (1)::smallint AS delivery_count,
    share_partitions.accepted_first AS records,
    share_partitions.group_id,
    share_partitions.topic,
    share_partitions.partition
   FROM sharequeue.share_partitions
  WHERE (share_partitions.accepted_first > 0);

-- TABLE failed_attempts

CREATE TABLE sharequeue.failed_attempts (
    share_partition_id bigint NOT NULL,
    lease_id bigint NOT NULL,
    member_id text NOT NULL,
    client_id text NOT NULL,
    acquired_at timestamp with time zone NOT NULL,
    past bigint NOT NULL,
    offsets int8multirange NOT NULL
);
ALTER TABLE ONLY sharequeue.failed_attempts ALTER COLUMN offsets SET STORAGE EXTERNAL;

ALTER TABLE ONLY sharequeue.failed_attempts REPLICA IDENTITY FULL;

-- TABLE gone_topics

CREATE TABLE sharequeue.gone_topics (
    topic text NOT NULL,
    topic_id text NOT NULL,
    gone_since timestamp with time zone NOT NULL,
    said_at timestamp with time zone NOT NULL
);

-- VIEW group_acls

CREATE VIEW sharequeue.group_acls AS
 SELECT pattern_type,
    resource_name,
    principal,
    permission,
    operation
   FROM sharequeue.acls;

-- TABLE group_configs

CREATE TABLE sharequeue.group_configs (
    group_id text NOT NULL,
    name text NOT NULL,
    value text NOT NULL
);

-- TABLE members

CREATE TABLE sharequeue.members (
    group_id text NOT NULL,
    member_id text NOT NULL,
    member_epoch integer NOT NULL,
    previous_member_epoch integer DEFAULT 0 NOT NULL,
    rack_id text,
    client_id text DEFAULT ''::text NOT NULL,
    client_host text DEFAULT ''::text NOT NULL,
    subscribed_topic_names text[] DEFAULT '{}'::text[] NOT NULL,
    joined_at timestamp with time zone NOT NULL,
    heartbeat_at timestamp with time zone NOT NULL,
    session_expires_at timestamp with time zone NOT NULL,
    told_share_partition_ids bigint[],
    CONSTRAINT members_member_id_length CHECK (((length(member_id) >= 1) AND (length(member_id) <= 36)))
);

-- TABLE share_groups

CREATE TABLE sharequeue.share_groups (
    group_id text NOT NULL,
    group_epoch integer DEFAULT 1 NOT NULL,
    assignment_epoch integer DEFAULT 0 NOT NULL,
    assigned_at timestamp with time zone,
    metadata_hash text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT share_groups_group_id_not_empty CHECK ((group_id <> ''::text))
);

-- VIEW group_list

CREATE VIEW sharequeue.group_list AS
 SELECT g.group_id,
        CASE
            WHEN (count(m.member_id) > 0) THEN 'Stable'::text
            ELSE 'Empty'::text
        END AS state,
    count(m.member_id) AS members
   FROM (sharequeue.share_groups g
     LEFT JOIN sharequeue.members m USING (group_id))
  GROUP BY g.group_id;

-- VIEW group_members

CREATE VIEW sharequeue.group_members AS
 SELECT group_id,
    member_id,
    rack_id,
    member_epoch,
    client_id,
    client_host,
    subscribed_topic_names,
    joined_at,
    session_expires_at
   FROM sharequeue.members;

-- TABLE grown_topics

CREATE TABLE sharequeue.grown_topics (
    group_id text NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    first_new integer NOT NULL,
    partitions integer NOT NULL
);

-- VIEW held_leases

CREATE VIEW sharequeue.held_leases AS
 SELECT l.lease_id,
    sp.group_id,
    sp.topic,
    sp.partition,
    l.member_id,
    l.acquired_at,
    l.expires_at,
    (EXTRACT(epoch FROM (l.expires_at - sharequeue.clock())))::double precision AS seconds_left,
    (COALESCE(f.records, (0)::numeric))::bigint AS records,
    f.offsets,
    f.highest_delivery_count
   FROM ((sharequeue.all_leases l
     JOIN sharequeue.share_partitions sp USING (share_partition_id))
     CROSS JOIN LATERAL ( SELECT sum(sharequeue.records(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets))) AS records,
            range_agg(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets)) AS offsets,
            max(b.delivery_count) AS highest_delivery_count
           FROM sharequeue.all_batches b
          WHERE ((b.share_partition_id = l.share_partition_id) AND (b.lease_id = l.lease_id))) f);

-- VIEW in_flight_offsets

CREATE VIEW sharequeue.in_flight_offsets AS
 SELECT share_partition_id,
    first_offset,
    last_offset,
    (offsets IS NOT NULL) AS exploded,
    state,
    delivery_count,
    lease_id,
    isolate,
    not_before,
    cause,
    sharequeue_internal.offsets_of(first_offset, last_offset, offsets) AS offsets
   FROM sharequeue.all_batches f;

-- SEQUENCE leases_lease_id_seq

ALTER TABLE sharequeue.leases ALTER COLUMN lease_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME sharequeue.leases_lease_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

-- TABLE journal

CREATE TABLE sharequeue.journal (
    journal_id bigint DEFAULT nextval('sharequeue.leases_lease_id_seq'::regclass) NOT NULL,
    share_partition_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    first_offset bigint,
    last_offset bigint,
    gone_first bigint,
    lease_id bigint,
    gone_lease_id bigint,
    isolate bigint,
    not_before timestamp with time zone,
    acquired_at timestamp with time zone,
    expires_at timestamp with time zone,
    spso bigint,
    speo bigint,
    delivery_complete_count bigint,
    accepted_first bigint,
    lost_records bigint,
    dead_letter_sequence bigint,
    next_expiry timestamp with time zone,
    records bigint,
    token uuid,
    part integer,
    lock_duration_ms integer,
    member_epoch integer,
    state_epoch integer,
    partition integer,
    state smallint,
    delivery_count smallint,
    fan_out boolean,
    own_lock_duration boolean,
    redeliverable boolean,
    advance_due boolean,
    kind text NOT NULL,
    cause text,
    member_id text,
    status text,
    paused_reason text,
    topic_id text,
    group_id text,
    topic text,
    offsets int8multirange
)
PARTITION BY RANGE (at);

ALTER TABLE ONLY sharequeue.journal REPLICA IDENTITY FULL;

-- TABLE journal_counted

CREATE TABLE sharequeue.journal_counted (
    singleton boolean DEFAULT true NOT NULL,
    journal_id bigint NOT NULL,
    CONSTRAINT journal_counted_singleton CHECK (singleton)
);

-- TABLE journal_daily_outcomes

CREATE TABLE sharequeue.journal_daily_outcomes (
    day date NOT NULL,
    share_partition_id bigint NOT NULL,
    outcome text NOT NULL,
    delivery_count smallint NOT NULL,
    records bigint NOT NULL
);

-- TABLE journal_growth

CREATE TABLE sharequeue.journal_growth (
    share_partition_id bigint NOT NULL,
    updates bigint NOT NULL
)
WITH (fillfactor='70');

-- TABLE journal_other

CREATE TABLE sharequeue.journal_other (
    journal_id bigint DEFAULT nextval('sharequeue.leases_lease_id_seq'::regclass) CONSTRAINT journal_journal_id_not_null NOT NULL,
    share_partition_id bigint CONSTRAINT journal_share_partition_id_not_null NOT NULL,
    at timestamp with time zone CONSTRAINT journal_at_not_null NOT NULL,
    first_offset bigint,
    last_offset bigint,
    gone_first bigint,
    lease_id bigint,
    gone_lease_id bigint,
    isolate bigint,
    not_before timestamp with time zone,
    acquired_at timestamp with time zone,
    expires_at timestamp with time zone,
    spso bigint,
    speo bigint,
    delivery_complete_count bigint,
    accepted_first bigint,
    lost_records bigint,
    dead_letter_sequence bigint,
    next_expiry timestamp with time zone,
    records bigint,
    token uuid,
    part integer,
    lock_duration_ms integer,
    member_epoch integer,
    state_epoch integer,
    partition integer,
    state smallint,
    delivery_count smallint,
    fan_out boolean,
    own_lock_duration boolean,
    redeliverable boolean,
    advance_due boolean,
    kind text CONSTRAINT journal_kind_not_null NOT NULL,
    cause text,
    member_id text,
    status text,
    paused_reason text,
    topic_id text,
    group_id text,
    topic text,
    offsets int8multirange
);

ALTER TABLE ONLY sharequeue.journal_other REPLICA IDENTITY FULL;

-- TABLE journal_rolled_up

CREATE TABLE sharequeue.journal_rolled_up (
    day date NOT NULL
);

-- TABLE journal_snapshots

CREATE TABLE sharequeue.journal_snapshots (
    share_partition_id bigint NOT NULL,
    journal_id bigint NOT NULL,
    taken_at timestamp with time zone NOT NULL
);

-- TABLE kafka_cluster

CREATE TABLE sharequeue.kafka_cluster (
    singleton boolean DEFAULT true NOT NULL,
    cluster_id text NOT NULL,
    bound_at timestamp with time zone NOT NULL,
    CONSTRAINT kafka_cluster_singleton CHECK (singleton)
);

-- TABLE observations

CREATE TABLE sharequeue.observations (
    group_id text NOT NULL,
    topic text NOT NULL,
    observed_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');

-- TABLE redrive_batches

CREATE TABLE sharequeue.redrive_batches (
    dead_letter_topic text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    sequence bigint NOT NULL,
    redrive_id uuid NOT NULL,
    offsets int8multirange NOT NULL,
    opened_at timestamp with time zone NOT NULL,
    sent_at timestamp with time zone
);

-- TABLE redriven

CREATE TABLE sharequeue.redriven (
    dead_letter_topic text NOT NULL,
    topic_id text NOT NULL,
    partition integer NOT NULL,
    sequence bigint DEFAULT 0 NOT NULL,
    offsets int8multirange DEFAULT '{}'::int8multirange NOT NULL
);

-- TABLE redrives

CREATE TABLE sharequeue.redrives (
    redrive_id uuid NOT NULL,
    dead_letter_topic text NOT NULL,
    topic_id text NOT NULL,
    selection text NOT NULL,
    target_topic text,
    requested_by text DEFAULT SESSION_USER NOT NULL,
    requested_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    sent bigint DEFAULT 0 NOT NULL,
    only_group text,
    target_topics text[] DEFAULT '{}'::text[] NOT NULL
);

-- TABLE requests

CREATE TABLE sharequeue.requests (
    request_key uuid CONSTRAINT requests_request_id_not_null NOT NULL,
    operation text NOT NULL,
    answer jsonb,
    answered_at timestamp with time zone NOT NULL,
    fetched sharequeue.acknowledged_and_acquired
);

-- TABLE roles

CREATE TABLE sharequeue.roles (
    purpose text NOT NULL,
    role_name text NOT NULL,
    CONSTRAINT roles_purpose_known CHECK ((purpose = ANY (ARRAY['owner'::text, 'service'::text, 'worker'::text, 'reader'::text]))),
    CONSTRAINT roles_role_name_not_empty CHECK ((role_name <> ''::text))
);

-- TABLE schema_migrations

CREATE TABLE sharequeue.schema_migrations (
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

-- TABLE service_configs

CREATE TABLE sharequeue.service_configs (
    name text NOT NULL,
    value text NOT NULL
);

-- TABLE service_leases

CREATE TABLE sharequeue.service_leases (
    task text NOT NULL,
    holder text NOT NULL,
    token uuid NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

-- TABLE service_replicas

CREATE TABLE sharequeue.service_replicas (
    replica_id text NOT NULL,
    heard_at timestamp with time zone NOT NULL,
    drains boolean DEFAULT false NOT NULL
)
WITH (fillfactor='50');

-- TABLE service_run

CREATE UNLOGGED TABLE sharequeue.service_run (
    singleton boolean DEFAULT true NOT NULL,
    CONSTRAINT service_run_singleton CHECK (singleton)
);

-- TABLE share_partition_history

CREATE TABLE sharequeue.share_partition_history (
    reported_at timestamp with time zone NOT NULL,
    share_partition_id bigint NOT NULL,
    spso bigint NOT NULL,
    speo bigint NOT NULL,
    log_start bigint NOT NULL,
    log_end bigint NOT NULL,
    lag bigint NOT NULL,
    acquired bigint NOT NULL,
    available bigint NOT NULL,
    archiving bigint NOT NULL,
    delivery_complete_count bigint NOT NULL
);

-- VIEW share_partition_reports

CREATE VIEW sharequeue.share_partition_reports AS
 SELECT h.reported_at,
    sp.group_id,
    sp.topic,
    sp.partition,
    h.spso,
    h.speo,
    h.log_start,
    h.log_end,
    h.lag,
    h.acquired,
    h.available,
    h.archiving,
    h.delivery_complete_count
   FROM (sharequeue.share_partition_history h
     JOIN sharequeue.share_partitions sp USING (share_partition_id));

-- VIEW share_partition_status

CREATE VIEW sharequeue.share_partition_status AS
 SELECT sp.share_partition_id,
    sp.group_id,
    sp.topic,
    sp.partition,
    sp.topic_id,
    sp.status,
    sp.state_epoch,
    sp.spso,
    sp.speo,
    sp.log_start,
    sp.log_end,
    sp.last_stable_offset,
        CASE
            WHEN (sp.observed_at IS NOT NULL) THEN GREATEST(sp.observed_at, seen.observed_at)
            ELSE NULL::timestamp with time zone
        END AS observed_at,
    sp.delivery_complete_count,
    GREATEST((0)::bigint, ((sp.log_end - sp.spso) - sp.delivery_complete_count)) AS lag,
    (sp.speo - sp.spso) AS in_flight,
    f.available,
    f.acquired,
    f.archiving,
    sp.lost_records,
    f.highest_delivery_count,
    l.leases,
    l.next_expiry,
    f.waiting,
    o.oldest_offset,
    o.oldest_state,
    o.oldest_since,
    COALESCE(sp.paused_reason, g.paused_reason, c.reason) AS paused_reason,
        CASE
            WHEN ((sp.observed_at IS NOT NULL) AND (sp.log_end < (sp.spso + sp.delivery_complete_count))) THEN (('the log ends at '::text || sp.log_end) || ', below what was delivered: it was truncated'::text)
            ELSE NULL::text
        END AS fault,
    (sp.accepted_first + e.accepted) AS accepted,
    e.rejected,
    e.exhausted,
    e.gap,
    ((e.rejected + e.exhausted) - COALESCE((d.total_letters + d.total_dropped), (0)::bigint)) AS no_dlq,
    COALESCE(d.total_dropped, (0)::bigint) AS dropped_letters,
        CASE
            WHEN (f.archiving = 0) THEN NULL::text
            WHEN (k.reason IS NOT NULL) THEN ('dead letters are held: '::text || k.reason)
            WHEN (NOT ( SELECT sharequeue.service_drains() AS service_drains)) THEN (('no service writes the dead letters: the next run of a job does, or `sharequeue serve`, or `sharequeue dlq drain --group '::text || sp.group_id) || ' --execute`'::text)
            ELSE NULL::text
        END AS held_reason,
    f.waiting_until
   FROM (((((((((sharequeue.share_partitions sp
     JOIN sharequeue.group_settings g USING (group_id))
     LEFT JOIN sharequeue.observations seen USING (group_id, topic))
     CROSS JOIN LATERAL ( SELECT (COALESCE(sum(n.n) FILTER (WHERE (b.state = 0)), (0)::numeric))::bigint AS available,
            (COALESCE(sum(n.n) FILTER (WHERE (b.state = 1)), (0)::numeric))::bigint AS acquired,
            (COALESCE(sum(n.n) FILTER (WHERE (b.state = 3)), (0)::numeric))::bigint AS archiving,
            (COALESCE(sum(n.n) FILTER (WHERE ((b.state = 0) AND (b.not_before > sharequeue.clock()))), (0)::numeric))::bigint AS waiting,
            min(b.not_before) FILTER (WHERE ((b.state = 0) AND (b.not_before > sharequeue.clock()))) AS waiting_until,
            COALESCE((max(b.delivery_count) FILTER (WHERE (b.state = ANY (ARRAY[0, 1, 3]))))::integer, 0) AS highest_delivery_count
           FROM sharequeue.all_batches b,
            LATERAL sharequeue.records(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets)) n(n)
          WHERE (b.share_partition_id = sp.share_partition_id)) f)
     CROSS JOIN LATERAL ( SELECT count(DISTINCT all_leases.token) AS leases,
            min(all_leases.expires_at) AS next_expiry
           FROM sharequeue.all_leases
          WHERE (all_leases.share_partition_id = sp.share_partition_id)) l)
     LEFT JOIN LATERAL ( SELECT h.at AS oldest_offset,
                CASE h.state
                    WHEN 0 THEN 'available'::text
                    WHEN 1 THEN 'acquired'::text
                    WHEN 3 THEN 'archiving'::text
                    ELSE 'fresh'::text
                END AS oldest_state,
                CASE h.state
                    WHEN 1 THEN ( SELECT all_leases.acquired_at
                       FROM sharequeue.all_leases
                      WHERE ((all_leases.share_partition_id = sp.share_partition_id) AND (all_leases.lease_id = h.lease_id)))
                    WHEN 3 THEN ( SELECT d_1.opened_at
                       FROM sharequeue.dead_letter_batches d_1
                      WHERE ((d_1.share_partition_id = sp.share_partition_id) AND (d_1.written_at IS NULL)))
                    ELSE NULL::timestamp with time zone
                END AS oldest_since
           FROM ( SELECT i.state,
                    i.lease_id,
                    lower((sharequeue_internal.offsets_of(i.first_offset, i.last_offset, i.offsets) * int8multirange(int8range(sp.spso, NULL::bigint)))) AS at
                   FROM sharequeue.all_batches i
                  WHERE ((i.share_partition_id = sp.share_partition_id) AND (i.state = ANY (ARRAY[0, 1, 3])) AND (i.last_offset >= sp.spso))
                UNION ALL
                 SELECT NULL::smallint,
                    NULL::bigint,
                    sp.speo
                  WHERE (sp.speo < sp.log_end)) h
          WHERE (h.at IS NOT NULL)
          ORDER BY h.at
         LIMIT 1) o ON (true))
     LEFT JOIN LATERAL ( SELECT (((('circuit breaker '::text || c_1.state) || ': '::text) || c_1.reason) ||
                CASE
                    WHEN (c_1.state = 'open'::text) THEN (('; probed from '::text || to_char((c_1.retry_at AT TIME ZONE 'UTC'::text), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'::text)) || ' on'::text)
                    ELSE ''::text
                END) AS reason
           FROM sharequeue.circuit_breakers c_1
          WHERE ((c_1.share_partition_id = sp.share_partition_id) AND (g.breaker_percent > 0) AND (c_1.state <> 'closed'::text))) c ON (true))
     CROSS JOIN LATERAL ( SELECT (COALESCE(sum(delivery_counts.records) FILTER (WHERE (delivery_counts.outcome = 'accepted'::text)), (0)::numeric))::bigint AS accepted,
            (COALESCE(sum(delivery_counts.records) FILTER (WHERE (delivery_counts.outcome = 'rejected'::text)), (0)::numeric))::bigint AS rejected,
            (COALESCE(sum(delivery_counts.records) FILTER (WHERE (delivery_counts.outcome = 'exceeded'::text)), (0)::numeric))::bigint AS exhausted,
            (COALESCE(sum(delivery_counts.records) FILTER (WHERE (delivery_counts.outcome = 'gap'::text)), (0)::numeric))::bigint AS gap
           FROM sharequeue.delivery_counts
          WHERE (delivery_counts.share_partition_id = sp.share_partition_id)) e)
     LEFT JOIN LATERAL ( SELECT dead_letter_batches.total_letters,
            dead_letter_batches.total_dropped
           FROM sharequeue.dead_letter_batches
          WHERE ((dead_letter_batches.share_partition_id = sp.share_partition_id) AND (dead_letter_batches.written_at IS NOT NULL))
          ORDER BY dead_letter_batches.sequence DESC
         LIMIT 1) d ON (true))
     LEFT JOIN sharequeue.held_dead_letters k ON ((k.share_partition_id = sp.share_partition_id)));

-- SEQUENCE share_partitions_share_partition_id_seq

ALTER TABLE sharequeue.share_partitions ALTER COLUMN share_partition_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME sharequeue.share_partitions_share_partition_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

-- TABLE state_identity

CREATE TABLE sharequeue.state_identity (
    only_row boolean DEFAULT true NOT NULL,
    state_id uuid DEFAULT gen_random_uuid() NOT NULL,
    CONSTRAINT state_identity_one_row CHECK (only_row)
);

-- TABLE topics

CREATE TABLE sharequeue.topics (
    topic text NOT NULL,
    topic_id text NOT NULL,
    partitions integer NOT NULL,
    seen_at timestamp with time zone NOT NULL
);

-- VIEW written_dead_letters

CREATE VIEW sharequeue.written_dead_letters AS
 SELECT sp.group_id,
    sp.topic,
    sp.partition,
    r.sequence,
    r.cause,
    r.delivery_count,
    r.offsets,
    b.written_at,
    b.dropped
   FROM ((sharequeue.dead_letter_runs r
     JOIN sharequeue.dead_letter_batches b USING (share_partition_id, sequence))
     JOIN sharequeue.share_partitions sp USING (share_partition_id))
  WHERE (b.written_at IS NOT NULL);

-- TABLE ATTACH journal_other

ALTER TABLE ONLY sharequeue.journal ATTACH PARTITION sharequeue.journal_other DEFAULT;

-- CONSTRAINT acls acls_pkey

ALTER TABLE ONLY sharequeue.acls
    ADD CONSTRAINT acls_pkey PRIMARY KEY (principal, operation, permission, pattern_type, resource_name);

-- CONSTRAINT assignments assignments_pkey

ALTER TABLE ONLY sharequeue.assignments
    ADD CONSTRAINT assignments_pkey PRIMARY KEY (group_id, member_id, share_partition_id);

-- CONSTRAINT audit_log audit_log_pkey

ALTER TABLE ONLY sharequeue.audit_log
    ADD CONSTRAINT audit_log_pkey PRIMARY KEY (audit_id);

-- CONSTRAINT authorizer authorizer_pkey

ALTER TABLE ONLY sharequeue.authorizer
    ADD CONSTRAINT authorizer_pkey PRIMARY KEY (singleton);

-- CONSTRAINT circuit_breakers circuit_breakers_pkey

ALTER TABLE ONLY sharequeue.circuit_breakers
    ADD CONSTRAINT circuit_breakers_pkey PRIMARY KEY (share_partition_id);

-- CONSTRAINT clock_offset clock_offset_pkey

ALTER TABLE ONLY sharequeue.clock_offset
    ADD CONSTRAINT clock_offset_pkey PRIMARY KEY (singleton);

-- CONSTRAINT compactions compactions_pkey

ALTER TABLE ONLY sharequeue.compactions
    ADD CONSTRAINT compactions_pkey PRIMARY KEY (compaction_id);

-- CONSTRAINT dead_letter_batches dead_letter_batches_pkey

ALTER TABLE ONLY sharequeue.dead_letter_batches
    ADD CONSTRAINT dead_letter_batches_pkey PRIMARY KEY (share_partition_id, sequence);

-- CONSTRAINT dead_letter_runs dead_letter_runs_pkey

ALTER TABLE ONLY sharequeue.dead_letter_runs
    ADD CONSTRAINT dead_letter_runs_pkey PRIMARY KEY (share_partition_id, sequence, cause, delivery_count);

-- CONSTRAINT delivery_count_history delivery_count_history_pkey

ALTER TABLE ONLY sharequeue.delivery_count_history
    ADD CONSTRAINT delivery_count_history_pkey PRIMARY KEY (share_partition_id, reported_at, outcome, delivery_count);

-- CONSTRAINT delivery_counts delivery_counts_pkey

ALTER TABLE ONLY sharequeue.delivery_counts
    ADD CONSTRAINT delivery_counts_pkey PRIMARY KEY (share_partition_id, outcome, delivery_count);

-- CONSTRAINT gone_topics gone_topics_pkey

ALTER TABLE ONLY sharequeue.gone_topics
    ADD CONSTRAINT gone_topics_pkey PRIMARY KEY (topic, topic_id);

-- CONSTRAINT group_configs group_configs_pkey

ALTER TABLE ONLY sharequeue.group_configs
    ADD CONSTRAINT group_configs_pkey PRIMARY KEY (group_id, name);

-- CONSTRAINT group_settings group_settings_pkey

ALTER TABLE ONLY sharequeue.group_settings
    ADD CONSTRAINT group_settings_pkey PRIMARY KEY (group_id);

-- CONSTRAINT grown_topics grown_topics_pkey

ALTER TABLE ONLY sharequeue.grown_topics
    ADD CONSTRAINT grown_topics_pkey PRIMARY KEY (group_id, topic, topic_id, first_new);

-- CONSTRAINT held_dead_letters held_dead_letters_pkey

ALTER TABLE ONLY sharequeue.held_dead_letters
    ADD CONSTRAINT held_dead_letters_pkey PRIMARY KEY (share_partition_id);

-- CONSTRAINT in_flight_batches in_flight_batches_pkey

ALTER TABLE ONLY sharequeue.in_flight_batches
    ADD CONSTRAINT in_flight_batches_pkey PRIMARY KEY (share_partition_id, first_offset, part);

-- CONSTRAINT journal_counted journal_counted_pkey

ALTER TABLE ONLY sharequeue.journal_counted
    ADD CONSTRAINT journal_counted_pkey PRIMARY KEY (singleton);

-- CONSTRAINT journal_daily_outcomes journal_daily_outcomes_pkey

ALTER TABLE ONLY sharequeue.journal_daily_outcomes
    ADD CONSTRAINT journal_daily_outcomes_pkey PRIMARY KEY (share_partition_id, day, outcome, delivery_count);

-- CONSTRAINT journal_daily journal_daily_pkey

ALTER TABLE ONLY sharequeue.journal_daily
    ADD CONSTRAINT journal_daily_pkey PRIMARY KEY (share_partition_id, day);

-- CONSTRAINT journal_growth journal_growth_pkey

ALTER TABLE ONLY sharequeue.journal_growth
    ADD CONSTRAINT journal_growth_pkey PRIMARY KEY (share_partition_id);

-- CONSTRAINT journal_rolled_up journal_rolled_up_pkey

ALTER TABLE ONLY sharequeue.journal_rolled_up
    ADD CONSTRAINT journal_rolled_up_pkey PRIMARY KEY (day);

-- CONSTRAINT journal_snapshots journal_snapshots_pkey

ALTER TABLE ONLY sharequeue.journal_snapshots
    ADD CONSTRAINT journal_snapshots_pkey PRIMARY KEY (share_partition_id, journal_id);

-- CONSTRAINT kafka_cluster kafka_cluster_pkey

ALTER TABLE ONLY sharequeue.kafka_cluster
    ADD CONSTRAINT kafka_cluster_pkey PRIMARY KEY (singleton);

-- CONSTRAINT lease_outputs lease_outputs_pkey

ALTER TABLE ONLY sharequeue.lease_outputs
    ADD CONSTRAINT lease_outputs_pkey PRIMARY KEY (lease_id, sink);

-- CONSTRAINT leases leases_pkey

ALTER TABLE ONLY sharequeue.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (lease_id);

-- CONSTRAINT members members_pkey

ALTER TABLE ONLY sharequeue.members
    ADD CONSTRAINT members_pkey PRIMARY KEY (group_id, member_id);

-- CONSTRAINT observations observations_pkey

ALTER TABLE ONLY sharequeue.observations
    ADD CONSTRAINT observations_pkey PRIMARY KEY (group_id, topic);

-- CONSTRAINT redrive_batches redrive_batches_pkey

ALTER TABLE ONLY sharequeue.redrive_batches
    ADD CONSTRAINT redrive_batches_pkey PRIMARY KEY (dead_letter_topic, topic_id, partition, sequence);

-- CONSTRAINT redriven redriven_pkey

ALTER TABLE ONLY sharequeue.redriven
    ADD CONSTRAINT redriven_pkey PRIMARY KEY (dead_letter_topic, topic_id, partition);

-- CONSTRAINT redrives redrives_pkey

ALTER TABLE ONLY sharequeue.redrives
    ADD CONSTRAINT redrives_pkey PRIMARY KEY (redrive_id);

-- CONSTRAINT requests requests_pkey

ALTER TABLE ONLY sharequeue.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (request_key);

-- CONSTRAINT roles roles_pkey

ALTER TABLE ONLY sharequeue.roles
    ADD CONSTRAINT roles_pkey PRIMARY KEY (purpose);

-- CONSTRAINT schema_migrations schema_migrations_pkey

ALTER TABLE ONLY sharequeue.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (name);

-- CONSTRAINT service_beat service_beat_pkey

ALTER TABLE ONLY sharequeue.service_beat
    ADD CONSTRAINT service_beat_pkey PRIMARY KEY (singleton);

-- CONSTRAINT service_configs service_configs_pkey

ALTER TABLE ONLY sharequeue.service_configs
    ADD CONSTRAINT service_configs_pkey PRIMARY KEY (name);

-- CONSTRAINT service_leases service_leases_pkey

ALTER TABLE ONLY sharequeue.service_leases
    ADD CONSTRAINT service_leases_pkey PRIMARY KEY (task);

-- CONSTRAINT service_replicas service_replicas_pkey

ALTER TABLE ONLY sharequeue.service_replicas
    ADD CONSTRAINT service_replicas_pkey PRIMARY KEY (replica_id);

-- CONSTRAINT service_run service_run_pkey

ALTER TABLE ONLY sharequeue.service_run
    ADD CONSTRAINT service_run_pkey PRIMARY KEY (singleton);

-- CONSTRAINT share_groups share_groups_pkey

ALTER TABLE ONLY sharequeue.share_groups
    ADD CONSTRAINT share_groups_pkey PRIMARY KEY (group_id);

-- CONSTRAINT share_partition_history share_partition_history_pkey

ALTER TABLE ONLY sharequeue.share_partition_history
    ADD CONSTRAINT share_partition_history_pkey PRIMARY KEY (share_partition_id, reported_at);

-- CONSTRAINT share_partitions share_partitions_name

ALTER TABLE ONLY sharequeue.share_partitions
    ADD CONSTRAINT share_partitions_name UNIQUE (group_id, topic, partition);

-- CONSTRAINT share_partitions share_partitions_pkey

ALTER TABLE ONLY sharequeue.share_partitions
    ADD CONSTRAINT share_partitions_pkey PRIMARY KEY (share_partition_id);

-- CONSTRAINT state_identity state_identity_pkey

ALTER TABLE ONLY sharequeue.state_identity
    ADD CONSTRAINT state_identity_pkey PRIMARY KEY (only_row);

-- CONSTRAINT topics topics_pkey

ALTER TABLE ONLY sharequeue.topics
    ADD CONSTRAINT topics_pkey PRIMARY KEY (topic);

-- INDEX audit_log_by_group

CREATE INDEX audit_log_by_group ON sharequeue.audit_log USING btree (group_id, audit_id);

-- INDEX compactions_by_sink

CREATE INDEX compactions_by_sink ON sharequeue.compactions USING btree (group_id, sink);

-- INDEX dead_letter_batches_one_open

CREATE UNIQUE INDEX dead_letter_batches_one_open ON sharequeue.dead_letter_batches USING btree (share_partition_id) WHERE (written_at IS NULL);

-- INDEX failed_attempts_by_end

CREATE INDEX failed_attempts_by_end ON sharequeue.failed_attempts USING btree (share_partition_id, past);

-- INDEX in_flight_batches_by_lease

CREATE INDEX in_flight_batches_by_lease ON sharequeue.in_flight_batches USING btree (lease_id) WHERE (lease_id IS NOT NULL);

-- INDEX in_flight_batches_not_before

CREATE INDEX in_flight_batches_not_before ON sharequeue.in_flight_batches USING btree (share_partition_id, not_before) WHERE (not_before IS NOT NULL);

-- INDEX in_flight_batches_waiting

CREATE INDEX in_flight_batches_waiting ON sharequeue.in_flight_batches USING btree (share_partition_id, state, first_offset) WHERE (state = ANY (ARRAY[0, 3]));

-- INDEX journal_by_age

CREATE INDEX journal_by_age ON ONLY sharequeue.journal USING brin (journal_id) WITH (pages_per_range='16');

-- INDEX journal_by_share_partition

CREATE INDEX journal_by_share_partition ON ONLY sharequeue.journal USING btree (share_partition_id, journal_id);

-- INDEX journal_daily_by_day

CREATE INDEX journal_daily_by_day ON sharequeue.journal_daily USING btree (day);

-- INDEX journal_other_journal_id_idx

CREATE INDEX journal_other_journal_id_idx ON sharequeue.journal_other USING brin (journal_id) WITH (pages_per_range='16');

-- INDEX journal_other_share_partition_id_journal_id_idx

CREATE INDEX journal_other_share_partition_id_journal_id_idx ON sharequeue.journal_other USING btree (share_partition_id, journal_id);

-- INDEX journal_snapshots_by_age

CREATE INDEX journal_snapshots_by_age ON sharequeue.journal_snapshots USING btree (taken_at);

-- INDEX lease_outputs_by_share_partition

CREATE INDEX lease_outputs_by_share_partition ON sharequeue.lease_outputs USING btree (share_partition_id);

-- INDEX leases_by_share_partition

CREATE INDEX leases_by_share_partition ON sharequeue.leases USING btree (share_partition_id, expires_at);

-- INDEX redrive_batches_one_open

CREATE UNIQUE INDEX redrive_batches_one_open ON sharequeue.redrive_batches USING btree (dead_letter_topic, topic_id, partition) WHERE (sent_at IS NULL);

-- INDEX redrives_for_one_group

CREATE INDEX redrives_for_one_group ON sharequeue.redrives USING btree (only_group) WHERE (only_group IS NOT NULL);

-- INDEX requests_by_age

CREATE INDEX requests_by_age ON sharequeue.requests USING btree (answered_at);

-- INDEX share_partitions_by_next_expiry

CREATE INDEX share_partitions_by_next_expiry ON sharequeue.share_partitions USING btree (next_expiry) WHERE (next_expiry IS NOT NULL);

-- INDEX ATTACH journal_other_journal_id_idx

ALTER INDEX sharequeue.journal_by_age ATTACH PARTITION sharequeue.journal_other_journal_id_idx;

-- INDEX ATTACH journal_other_share_partition_id_journal_id_idx

ALTER INDEX sharequeue.journal_by_share_partition ATTACH PARTITION sharequeue.journal_other_share_partition_id_journal_id_idx;

-- TRIGGER acls acls_learned

CREATE TRIGGER acls_learned AFTER INSERT OR DELETE OR UPDATE OR TRUNCATE ON sharequeue.acls FOR EACH STATEMENT EXECUTE FUNCTION sharequeue_internal.groups_learn_acls();

-- TRIGGER audit_log audit_log_append_only

CREATE TRIGGER audit_log_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON sharequeue.audit_log FOR EACH STATEMENT EXECUTE FUNCTION sharequeue_internal.audit_log_is_append_only();

-- TRIGGER authorizer authorizer_learned

CREATE TRIGGER authorizer_learned AFTER INSERT OR DELETE OR UPDATE OR TRUNCATE ON sharequeue.authorizer FOR EACH STATEMENT EXECUTE FUNCTION sharequeue_internal.groups_learn_acls();

-- TRIGGER clock_offset clock_offset_unfold

CREATE TRIGGER clock_offset_unfold AFTER INSERT OR DELETE OR UPDATE ON sharequeue.clock_offset FOR EACH STATEMENT EXECUTE FUNCTION sharequeue_internal.clock_unfold();

-- TRIGGER delivery_counts delivery_counts_journal

CREATE TRIGGER delivery_counts_journal AFTER INSERT OR UPDATE ON sharequeue.delivery_counts FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.journal_outcome();

-- TRIGGER group_configs group_configs_audit

CREATE TRIGGER group_configs_audit AFTER INSERT OR DELETE OR UPDATE ON sharequeue.group_configs FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.audit_group_config();

-- TRIGGER group_configs group_configs_in_order

CREATE TRIGGER group_configs_in_order BEFORE INSERT OR DELETE OR UPDATE ON sharequeue.group_configs FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.group_configs_lock_group();

-- TRIGGER group_configs group_configs_settings

CREATE TRIGGER group_configs_settings AFTER INSERT OR DELETE OR UPDATE ON sharequeue.group_configs FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.group_settings_follow();

-- TRIGGER group_settings group_settings_acls

CREATE TRIGGER group_settings_acls BEFORE INSERT ON sharequeue.group_settings FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.group_settings_learn_acls();

-- TRIGGER group_settings group_settings_journal_pause

CREATE TRIGGER group_settings_journal_pause AFTER UPDATE OF paused_reason ON sharequeue.group_settings FOR EACH ROW WHEN ((old.paused_reason IS DISTINCT FROM new.paused_reason)) EXECUTE FUNCTION sharequeue_internal.journal_pause();

-- TRIGGER group_settings group_settings_unfold

CREATE TRIGGER group_settings_unfold AFTER UPDATE ON sharequeue.group_settings REFERENCING OLD TABLE AS settings_before NEW TABLE AS settings_now FOR EACH STATEMENT EXECUTE FUNCTION sharequeue_internal.group_settings_unfold();

-- TRIGGER in_flight_batches in_flight_batches_journal

CREATE TRIGGER in_flight_batches_journal AFTER INSERT ON sharequeue.in_flight_batches FOR EACH ROW WHEN ((NOT new.journalled)) EXECUTE FUNCTION sharequeue_internal.journal_batch();

-- TRIGGER in_flight_batches in_flight_batches_journal_delete

CREATE TRIGGER in_flight_batches_journal_delete AFTER DELETE ON sharequeue.in_flight_batches FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.journal_batch();

-- TRIGGER in_flight_batches in_flight_batches_journal_update

CREATE TRIGGER in_flight_batches_journal_update AFTER UPDATE ON sharequeue.in_flight_batches FOR EACH ROW WHEN ((old.journalled = new.journalled)) EXECUTE FUNCTION sharequeue_internal.journal_batch();

-- TRIGGER leases leases_journal

CREATE TRIGGER leases_journal AFTER INSERT ON sharequeue.leases FOR EACH ROW WHEN ((NOT new.journalled)) EXECUTE FUNCTION sharequeue_internal.journal_lease();

-- TRIGGER leases leases_journal_delete

CREATE TRIGGER leases_journal_delete AFTER DELETE ON sharequeue.leases FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.journal_lease();

-- TRIGGER leases leases_journal_update

CREATE TRIGGER leases_journal_update AFTER UPDATE ON sharequeue.leases FOR EACH ROW WHEN ((old.journalled = new.journalled)) EXECUTE FUNCTION sharequeue_internal.journal_lease();

-- TRIGGER share_groups share_groups_named

CREATE TRIGGER share_groups_named BEFORE INSERT ON sharequeue.share_groups FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.share_group_named();

-- TRIGGER share_groups share_groups_settings

CREATE TRIGGER share_groups_settings AFTER INSERT ON sharequeue.share_groups FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.group_settings_follow();

-- TRIGGER share_partitions share_partitions_gone

CREATE TRIGGER share_partitions_gone AFTER DELETE ON sharequeue.share_partitions FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.share_partition_gone();

-- TRIGGER share_partitions share_partitions_journal

CREATE TRIGGER share_partitions_journal AFTER INSERT OR DELETE ON sharequeue.share_partitions FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.journal_share_partition_change();

-- TRIGGER share_partitions share_partitions_journal_status

CREATE TRIGGER share_partitions_journal_status AFTER UPDATE OF status ON sharequeue.share_partitions FOR EACH ROW WHEN ((old.status <> new.status)) EXECUTE FUNCTION sharequeue_internal.journal_share_partition_change();

-- TRIGGER share_partitions share_partitions_journal_update

CREATE TRIGGER share_partitions_journal_update AFTER UPDATE OF delivery_complete_count, lost_records, dead_letter_sequence, next_expiry, state_epoch, redeliverable, advance_due, paused_reason, topic_id ON sharequeue.share_partitions FOR EACH ROW EXECUTE FUNCTION sharequeue_internal.journal_share_partition_change();

-- FK CONSTRAINT assignments assignments_member_fkey

ALTER TABLE ONLY sharequeue.assignments
    ADD CONSTRAINT assignments_member_fkey FOREIGN KEY (group_id, member_id) REFERENCES sharequeue.members(group_id, member_id) ON DELETE CASCADE;

-- FK CONSTRAINT assignments assignments_share_partition_fkey

ALTER TABLE ONLY sharequeue.assignments
    ADD CONSTRAINT assignments_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

-- FK CONSTRAINT circuit_breakers circuit_breakers_share_partition_fkey

ALTER TABLE ONLY sharequeue.circuit_breakers
    ADD CONSTRAINT circuit_breakers_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

-- FK CONSTRAINT compactions compactions_group_fkey

ALTER TABLE ONLY sharequeue.compactions
    ADD CONSTRAINT compactions_group_fkey FOREIGN KEY (group_id) REFERENCES sharequeue.share_groups(group_id) ON DELETE CASCADE;

-- FK CONSTRAINT dead_letter_batches dead_letter_batches_share_partition_fkey

ALTER TABLE ONLY sharequeue.dead_letter_batches
    ADD CONSTRAINT dead_letter_batches_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

-- FK CONSTRAINT dead_letter_runs dead_letter_runs_batch_fkey

ALTER TABLE ONLY sharequeue.dead_letter_runs
    ADD CONSTRAINT dead_letter_runs_batch_fkey FOREIGN KEY (share_partition_id, sequence) REFERENCES sharequeue.dead_letter_batches(share_partition_id, sequence) ON DELETE CASCADE;

-- FK CONSTRAINT delivery_count_history delivery_count_history_fkey

ALTER TABLE ONLY sharequeue.delivery_count_history
    ADD CONSTRAINT delivery_count_history_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

-- FK CONSTRAINT delivery_counts delivery_counts_share_partition_fkey

ALTER TABLE ONLY sharequeue.delivery_counts
    ADD CONSTRAINT delivery_counts_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

-- FK CONSTRAINT failed_attempts failed_attempts_share_partition_fkey

ALTER TABLE ONLY sharequeue.failed_attempts
    ADD CONSTRAINT failed_attempts_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

-- FK CONSTRAINT group_settings group_settings_group_fkey

ALTER TABLE ONLY sharequeue.group_settings
    ADD CONSTRAINT group_settings_group_fkey FOREIGN KEY (group_id) REFERENCES sharequeue.share_groups(group_id) ON DELETE CASCADE;

-- FK CONSTRAINT held_dead_letters held_dead_letters_share_partition_fkey

ALTER TABLE ONLY sharequeue.held_dead_letters
    ADD CONSTRAINT held_dead_letters_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

-- FK CONSTRAINT lease_outputs lease_outputs_share_partition_fkey

ALTER TABLE ONLY sharequeue.lease_outputs
    ADD CONSTRAINT lease_outputs_share_partition_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

-- FK CONSTRAINT members members_group_fkey

ALTER TABLE ONLY sharequeue.members
    ADD CONSTRAINT members_group_fkey FOREIGN KEY (group_id) REFERENCES sharequeue.share_groups(group_id) ON DELETE CASCADE;

-- FK CONSTRAINT observations observations_group_fkey

ALTER TABLE ONLY sharequeue.observations
    ADD CONSTRAINT observations_group_fkey FOREIGN KEY (group_id) REFERENCES sharequeue.share_groups(group_id) ON DELETE CASCADE;

-- FK CONSTRAINT redrive_batches redrive_batches_redrive_fkey

ALTER TABLE ONLY sharequeue.redrive_batches
    ADD CONSTRAINT redrive_batches_redrive_fkey FOREIGN KEY (redrive_id) REFERENCES sharequeue.redrives(redrive_id);

-- FK CONSTRAINT share_partition_history share_partition_history_fkey

ALTER TABLE ONLY sharequeue.share_partition_history
    ADD CONSTRAINT share_partition_history_fkey FOREIGN KEY (share_partition_id) REFERENCES sharequeue.share_partitions(share_partition_id) ON DELETE CASCADE;

-- FK CONSTRAINT share_partitions share_partitions_group_fkey

ALTER TABLE ONLY sharequeue.share_partitions
    ADD CONSTRAINT share_partitions_group_fkey FOREIGN KEY (group_id) REFERENCES sharequeue.share_groups(group_id) ON DELETE CASCADE;
