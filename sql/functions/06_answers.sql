-- What an acknowledgement is made of, once it is known to be allowed.

-- The offsets of all batches in flight that meet [p_first, p_last].
create or replace function sharequeue.cached(p_id bigint, p_first bigint, p_last bigint) returns int8multirange
language sql stable as $$
    select coalesce(range_agg(int8range(first_offset, last_offset + 1)), '{}') from sharequeue.in_flight_batches
    where share_partition_id = p_id and first_offset between coalesce((
            select first_offset from sharequeue.in_flight_batches
            where share_partition_id = p_id and first_offset <= p_first
            order by share_partition_id desc, first_offset desc limit 1), p_first) and p_last
$$;

-- Whether a lease is a member's, and of that token where one is named. Not a join: planned while the tables were small,
-- one starts from all leases of the member.
create or replace function sharequeue.is_holder(p_lease_id bigint, p_member_id text, p_token uuid) returns boolean
language sql stable as $$
    select coalesce((select member_id = p_member_id and (p_token is null or token = p_token)
        from sharequeue.leases where lease_id = p_lease_id), false)
$$;

-- What a member holds of the batches that meet [p_first, p_last]; with a token, under that lease only.
create or replace function sharequeue.held(
    p_id bigint, p_first bigint, p_last bigint, p_member_id text, p_token uuid
) returns int8multirange
language sql stable as $$
    select coalesce(range_agg(sharequeue.offsets_of(f.first_offset, f.last_offset, f.offsets)), '{}')
    from sharequeue.in_flight_batches f
    where f.share_partition_id = p_id and f.state = 1
        and sharequeue.is_holder(f.lease_id, p_member_id, p_token)
        and f.first_offset between coalesce((
            select first_offset from sharequeue.in_flight_batches
            where share_partition_id = p_id and first_offset <= p_first
            order by share_partition_id desc, first_offset desc limit 1), p_first) and p_last
$$;

-- A full lock duration from now for offsets that a member holds (KIP-1222, R-RN). Where that is only a part of a lease,
-- the part goes on under a row of its own, with the same token.
create or replace function sharequeue.renew_offsets(
    p_id bigint, p_settings sharequeue.group_settings, p_member_id text, p_token uuid, p_offsets int8multirange,
    p_at timestamptz
) returns bigint
language plpgsql volatile as $$
declare
    v_lease record;
    v_part record;
    v_lease_id bigint;
    v_renewed bigint := 0;
begin
    if isempty(p_offsets) then
        return 0;
    end if;
    for v_lease in
        select l.lease_id, bool_and(sharequeue.offsets_of(f.first_offset, f.last_offset, f.offsets) <@ p_offsets)
                as whole, sum(sharequeue.records(
                    sharequeue.offsets_of(f.first_offset, f.last_offset, f.offsets) * p_offsets)) as records,
            p_at + case when l.own_lock_duration then l.lock_duration_ms else p_settings.lock_duration_ms end
                * interval '1 millisecond' as expires_at
        from sharequeue.leases l join sharequeue.in_flight_batches f using (lease_id)
        where l.share_partition_id = p_id and l.member_id = p_member_id and (p_token is null or l.token = p_token)
        group by l.lease_id
    loop
        continue when v_lease.records = 0;
        v_renewed := v_renewed + v_lease.records;
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
                sharequeue.offsets_of(first_offset, last_offset, offsets) * p_offsets as renewed
            from sharequeue.in_flight_batches
            where lease_id = v_lease.lease_id
                and sharequeue.offsets_of(first_offset, last_offset, offsets) && p_offsets
        loop
            if v_part.offsets is null
                    and v_part.renewed = int8multirange(int8range(v_part.first_offset, v_part.last_offset + 1)) then
                update sharequeue.in_flight_batches set lease_id = v_lease_id
                where share_partition_id = p_id and first_offset = v_part.first_offset;
            else
                perform sharequeue.take(p_id, v_part.first_offset, v_part.part, v_part.renewed);
                perform sharequeue.place(p_id, v_part.first_offset, v_part.last_offset, 1::smallint,
                    v_part.delivery_count, v_part.renewed, v_lease_id);
            end if;
        end loop;
    end loop;
    return v_renewed;
end
$$;

-- One part of a batch, answered with one type, goes to its next state (R-AK-12).
create or replace function sharequeue.answer_part(
    p_id bigint, p_first bigint, p_last bigint, p_part integer, p_delivery_count smallint, p_whole boolean,
    p_offsets int8multirange, p_state smallint, p_cause text, p_not_before timestamptz, p_outcome text
) returns void
language plpgsql volatile as $$
begin
    if p_whole then
        update sharequeue.in_flight_batches
        set state = p_state, lease_id = null, cause = p_cause, not_before = p_not_before
        where share_partition_id = p_id and first_offset = p_first;
    else
        perform sharequeue.take(p_id, p_first, p_part, p_offsets);
        perform sharequeue.place(
            p_id, p_first, p_last, p_state, p_delivery_count, p_offsets, null, p_cause, null, p_not_before);
    end if;
    if p_state in (2, 4) and not (p_state = 2 and p_delivery_count = 1) then
        perform sharequeue.count_outcome(p_id, p_outcome, p_delivery_count, sharequeue.records(p_offsets));
    end if;
end
$$;

-- Applies answers to all parts that the member holds of p_asked, which is known to be held and lies at or above SPSO;
-- records of its leases that the log start has overtaken are let go without an outcome where it names its token.
create or replace function sharequeue.apply_answers(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_member_id text, p_token uuid,
    p_answers sharequeue.answers, p_asked int8multirange, p_not_before timestamptz, p_at timestamptz
) returns sharequeue.acknowledged
language plpgsql volatile as $$
declare
    v_answer sharequeue.acknowledged;
    v_id bigint := p_sp.share_partition_id;
    v_part record;
    v_answers record;
    v_set record;
    v_records bigint;
    v_leases bigint[] := '{}';
    v_completed bigint := 0;
    v_accepted_first bigint := 0;
    v_dead smallint := case when p_settings.dead_letters then 3 else 4 end;
    v_exhausted boolean;
    -- To the second, so that different moments do not fragment a batch.
    v_not_before timestamptz := date_trunc('second', p_not_before + interval '999999 microseconds');
begin
    v_answer.error_code := 0;
    v_answer.accepted := 0;
    v_answer.released := 0;
    v_answer.rejected := 0;
    v_answer.gaps := 0;
    v_answer.exhausted := 0;
    for v_part in
        select f.first_offset, f.last_offset, f.part, f.delivery_count, f.lease_id, f.offsets is null as uniform,
            sharequeue.offsets_of(f.first_offset, f.last_offset, f.offsets) as offsets
        from sharequeue.in_flight_batches f
        where f.share_partition_id = v_id and f.state = 1 and not isempty(p_asked)
            and sharequeue.is_holder(f.lease_id, p_member_id, p_token)
            and f.first_offset between coalesce((
                select first_offset from sharequeue.in_flight_batches
                where share_partition_id = v_id and first_offset <= lower(p_asked)
                order by share_partition_id desc, first_offset desc limit 1), 0) and upper(p_asked)
            and sharequeue.offsets_of(f.first_offset, f.last_offset, f.offsets) && p_asked
        order by f.first_offset
    loop
        if v_part.lease_id <> all (v_leases) then
            v_leases := v_leases || v_part.lease_id;
        end if;
        v_exhausted := v_part.delivery_count >= p_settings.delivery_count_limit;
        for v_set in
            select a.state, a.cause, a.outcome, v_part.offsets * a.offsets as offsets
            from (values
                (2::smallint, null, 'accepted', (p_answers).accept),
                (case when v_exhausted then v_dead else 0::smallint end,
                    case when v_exhausted then 'exceeded' end, 'exceeded', (p_answers).release),
                (v_dead, 'rejected', 'rejected', (p_answers).reject),
                (4::smallint, 'gap', 'gap', (p_answers).gap)) as a (state, cause, outcome, offsets)
            where not isempty(a.offsets)
        loop
            if lower(v_set.offsets) < p_sp.spso then
                v_set.offsets := v_set.offsets * int8multirange(int8range(p_sp.spso, null));
            end if;
            continue when isempty(v_set.offsets);
            v_records := sharequeue.records(v_set.offsets);
            perform sharequeue.answer_part(v_id, v_part.first_offset, v_part.last_offset, v_part.part,
                v_part.delivery_count, v_part.uniform and v_set.offsets = v_part.offsets, v_set.offsets, v_set.state,
                v_set.cause, case when v_set.state = 0 and v_not_before > p_at then v_not_before end, v_set.outcome);
            case v_set.outcome
                when 'accepted' then
                    v_answer.accepted := v_answer.accepted + v_records;
                    if v_part.delivery_count = 1 then
                        v_accepted_first := v_accepted_first + v_records;
                    end if;
                when 'rejected' then v_answer.rejected := v_answer.rejected + v_records;
                when 'gap' then v_answer.gaps := v_answer.gaps + v_records;
                else
                    if v_exhausted then
                        v_answer.exhausted := v_answer.exhausted + v_records;
                    else
                        v_answer.released := v_answer.released + v_records;
                    end if;
            end case;
            if v_set.state in (2, 4) then
                v_completed := v_completed + v_records;
            end if;
        end loop;
        perform sharequeue.join_terminal(v_id, v_part.first_offset);
    end loop;
    if p_token is not null then
        v_leases := v_leases || sharequeue.let_go_overtaken(p_sp, p_member_id, p_token);
    end if;
    perform sharequeue.renew_offsets(v_id, p_settings, p_member_id, p_token, (p_answers).renew * p_asked, p_at);
    delete from sharequeue.leases l where l.lease_id = any (v_leases)
        and not exists (select from sharequeue.in_flight_batches f where f.lease_id = l.lease_id);
    if v_answer.released > 0 then
        update sharequeue.share_partitions set redeliverable = true
        where share_partition_id = v_id and not redeliverable;
    end if;
    perform sharequeue.advance_spso(v_id, v_completed, v_accepted_first);
    select spso, greatest(0, log_end - spso - delivery_complete_count) into v_answer.spso, v_answer.lag
    from sharequeue.share_partitions where share_partition_id = v_id;
    return v_answer;
end
$$;

-- Records of a lease that the log start has overtaken, let go without an outcome; answers the leases they were under.
create or replace function sharequeue.let_go_overtaken(
    p_sp sharequeue.share_partitions, p_member_id text, p_token uuid
) returns bigint[]
language plpgsql volatile as $$
declare
    v_part record;
    v_leases bigint[] := '{}';
begin
    for v_part in
        select f.first_offset, f.part, f.lease_id
        from sharequeue.in_flight_batches f
        where f.share_partition_id = p_sp.share_partition_id and f.state = 1 and f.first_offset < p_sp.spso
            and sharequeue.is_holder(f.lease_id, p_member_id, p_token)
    loop
        perform sharequeue.take(p_sp.share_partition_id, v_part.first_offset, v_part.part,
            int8multirange(int8range(null, p_sp.spso)));
        v_leases := v_leases || v_part.lease_id;
    end loop;
    return v_leases;
end
$$;
