-- The failed deliveries of a record, for its dead letter.

-- Deletes the attempts at records below p_spso, because their letters are written. The last attempt of a lease also deletes the
-- output in which a consumer stored the errors. The output of a run stays, because others read it.
create or replace function sharequeue_internal.forget_attempts(p_id bigint, p_spso bigint) returns void
language sql volatile set enable_seqscan = off as $$
    with gone as (
        delete from sharequeue.failed_attempts where share_partition_id = p_id and past <= p_spso returning lease_id)
    delete from sharequeue.lease_outputs o using gone
    where o.lease_id = gone.lease_id and o.sink = 'share-consumer-exceptions' and not exists (
        select from sharequeue.failed_attempts f
        where f.share_partition_id = p_id and f.lease_id = gone.lease_id and f.past > p_spso)
$$;

-- Records the failed delivery of the records of p_offsets that these leases hold, or of all that they hold if p_offsets is null.
-- Called before the records leave their leases, and only if there is a dead-letter topic. Accepted records are left out.
-- p_reason: why the leases end without an acknowledgement.
create or replace function sharequeue_internal.note_attempts(
    p_id bigint, p_lease_ids bigint[], p_offsets int8multirange default null, p_reason text default null
) returns void
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_group_id text;
    v_spso bigint;
begin
    select group_id, spso into v_group_id, v_spso from sharequeue.share_partitions where share_partition_id = p_id;
    perform sharequeue_internal.forget_attempts(p_id, v_spso);
    insert into sharequeue.failed_attempts (share_partition_id, lease_id, member_id, client_id, acquired_at, past, offsets, reason)
    select p_id, l.lease_id, l.member_id, coalesce((select m.client_id from sharequeue.members m
            where m.group_id = v_group_id and m.member_id = l.member_id), ''), l.acquired_at, upper(x.offsets), x.offsets, p_reason
    from unnest(p_lease_ids) as e (lease_id)
    cross join lateral (
        select lease_id, member_id, acquired_at from sharequeue.leases where lease_id = e.lease_id offset 0) as l
    cross join lateral (
        -- A single lease: the failed records are all in the arguments, and need not be looked up.
        select case when p_offsets is not null and cardinality(p_lease_ids) = 1 then p_offsets else (
            select range_agg(sharequeue_internal.offsets_of(f.first_offset, f.last_offset, f.offsets))
                * coalesce(p_offsets, int8multirange(int8range(v_spso, null)))
            from sharequeue.in_flight_batches f where f.lease_id = e.lease_id) end as offsets offset 0) as x
    where not isempty(x.offsets);
end
$$;

-- Returns the attempts of some records, oldest first: the member, the time, the location of the files with the handler's
-- errors, null if there are none, and why it ended without an acknowledgement. Attempts before the group had a dead-letter topic are not known.
create or replace function sharequeue_internal.attempts_at(p_id bigint, p_offsets int8multirange) returns jsonb
language sql stable as $$
    select coalesce(jsonb_agg(jsonb_build_object(
            'lease_id', f.lease_id, 'member_id', f.member_id, 'client_id', f.client_id, 'acquired_at', f.acquired_at,
            'offsets', (f.offsets * p_offsets)::text, 'reason', f.reason, 'exceptions', (
                select o.location from sharequeue.lease_outputs o
                where o.lease_id = f.lease_id and o.sink like '%-exceptions' and o.records > 0 limit 1))
        order by f.acquired_at, f.lease_id), '[]')
    from sharequeue.failed_attempts f
    where f.share_partition_id = p_id and f.past > lower(p_offsets) and f.offsets && p_offsets
$$;
