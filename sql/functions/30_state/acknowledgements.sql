-- The arguments of an acknowledgement, the records that its member holds, and their renewal.

-- Returns the first offset of the batch at or before an offset; the offset itself if there is none.
create or replace function sharequeue_internal.batch_at(p_id bigint, p_offset bigint) returns bigint
language plpgsql stable as $$
begin
    return coalesce((select first_offset from sharequeue.in_flight_batches
        where share_partition_id = p_id and first_offset <= p_offset
        order by share_partition_id desc, first_offset desc limit 1), p_offset);
end
$$;

-- Returns the offsets of all batches in flight that overlap [p_first, p_last].
create or replace function sharequeue_internal.cached(p_id bigint, p_first bigint, p_last bigint) returns int8multirange
language plpgsql stable as $$
declare
    v_from bigint := sharequeue_internal.batch_at(p_id, p_first);
begin
    return (select coalesce(range_agg(int8range(first_offset, last_offset + 1)), '{}')
        from sharequeue.in_flight_batches where share_partition_id = p_id and first_offset between v_from and p_last);
end
$$;

-- Returns the leases of a member that hold records of the batches which begin between p_from and p_last; with a token, only that
-- lease. It always goes from the batches to their leases, by primary key. A plain join that was planned while the tables were
-- small would start from all leases of the member, and a function call for each batch costs more.
create or replace function sharequeue_internal.leases_between(
    p_id bigint, p_from bigint, p_last bigint, p_member_id text, p_token uuid
) returns bigint[]
language plpgsql stable as $$
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

-- Returns the offsets that a member holds in the batches that overlap [p_first, p_last]; with a token, under that lease only.
create or replace function sharequeue_internal.held(
    p_id bigint, p_first bigint, p_last bigint, p_member_id text, p_token uuid
) returns int8multirange
language plpgsql stable as $$
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

-- Renews the lock of offsets that a member holds, for the full duration from now (KIP-1222, R-RN). If they are only a part of
-- a lease, this part gets a row of its own with the same token.
create or replace function sharequeue_internal.renew_offsets(
    p_id bigint, p_settings sharequeue.group_settings, p_holder sharequeue_internal.holder, p_offsets int8multirange,
    p_at timestamptz
) returns void
language plpgsql volatile as $$
declare
    v_lease record;
    v_part record;
    v_leases bigint[];
    v_lease_id bigint;
    v_soonest timestamptz;
begin
    if isempty(p_offsets) then
        return;
    end if;
    v_leases := sharequeue_internal.leases_between(p_id, sharequeue_internal.batch_at(p_id, lower(p_offsets)), upper(p_offsets) - 1,
        p_holder.member_id, p_holder.token);
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
        v_soonest := least(v_soonest, v_lease.expires_at);
        if v_lease.whole then
            update sharequeue.leases set locked_at = p_at, expires_at = v_lease.expires_at where lease_id = v_lease.lease_id;
            continue;
        end if;
        insert into sharequeue.leases (share_partition_id, member_id, member_epoch, token, lock_duration_ms,
            acquired_at, locked_at, expires_at, fan_out, own_lock_duration, read_committed)
        select share_partition_id, member_id, member_epoch, token, lock_duration_ms, acquired_at, p_at, v_lease.expires_at,
            fan_out, own_lock_duration, read_committed
        from sharequeue.leases where lease_id = v_lease.lease_id
        returning lease_id into v_lease_id;
        for v_part in
            select first_offset, last_offset, part, delivery_count,
                sharequeue_internal.offsets_of(first_offset, last_offset, offsets) * p_offsets as renewed
            from sharequeue.in_flight_batches
            where lease_id = v_lease.lease_id
                and sharequeue_internal.offsets_of(first_offset, last_offset, offsets) && p_offsets
        loop
            perform sharequeue_internal.put_into_lease(p_id, v_part.first_offset, v_part.last_offset, v_part.part,
                v_part.renewed, v_part.delivery_count, v_lease_id);
        end loop;
    end loop;
    -- The new expiry may be earlier than the previous one: the group's lock duration may have become shorter.
    update sharequeue.share_partitions set next_expiry = v_soonest
    where share_partition_id = p_id and next_expiry > v_soonest;
end
$$;

-- Returns what is wrong with the sets of offsets to be acknowledged: a null set, offsets out of range, too many runs, or an
-- offset in two sets. Null if nothing is wrong.
create or replace function sharequeue_internal.acknowledgements_fault(p_acknowledgements sharequeue.acknowledgements) returns text
language plpgsql immutable as $$
declare
    v_accept int8multirange := (p_acknowledgements).accept;
    v_release int8multirange := (p_acknowledgements).release;
    v_reject int8multirange := (p_acknowledgements).reject;
    v_gap int8multirange := (p_acknowledgements).gap;
    v_renew int8multirange := (p_acknowledgements).renew;
    v_hold int8multirange := (p_acknowledgements).hold;
begin
    -- Plain expressions: a query over the six sets costs more than the rest of the function.
    if v_accept is null or v_release is null or v_reject is null or v_gap is null or v_renew is null or v_hold is null then
        return 'a set of offsets is missing: give every set, and {} for an empty one';
    elsif lower_inf(v_accept) or upper_inf(v_accept) or lower_inf(v_release) or upper_inf(v_release)
            or lower_inf(v_reject) or upper_inf(v_reject) or lower_inf(v_gap) or upper_inf(v_gap)
            or lower_inf(v_renew) or upper_inf(v_renew) or lower_inf(v_hold) or upper_inf(v_hold)
            or least(lower(v_accept), lower(v_release), lower(v_reject), lower(v_gap), lower(v_renew), lower(v_hold)) < 0 then
        return 'an offset is out of range: expected 0 to 2^63 - 2';
    -- A range takes 21 bytes: smaller sets need not be counted.
    elsif pg_column_size(p_acknowledgements) > 21 * sharequeue_internal.max_runs() and (
            select sum((select count(*) from (select unnest(s)) as ranges))
            from unnest(array[v_accept, v_release, v_reject, v_gap, v_renew, v_hold]) as s) > sharequeue_internal.max_runs() then
        return format('one call has too many runs of offsets: expected at most %s. Send the acknowledgement in several calls',
            sharequeue_internal.max_runs());
    elsif v_accept && v_release or v_accept && v_reject or v_accept && v_gap or v_accept && v_renew
            or v_release && v_reject or v_release && v_gap or v_release && v_renew or v_reject && v_gap
            or v_reject && v_renew or v_gap && v_renew
            or v_hold && v_accept or v_hold && v_release or v_hold && v_reject or v_hold && v_gap or v_hold && v_renew then
        return 'an offset has more than one acknowledgement: the sets of one call must not overlap';
    end if;
    return null;
end
$$;

-- Returns acknowledgements without the offsets below p_first.
create or replace function sharequeue_internal.acknowledgements_from(p_acknowledgements sharequeue.acknowledgements, p_first bigint)
returns sharequeue.acknowledgements
language sql immutable parallel safe as $$
    select row(sharequeue_internal.offsets_from((p_acknowledgements).accept, p_first),
        sharequeue_internal.offsets_from((p_acknowledgements).release, p_first), sharequeue_internal.offsets_from((p_acknowledgements).reject, p_first),
        sharequeue_internal.offsets_from((p_acknowledgements).gap, p_first), sharequeue_internal.offsets_from((p_acknowledgements).renew, p_first),
        sharequeue_internal.offsets_from((p_acknowledgements).hold, p_first)
    )::sharequeue.acknowledgements
$$;

-- Returns the range from the first to the last acknowledged offset of a call; empty without any. This function and the next are
-- one expression each, so that Postgres inlines them: a query would copy sets that may be large.
create or replace function sharequeue_internal.span(p_acknowledgements sharequeue.acknowledgements) returns int8multirange
language sql immutable parallel safe as $$
    select case when least(lower((p_acknowledgements).accept), lower((p_acknowledgements).release),
            lower((p_acknowledgements).reject), lower((p_acknowledgements).gap), lower((p_acknowledgements).renew),
            lower((p_acknowledgements).hold)) is null
        then '{}'::int8multirange
        else int8multirange(int8range(
            least(lower((p_acknowledgements).accept), lower((p_acknowledgements).release), lower((p_acknowledgements).reject),
                lower((p_acknowledgements).gap), lower((p_acknowledgements).renew), lower((p_acknowledgements).hold)),
            greatest(upper((p_acknowledgements).accept), upper((p_acknowledgements).release),
                upper((p_acknowledgements).reject), upper((p_acknowledgements).gap), upper((p_acknowledgements).renew),
                upper((p_acknowledgements).hold))))
        end
$$;

-- Returns the first offset of the acknowledgements that is not in a set; null if all are in it.
create or replace function sharequeue_internal.first_outside(p_acknowledgements sharequeue.acknowledgements, p_offsets int8multirange)
returns bigint
language sql immutable parallel safe as $$
    select least(
        case when not (p_acknowledgements).accept <@ p_offsets then lower((p_acknowledgements).accept - p_offsets) end,
        case when not (p_acknowledgements).release <@ p_offsets then lower((p_acknowledgements).release - p_offsets) end,
        case when not (p_acknowledgements).reject <@ p_offsets then lower((p_acknowledgements).reject - p_offsets) end,
        case when not (p_acknowledgements).gap <@ p_offsets then lower((p_acknowledgements).gap - p_offsets) end,
        case when not (p_acknowledgements).renew <@ p_offsets then lower((p_acknowledgements).renew - p_offsets) end,
        case when not (p_acknowledgements).hold <@ p_offsets then lower((p_acknowledgements).hold - p_offsets) end)
$$;
