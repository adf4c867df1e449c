-- One call, one commit for many share-partitions of one group: `<operation>_many`. Each does, one after the other, what the
-- operation of one share-partition does, and answers in that operation's columns with topic and partition in front, and
-- the lease's token where one was given. One share-partition's refusal is a row with an error_code and undoes nothing of
-- the others; only a malformed call raises. All rows are locked first, by id. A call holds as many row locks as it names
-- share-partitions until it commits (about 0.3 ms each): so no more than a thousand, and callers send 200.

-- Locks the share-partitions named, by id (02_lock_order.sql), before anything is done with any of them; answers which are
-- there, in the order of the call. One that comes only now is not: it would be locked out of order. Refuses arrays that do
-- not fit together: every array has an element for each share-partition.
create or replace function sharequeue.lock_many(
    p_group_id text, p_topics text[], p_partitions integer[], variadic p_lengths integer[]
) returns boolean[]
language plpgsql volatile as $$
declare
    v_ids bigint[];
begin
    perform sharequeue.require_read_committed();
    perform sharequeue.check_present('the group id', p_group_id);
    perform sharequeue.check_many(1000, p_topics, p_partitions, variadic p_lengths);
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

-- What lock_share_partition says of a share-partition that is not there.
create or replace function sharequeue.absent(
    p_group_id text, p_topic text, p_partition integer, out error_code smallint, out error_message text
)
language plpgsql stable as $$
begin
    if not sharequeue.authorised(p_group_id, 'READ') then
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

-- The arrays of one call: no nulls among the names, one length, not too many.
create or replace function sharequeue.check_many(
    p_most integer, p_topics text[], p_partitions integer[], variadic p_lengths integer[]
) returns void
language plpgsql immutable as $$
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

-- A request id is one for the share-partitions that its call names, as request_key is for one of them; null, and so no
-- stored answer, without an id and for who may not act on the group.
create or replace function sharequeue.request_key_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_operation text, p_member_id text, p_request_id uuid
) returns uuid
language sql stable as $$
    select md5(p_operation || p_request_id || jsonb_build_array(p_group_id, p_topics, p_partitions, p_member_id))::uuid
    where p_request_id is not null and sharequeue.authorised(p_group_id, 'READ')
$$;

-- What would be leased next under fan_out: suspects or not, and whether it would be their last attempt. It holds one record,
-- and a worker that dies over it must hold nothing else.
create or replace function sharequeue.next_suspects(
    p_group_id text, p_topic text, p_partition integer, p_leave_out int8multirange,
    out suspects boolean, out last_attempt boolean
)
language plpgsql volatile as $$
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
        perform sharequeue.settle_lapsed(v_sp.share_partition_id, v_at);
    elsif not coalesce(v_sp.redeliverable, false) then
        return;
    end if;
    select f.isolate is not null, f.isolate is not null and f.delivery_count >= v_sp.delivery_count_limit - 1
    into suspects, last_attempt
    from sharequeue.in_flight_batches f
    where f.share_partition_id = v_sp.share_partition_id and f.state = 0
        and f.first_offset = sharequeue.next_available(v_sp.share_partition_id, 0, v_at, p_leave_out)
        and (f.not_before is null or f.not_before <= v_at)
        and not sharequeue.offsets_of(f.first_offset, f.last_offset, f.offsets) <@ p_leave_out
    order by lower(sharequeue.offsets_of(f.first_offset, f.last_offset, f.offsets)) limit 1;
    suspects := coalesce(suspects, false);
    last_attempt := coalesce(last_attempt, false);
end
$$;

-- acquire over share-partitions in the order given, which share p_max_records and, unless null, p_max_bytes (p_mean_bytes
-- are the bytes of a record by share-partition; p_leave_outs what acquire calls p_leave_out): R-AQ-18. The first lease has at least one record, however large.
--
-- Under fan_out up to p_parts parts of one share-partition's suspects are leased, one lease each, for a worker that runs
-- them side by side; and the last attempt of a suspect is leased alone: with p_last_attempt it comes first, and nothing
-- beside it; without, it is left where it is.
create or replace function sharequeue.acquire_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_member_id text, p_member_epoch integer,
    p_max_records bigint, p_lock_duration_ms integer default null, p_request_id uuid default null,
    p_redelivery text default 'kafka', p_mode text default 'batch_optimized', p_max_bytes bigint default null,
    p_mean_bytes double precision[] default null, p_leave_outs int8multirange[] default null,
    p_parts integer default 1, p_last_attempt boolean default true
) returns setof sharequeue.acquired_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_rows sharequeue.acquired_of[] := '{}';
    v_key uuid;
    v_answer jsonb;
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
    v_there := sharequeue.lock_many(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_mean_bytes), cardinality(p_topics)),
        coalesce(cardinality(p_leave_outs), cardinality(p_topics)));
    v_key := sharequeue.request_key_many(
        p_group_id, p_topics, p_partitions, 'acquire_many', p_member_id, p_request_id);
    v_answer := sharequeue.answered(v_key);
    if v_answer is not null then
        return query select * from jsonb_populate_recordset(null::sharequeue.acquired_of, v_answer);
        return;
    end if;
    v_order := array(select generate_series(1, cardinality(p_topics)));
    if p_redelivery = 'fan_out' and p_last_attempt then
        foreach v_place in array v_order loop
            continue when not v_there[v_place];
            select n.last_attempt into v_alone
            from sharequeue.next_suspects(p_group_id, p_topics[v_place], p_partitions[v_place],
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
            from sharequeue.absent(p_group_id, p_topics[v_place], p_partitions[v_place]) as a;
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
                from sharequeue.next_suspects(p_group_id, p_topics[v_place], p_partitions[v_place],
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
        perform sharequeue.remember(v_key, 'acquire_many', to_jsonb(v_rows));
    end if;
    return query select * from unnest(v_rows);
end
$$;

-- renew, for many leases of one member.
create or replace function sharequeue.renew_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_state_epochs integer[], p_member_id text,
    p_member_epoch integer, p_tokens uuid[]
) returns setof sharequeue.renewed_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_there boolean[];
    v_place integer;
    v_renewed record;
begin
    v_there := sharequeue.lock_many(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_state_epochs), 0), coalesce(cardinality(p_tokens), 0));
    for v_place in 1 .. cardinality(p_topics) loop
        if v_there[v_place] then
            select * into v_renewed
            from sharequeue.renew(p_group_id, p_topics[v_place], p_partitions[v_place], p_state_epochs[v_place],
                p_member_id, p_member_epoch, p_tokens[v_place]);
        else
            select *, cast(null as timestamptz) as expires_at into v_renewed
            from sharequeue.absent(p_group_id, p_topics[v_place], p_partitions[v_place]);
        end if;
        return next row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place], v_renewed.error_code,
            v_renewed.error_message, v_renewed.expires_at)::sharequeue.renewed_of;
    end loop;
end
$$;

-- acknowledge, for many leases of one member. p_outputs is an array of the arrays that acknowledge takes. Each lease is
-- answered whole or not at all, and the outputs named for it count if it is.
create or replace function sharequeue.acknowledge_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_state_epochs integer[], p_member_id text,
    p_member_epoch integer, p_tokens uuid[], p_request_id uuid, p_accepts int8multirange[],
    p_releases int8multirange[], p_rejects int8multirange[], p_gaps int8multirange[], p_outputs jsonb,
    p_not_befores timestamptz[]
) returns setof sharequeue.acknowledged_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_there boolean[];
    v_place integer;
    v_rows sharequeue.acknowledged_of[] := '{}';
    v_key uuid;
    v_answer jsonb;
    v_one sharequeue.acknowledged;
begin
    perform sharequeue.require_read_committed();
    if p_outputs is null or jsonb_typeof(p_outputs) <> 'array' then
        raise exception 'the outputs are an array with an array for each lease' using errcode = 'SQ042';
    end if;
    v_there := sharequeue.lock_many(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_state_epochs), 0), coalesce(cardinality(p_tokens), 0),
        coalesce(cardinality(p_accepts), 0), coalesce(cardinality(p_releases), 0),
        coalesce(cardinality(p_rejects), 0), coalesce(cardinality(p_gaps), 0), jsonb_array_length(p_outputs),
        coalesce(cardinality(p_not_befores), 0));
    v_key := sharequeue.request_key_many(
        p_group_id, p_topics || p_tokens::text[], p_partitions, 'acknowledge_many', p_member_id, p_request_id);
    v_answer := sharequeue.answered(v_key);
    if v_answer is not null then
        return query select * from jsonb_populate_recordset(null::sharequeue.acknowledged_of, v_answer);
        return;
    end if;
    for v_place in 1 .. cardinality(p_topics) loop
        v_one := null;
        if not v_there[v_place] then
            select a.error_code, a.error_message into v_one.error_code, v_one.error_message
            from sharequeue.absent(p_group_id, p_topics[v_place], p_partitions[v_place]) as a;
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
    perform sharequeue.remember(v_key, 'acknowledge_many', to_jsonb(v_rows));
    return query select * from unnest(v_rows);
end
$$;

-- release, for many leases of one member: answers how many records each still held.
create or replace function sharequeue.release_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_member_id text, p_tokens uuid[],
    p_cancelled boolean default false, p_refund boolean default false
) returns setof sharequeue.released_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_there boolean[];
    v_place integer;
    v_id bigint;
begin
    perform sharequeue.authorise(p_group_id, 'READ');
    perform sharequeue.check_present('the member id', p_member_id);
    if p_cancelled is null or p_refund is null or array_position(p_tokens, null) is not null then
        raise exception 'release_many needs the token of every lease, whether the run was cancelled, and whether its '
            'deliveries are given back'
            using errcode = 'SQ042';
    end if;
    v_there := sharequeue.lock_many(p_group_id, p_topics, p_partitions, coalesce(cardinality(p_tokens), 0));
    for v_place in 1 .. cardinality(p_topics) loop
        select share_partition_id into v_id from sharequeue.share_partitions
        where v_there[v_place] and group_id = p_group_id and topic = p_topics[v_place]
            and partition = p_partitions[v_place];
        return next row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place],
            case when v_id is null then 0 else sharequeue.release_of(v_id, p_member_id, p_tokens[v_place], p_cancelled,
                p_refund) end)::sharequeue.released_of;
    end loop;
end
$$;
