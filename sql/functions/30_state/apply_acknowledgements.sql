-- The changes that an acknowledgement makes, after it has been checked.

-- Applies acknowledgements. The caller has checked that the member holds their offsets; p_asked has what it holds of the batches
-- that they overlap. Below SPSO only accepted records have an effect, and only for a member with a token (let_go_overtaken).
create or replace function sharequeue_internal.apply_acknowledgements(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder,
    p_acknowledgements sharequeue.acknowledgements, p_asked int8multirange, p_times sharequeue_internal.release_times,
    p_at timestamptz, p_keys sharequeue_internal.key_offsets[] default '{}'
) returns sharequeue.acknowledged
language plpgsql volatile as $$
declare
    v_id bigint := p_sp.share_partition_id;
    v_acknowledgements sharequeue.acknowledgements
        := sharequeue_internal.acknowledgements_from(p_acknowledgements, p_sp.spso);
    v_times sharequeue_internal.release_times := p_times;
    v_from bigint;
    v_last bigint := upper(p_asked) - 1;
    v_leases bigint[] := '{}';
    v_tally sharequeue_internal.tally := row(0, 0, 0, 0, 0, 0, 0, 0);
    v_overtaken record;
    v_sp record;
begin
    if p_settings.breaker_percent > 0 then
        v_times.earliest := sharequeue_internal.circuit_acknowledgements(v_id, p_settings, v_acknowledgements, p_asked, p_at);
    end if;
    v_times.not_before := sharequeue_internal.whole_second(v_times.not_before);
    v_times.untils := array(
        select sharequeue_internal.whole_second(u.until) from unnest(v_times.untils) with ordinality as u (until, place)
        order by u.place);
    if v_last is not null then
        v_from := sharequeue_internal.batch_at(v_id, lower(p_asked));
        v_leases := sharequeue_internal.leases_between(v_id, v_from, v_last, p_holder.member_id, p_holder.token);
        if p_settings.dead_letters and not (isempty((v_acknowledgements).release) and isempty((v_acknowledgements).reject)) then
            perform sharequeue_internal.note_attempts(v_id, v_leases, (v_acknowledgements).release + (v_acknowledgements).reject);
        end if;
        v_tally := sharequeue_internal.accept_whole(p_sp, v_leases, v_acknowledgements, p_asked);
        if v_tally.accepted is null then
            v_tally := sharequeue_internal.acknowledge_counted(
                v_id, p_settings, v_leases, v_from, v_last, v_acknowledgements, v_times, p_at);
        end if;
    end if;
    if p_holder.token is not null then
        select * into v_overtaken from sharequeue_internal.let_go_overtaken(p_sp, p_holder, (p_acknowledgements).accept);
        v_leases := v_leases || v_overtaken.lease_ids;
        v_tally.accepted := v_tally.accepted + v_overtaken.accepted;
    end if;
    if not isempty((v_acknowledgements).renew) then
        perform sharequeue_internal.count_event(v_id, 'renewed', sharequeue.records((v_acknowledgements).renew));
        perform sharequeue_internal.renew_offsets(v_id, p_settings, p_holder, (v_acknowledgements).renew, p_at);
    end if;
    -- Looked up for each lease: a join would read the window for many of them.
    delete from sharequeue.leases l where l.lease_id = any (v_leases)
        and not exists (select from sharequeue.in_flight_batches f where f.lease_id = l.lease_id offset 0);
    if v_tally.released + v_tally.exhausted > 0 then
        perform sharequeue_internal.count_event(v_id, 'released', v_tally.released + v_tally.exhausted);
    end if;
    if v_tally.released + v_tally.held > 0 then
        update sharequeue.share_partitions set redeliverable = true
        where share_partition_id = v_id and not redeliverable;
    end if;
    if p_sp.open_key_records > 0 or v_tally.held > 0 or not p_sp.keys_unknown or (p_settings.ordered and p_keys <> '{}') then
        perform sharequeue_internal.keep_order(p_sp, p_settings, v_acknowledgements, p_keys, v_from, v_last, p_at);
    end if;
    perform sharequeue_internal.advance_spso(v_id, v_tally.completed, v_tally.accepted_first);
    select spso, greatest(0, log_end - spso - delivery_complete_count) as lag into v_sp
    from sharequeue.share_partitions where share_partition_id = v_id;
    -- Last, after SPSO has deleted the batches that it passed. Often nothing is left to join.
    if v_last >= v_sp.spso then
        perform sharequeue_internal.join_terminal(v_id, v_from, v_last);
    end if;
    return row(0::smallint, null::text, v_sp.spso, v_sp.lag, v_tally.accepted, v_tally.released, v_tally.rejected, v_tally.gaps,
        v_tally.exhausted)::sharequeue.acknowledged;
end
$$;

-- Accepts a lease that is one whole batch, whatever its place and its delivery count are. Returns null, and does nothing, if it
-- is not that: acknowledge_parts has the rule in full. P4's acknowledgement of a lease behind another one, as of members that
-- share a share-partition: 1.3 ms of the server's time instead of 2.2 ms.
create or replace function sharequeue_internal.accept_whole(
    p_sp sharequeue.share_partitions, p_leases bigint[], p_acknowledgements sharequeue.acknowledgements, p_asked int8multirange
) returns sharequeue_internal.tally
language plpgsql volatile as $$
declare
    v_tally sharequeue_internal.tally;
    v_count smallint;
    v_records bigint;
begin
    if p_leases[2] is null and (p_acknowledgements).accept = p_asked and isempty((p_acknowledgements).release)
            and isempty((p_acknowledgements).reject) and isempty((p_acknowledgements).gap)
            and isempty((p_acknowledgements).hold) then
        update sharequeue.in_flight_batches set state = 2, lease_id = null
        where share_partition_id = p_sp.share_partition_id and first_offset = lower(p_asked) and part = 0 and state = 1
            and offsets is null and lease_id = p_leases[1] and last_offset = upper(p_asked) - 1 and first_offset >= p_sp.spso
        returning delivery_count, last_offset - first_offset + 1 into v_count, v_records;
    end if;
    if v_records > 0 then
        v_tally := row(v_records, 0, 0, 0, 0, v_records, case when v_count = 1 then v_records else 0 end, 0);
        if v_count > 1 then
            perform sharequeue_internal.count_outcome(p_sp.share_partition_id, 'accepted', v_count, v_records);
        end if;
    end if;
    return v_tally;
end
$$;

-- Acknowledges what these leases hold of the batches that begin between p_from and p_last, and counts it. Returns the numbers.
create or replace function sharequeue_internal.acknowledge_counted(
    p_id bigint, p_settings sharequeue.group_settings, p_leases bigint[], p_from bigint, p_last bigint,
    p_acknowledgements sharequeue.acknowledgements, p_times sharequeue_internal.release_times, p_at timestamptz
) returns sharequeue_internal.tally
language plpgsql volatile as $$
declare
    v_tally sharequeue_internal.tally := row(0, 0, 0, 0, 0, 0, 0, 0);
    v_ended record;
begin
    for v_ended in
        select * from sharequeue_internal.acknowledge_parts(
            p_id, p_settings, p_leases, p_from, p_last, p_acknowledgements, p_times, p_at)
    loop
        case
            when v_ended.outcome = 'accepted' then v_tally.accepted := v_tally.accepted + v_ended.records;
            when v_ended.outcome = 'rejected' then v_tally.rejected := v_tally.rejected + v_ended.records;
            when v_ended.outcome = 'gap' then v_tally.gaps := v_tally.gaps + v_ended.records;
            when v_ended.outcome = 'held' then v_tally.held := v_tally.held + v_ended.records;
            when v_ended.state = 0 then v_tally.released := v_tally.released + v_ended.records;
            else v_tally.exhausted := v_tally.exhausted + v_ended.records;
        end case;
        continue when v_ended.state not in (2, 4);
        v_tally.completed := v_tally.completed + v_ended.records;
        if v_ended.state = 2 and v_ended.delivery_count = 1 then
            -- Most of all records: counted in share_partitions.
            v_tally.accepted_first := v_tally.accepted_first + v_ended.records;
        else
            perform sharequeue_internal.count_outcome(p_id, v_ended.outcome, v_ended.delivery_count, v_ended.records);
        end if;
    end loop;
    return v_tally;
end
$$;

-- Returns the parts that these leases hold of the batches which begin between p_from and p_last, each with the sets that its
-- batch is acknowledged with, what is left of it, and whether all of it gets one new state.
create or replace function sharequeue_internal.asked_parts(
    p_id bigint, p_leases bigint[], p_from bigint, p_last bigint, p_acknowledgements sharequeue.acknowledgements,
    p_delayed int8multirange[]
) returns table (
    at tid, first_offset bigint, last_offset bigint, delivery_count smallint, offsets int8multirange, accept int8multirange,
    release int8multirange, reject int8multirange, gap int8multirange, hold int8multirange, rest int8multirange, whole boolean
)
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_timed int8multirange := coalesce((select range_agg(s) from unnest(p_delayed) as s), '{}');
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
            -- Each run of an acknowledgement finds its batch by binary search.
            select type, run, generate_series(greatest(low, 1), high) as batch
            from (
                select a.type, a.run, width_bucket(lower(a.run), b.firsts) as low,
                    width_bucket(upper(a.run) - 1, b.firsts) as high
                from batches b cross join lateral (
                    select 1 as type, unnest((p_acknowledgements).accept) as run
                    union all select 2, unnest((p_acknowledgements).release)
                    union all select 3, unnest((p_acknowledgements).reject)
                    union all select 0, unnest((p_acknowledgements).gap)
                    union all select 5, unnest((p_acknowledgements).hold)
                ) as a where cardinality(b.firsts) > 1
            ) as a
        ), slices as (
            -- So each batch is compared only with the runs that overlap it.
            select 1 as batch, (p_acknowledgements).accept, (p_acknowledgements).release, (p_acknowledgements).reject,
                (p_acknowledgements).gap, (p_acknowledgements).hold
            from batches where cardinality(firsts) = 1
            union all
            select batch, coalesce(range_agg(run) filter (where type = 1), '{}'),
                coalesce(range_agg(run) filter (where type = 2), '{}'),
                coalesce(range_agg(run) filter (where type = 3), '{}'),
                coalesce(range_agg(run) filter (where type = 0), '{}'), coalesce(range_agg(run) filter (where type = 5), '{}')
            from runs group by batch
        ), together as (
            -- Grouped, not joined: a plan made for a few batches would use nested loops.
            select min(first_offset) as first_offset, min(last_offset) as last_offset,
                array_agg(at) filter (where part is not null) as ats,
                array_agg(delivery_count) filter (where part is not null) as delivery_counts,
                array_agg(uniform) filter (where part is not null) as uniforms,
                array_agg(offsets) filter (where part is not null) as sets,
                (array_agg(accept) filter (where part is null))[1] as accept,
                (array_agg(release) filter (where part is null))[1] as release,
                (array_agg(reject) filter (where part is null))[1] as reject,
                (array_agg(gap) filter (where part is null))[1] as gap,
                (array_agg(hold) filter (where part is null))[1] as hold
            from (
                select batch, at, first_offset, last_offset, part, delivery_count, uniform, offsets, null as accept,
                    null as release, null as reject, null as gap, null as hold
                from held
                union all
                select batch, null, null, null, null, null, null, null, accept, release, reject, gap, hold from slices
            ) as b
            group by batch having bool_or(part is null)
        )
        select h.at, t.first_offset, t.last_offset, h.delivery_count, h.offsets, t.accept, t.release, t.reject, t.gap, t.hold,
            h.offsets - t.accept - t.release - t.reject - t.gap - t.hold,
            h.uniform and (h.offsets <@ t.accept or h.offsets <@ t.reject or h.offsets <@ t.gap or h.offsets <@ t.hold
                or (h.offsets <@ t.release and (not h.offsets && v_timed or h.offsets <@ any (p_delayed))))
        from together t
        cross join unnest(t.ats, t.delivery_counts, t.uniforms, t.sets) as h (at, delivery_count, uniform, offsets);
end
$$;

-- Acknowledges all parts of all batches that begin between p_from and p_last and are under these leases, in one pass: one delete,
-- one update and one insert. (Part by part, every part would be intersected with every whole set.) p_acknowledgements has no
-- offset below SPSO. p_times is for released records.
create or replace function sharequeue_internal.acknowledge_parts(
    p_id bigint, p_settings sharequeue.group_settings, p_leases bigint[], p_from bigint, p_last bigint,
    p_acknowledgements sharequeue.acknowledgements, p_times sharequeue_internal.release_times, p_at timestamptz
) returns table (outcome text, state smallint, delivery_count smallint, records bigint)
-- The memory is for the groups of 10,000 batches, so that they do not spill to disk. Rows are written by ctid, and no table is
-- read whole, as in end_leases_at. One plan for all calls: a custom plan would get a copy of every set, which may be large.
language plpgsql volatile set work_mem = '64MB' set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_dead smallint := case when p_settings.dead_letters then 3 else 4 end;
    v_limit integer := p_settings.delivery_count_limit;
    v_sets int8multirange[] := (p_times).offsets;
    v_untils timestamptz[] := (p_times).untils;
    -- Released records with a time of their own.
    v_timed int8multirange := coalesce((select range_agg(s) from unnest((p_times).offsets) as s), '{}');
    v_jitter double precision := random();
begin
    return query
        with parts as materialized (
            select * from sharequeue_internal.asked_parts(p_id, p_leases, p_from, p_last, p_acknowledgements, v_sets)
        ), pieces as materialized (
            select p.at, p.first_offset, p.last_offset, (p.delivery_count - (a.outcome = 'held')::integer)::smallint as delivery_count,
                p.whole, a.outcome, a.state, a.cause,
                case when w.until > p_at then w.until end as not_before, w.offsets,
                (select sum(upper(r) - lower(r)) from (select unnest(w.offsets) as r) as r)::bigint as records
            from parts p
            cross join lateral (values
                ('accepted', 2::smallint, null, p.accept),
                ('exhausted', case when p.delivery_count >= v_limit then v_dead else 0::smallint end,
                    case when p.delivery_count >= v_limit then 'exhausted' end, p.release),
                ('rejected', v_dead, 'rejected', p.reject),
                ('gap', 4::smallint, 'gap', p.gap),
                ('held', 0::smallint, null, p.hold)
            ) as a (outcome, state, cause, offsets)
            -- Usually the part has all of them, and this check is fast.
            cross join lateral (
                select case when a.offsets <@ p.offsets then a.offsets else p.offsets * a.offsets end as offsets
                offset 0) as x
            cross join lateral (
                select case when a.state = 0 then x.offsets - v_timed else x.offsets end as offsets,
                    case when a.outcome = 'held' then (p_times).earliest when a.state = 0 then greatest((p_times).earliest, coalesce((p_times).not_before,
                        case when (p_times).backoff then
                            sharequeue_internal.retry_at(p_settings, p.delivery_count, p_at, v_jitter) end)) end as until
                union all
                select x.offsets * s.offsets, greatest((p_times).earliest, s.until)
                from unnest(v_sets, v_untils) as s (offsets, until) where a.state = 0
            ) as w
            where not isempty(w.offsets)
        ), whole as (
            update sharequeue.in_flight_batches f
            set state = p.state, lease_id = null, cause = p.cause, not_before = p.not_before, delivery_count = p.delivery_count
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

-- Rounds a time up to a second, so that different times do not fragment a batch.
create or replace function sharequeue_internal.whole_second(p_time timestamptz) returns timestamptz
language sql immutable parallel safe as $$
    select date_trunc('second', p_time, 'UTC') + case when date_trunc('second', p_time, 'UTC') < p_time then interval '1 second'
        else interval '0' end
$$;

-- Returns when the group's back-off allows the next delivery of a released record. The back-off doubles with each delivery, up
-- to a maximum, and is longer by up to a fifth, so that records of many leases that failed at the same time do not come back at
-- the same time. Null without a back-off.
create or replace function sharequeue_internal.retry_at(
    p_settings sharequeue.group_settings, p_delivery_count smallint, p_at timestamptz, p_jitter double precision
) returns timestamptz
language sql immutable parallel safe as $$
    select sharequeue_internal.whole_second(p_at + least(
            p_settings.retry_backoff_ms * power(2, least(p_delivery_count - 1, 31)),
            greatest(p_settings.retry_backoff_ms, p_settings.retry_backoff_max_ms)
        ) * (1 + 0.2 * p_jitter) * interval '1 millisecond')
    where p_settings.retry_backoff_ms > 0
$$;

-- Returns whether a lease belongs to a member, and has the token if one is given.
create or replace function sharequeue_internal.is_holder(p_lease_id bigint, p_member_id text, p_token uuid) returns boolean
language sql stable as $$
    select coalesce((select member_id = p_member_id and (p_token is null or token = p_token)
        from sharequeue.leases where lease_id = p_lease_id), false)
$$;

-- Lets go of records of a lease that the log start has passed. An accepted one was processed in time, so it counts as accepted,
-- and no longer as lost (advance_log_start). The others stay lost, because they cannot be delivered again. Returns the leases
-- that held them, and how many were accepted.
create or replace function sharequeue_internal.let_go_overtaken(
    p_sp sharequeue.share_partitions, p_holder sharequeue_internal.holder, p_accept int8multirange,
    out lease_ids bigint[], out accepted bigint
)
language plpgsql volatile as $$
declare
    v_gone int8multirange := int8multirange(int8range(null, p_sp.spso));
    v_part record;
    v_first bigint := 0;
begin
    accepted := 0;
    for v_part in
        select f.first_offset, f.part, f.lease_id, f.delivery_count, sharequeue.records(
            sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets) * v_gone * p_accept) as accepted
        from sharequeue.in_flight_batches f
        where f.share_partition_id = p_sp.share_partition_id and f.state = 1 and f.first_offset < p_sp.spso
            and sharequeue_internal.is_holder(f.lease_id, p_holder.member_id, p_holder.token)
    loop
        perform sharequeue_internal.take(p_sp.share_partition_id, v_part.first_offset, v_part.part, v_gone);
        lease_ids := lease_ids || v_part.lease_id;
        accepted := accepted + v_part.accepted;
        if v_part.delivery_count = 1 then
            v_first := v_first + v_part.accepted;
        else
            perform sharequeue_internal.count_outcome(
                p_sp.share_partition_id, 'accepted', v_part.delivery_count, v_part.accepted);
        end if;
    end loop;
    update sharequeue.share_partitions
    set lost_records = lost_records - accepted, accepted_first = accepted_first + v_first
    where share_partition_id = p_sp.share_partition_id and accepted > 0;
end
$$;
