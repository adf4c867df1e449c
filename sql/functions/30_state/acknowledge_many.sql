-- acknowledge, for many leases of one member. p_outputs is an array with one element for each lease: the p_outputs of
-- acknowledge. Each lease is acknowledged whole or not at all. If it is, its outputs count. p_delays is also an array with one
-- array for each lease, of objects with "offsets" (an int8multirange) and "until": p_delayed and p_delayed_until of acknowledge.
create or replace function sharequeue.acknowledge_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_state_epochs integer[], p_member_id text,
    p_member_epoch integer, p_tokens uuid[], p_request_id uuid, p_accepts int8multirange[],
    p_releases int8multirange[], p_rejects int8multirange[], p_gaps int8multirange[], p_outputs jsonb,
    p_not_befores timestamptz[], p_backoff boolean default false, p_delays jsonb default null
) returns setof sharequeue.acknowledged_of
language plpgsql volatile
set search_path = pg_catalog set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
    v_there boolean[];
    v_place integer;
    v_rows sharequeue.acknowledged_of[] := '{}';
    v_key uuid;
    v_result jsonb;
    v_one sharequeue.acknowledged;
    v_delayed int8multirange[] := '{}';
    v_delayed_until timestamptz[] := '{}';
begin
    perform sharequeue.require_read_committed();
    if p_outputs is null or jsonb_typeof(p_outputs) <> 'array' then
        raise exception 'p_outputs is not valid: expected an array with one array for each lease' using errcode = 'SQ042';
    end if;
    if p_delays is not null and (jsonb_typeof(p_delays) <> 'array' or exists (
            select from jsonb_path_query(p_delays, 'strict $[*]') as d where jsonb_typeof(d) <> 'array')) then
        raise exception 'p_delays is not valid: expected an array with one array for each lease' using errcode = 'SQ042';
    end if;
    v_there := sharequeue_internal.lock_share_partitions(p_group_id, p_topics, p_partitions,
        coalesce(cardinality(p_state_epochs), 0), coalesce(cardinality(p_tokens), 0),
        coalesce(cardinality(p_accepts), 0), coalesce(cardinality(p_releases), 0),
        coalesce(cardinality(p_rejects), 0), coalesce(cardinality(p_gaps), 0), jsonb_array_length(p_outputs),
        coalesce(cardinality(p_not_befores), 0), coalesce(jsonb_array_length(p_delays), cardinality(p_topics)));
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
            from sharequeue_internal.absent(p_group_id, p_topics[v_place], p_partitions[v_place], 'READ') as a;
            v_rows := v_rows || row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place],
                v_one.*)::sharequeue.acknowledged_of;
            continue;
        end if;
        if p_delays is not null then
            begin
                select coalesce(array_agg((d->>'offsets')::int8multirange order by n), '{}'),
                    coalesce(array_agg((d->>'until')::timestamptz order by n), '{}')
                into v_delayed, v_delayed_until
                from jsonb_array_elements(p_delays -> (v_place - 1)) with ordinality as e (d, n);
            exception when data_exception then
                raise exception 'a delay is not valid: expected "offsets", an int8multirange, and "until", a time: %', sqlerrm
                    using errcode = 'SQ042';
            end;
        end if;
        v_one := sharequeue.acknowledge(p_group_id => p_group_id, p_topic => p_topics[v_place],
            p_partition => p_partitions[v_place], p_state_epoch => p_state_epochs[v_place], p_member_id => p_member_id,
            p_member_epoch => p_member_epoch, p_token => p_tokens[v_place], p_request_id => null,
            p_accept => p_accepts[v_place], p_release => p_releases[v_place], p_reject => p_rejects[v_place],
            p_gap => p_gaps[v_place], p_outputs => p_outputs -> (v_place - 1),
            p_not_before => p_not_befores[v_place], p_backoff => p_backoff, p_delayed => v_delayed,
            p_delayed_until => v_delayed_until);
        v_rows := v_rows
            || row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place], v_one.*)::sharequeue.acknowledged_of;
    end loop;
    perform sharequeue_internal.remember(v_key, 'acknowledge_many', to_jsonb(v_rows));
    return query select * from unnest(v_rows);
end
$$;
