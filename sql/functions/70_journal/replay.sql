-- The state according to the journal, now or at an earlier time: replayed from a snapshot to a point in the journal (journal_id,
-- inclusive) or its end. Each function returns the last image of every row, and the sets of offsets with every change since.

-- Aggregates the set of offsets of one row of a batch, change by change.
create or replace function sharequeue_internal.replay_offsets(p_before int8multirange, p_kind text, p_offsets int8multirange)
returns int8multirange
language sql immutable parallel safe as $$
    select case p_kind
        when 'offsets_added' then p_before + p_offsets
        when 'offsets_taken' then p_before - p_offsets
        else p_offsets end
$$;
create or replace aggregate sharequeue_internal.replayed(text, int8multirange) (
    sfunc = sharequeue_internal.replay_offsets, stype = int8multirange
);

-- Returns the journal ids at which a replay of a share-partition may begin, latest first.
create or replace function sharequeue.snapshots(p_share_partition_id bigint)
returns table (journal_id bigint, taken_at timestamptz)
language sql stable set search_path = pg_catalog as $$
    select s.journal_id, s.taken_at from sharequeue.journal_snapshots s
    where s.share_partition_id = p_share_partition_id order by s.journal_id desc
$$;

-- Returns the batches in flight.
create or replace function sharequeue.replay_batches(
    p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint default null
) returns table (first_offset bigint, last_offset bigint, part integer, state smallint, delivery_count smallint,
    lease_id bigint, isolate bigint, not_before timestamptz, cause text, offsets int8multirange)
language sql stable set search_path = pg_catalog as $$
    with changes as (
        select j.journal_id, j.kind, j.first_offset, j.last_offset, j.part, j.state, j.delivery_count, j.lease_id,
            j.isolate, j.not_before, j.cause, j.offsets
        from sharequeue.journal j
        where j.share_partition_id = p_share_partition_id and j.journal_id >= p_snapshot_id
            and (p_until is null or j.journal_id <= p_until)
            and j.kind in ('batch', 'batch_gone', 'offsets_added', 'offsets_taken')
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

-- Returns the leases.
create or replace function sharequeue.replay_leases(
    p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint default null
) returns table (lease_id bigint, member_id text, member_epoch integer, token uuid, lock_duration_ms integer,
    acquired_at timestamptz, locked_at timestamptz, expires_at timestamptz, fan_out boolean, own_lock_duration boolean,
    read_committed boolean)
language sql stable set search_path = pg_catalog as $$
    with changes as (
        select j.journal_id, j.kind = 'lease' as there, j.lease_id, j.member_id, j.member_epoch, j.token,
            j.lock_duration_ms, j.acquired_at, j.locked_at, j.expires_at, j.fan_out, j.own_lock_duration, j.read_committed
        from sharequeue.journal j
        where j.share_partition_id = p_share_partition_id and j.journal_id >= p_snapshot_id
            and (p_until is null or j.journal_id <= p_until) and j.kind in ('lease', 'lease_gone')
    ), last as (
        select distinct on (c.lease_id) c.* from changes c order by c.lease_id, c.journal_id desc
    )
    select l.lease_id, l.member_id, l.member_epoch, l.token, l.lock_duration_ms, l.acquired_at, l.locked_at, l.expires_at,
        l.fan_out,
        l.own_lock_duration, l.read_committed
    from last l where l.there
$$;

-- Returns the share-partition's row; no row if it was deleted.
create or replace function sharequeue.replay_share_partition(
    p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint default null
) returns table (spso bigint, speo bigint, delivery_complete_count bigint, accepted_first bigint, lost_records bigint,
    dead_letter_sequence bigint, next_expiry timestamptz, state_epoch integer, redeliverable boolean,
    advance_due boolean, keys_unknown boolean, status text, paused_reason text, topic_id text)
language sql stable set search_path = pg_catalog as $$
    select i.spso, i.speo, i.delivery_complete_count, i.accepted_first, i.lost_records, i.dead_letter_sequence,
        i.next_expiry, i.state_epoch, i.redeliverable, i.advance_due, i.keys_unknown, i.status, i.paused_reason, i.topic_id
    from (
        select * from sharequeue.journal j
        where j.share_partition_id = p_share_partition_id and j.journal_id >= p_snapshot_id
            and (p_until is null or j.journal_id <= p_until)
            and j.kind in ('initialized', 'snapshot', 'share_partition', 'deleted')
        order by j.journal_id desc limit 1
    ) as i where i.kind <> 'deleted'
$$;

-- Returns the open records whose keys are known.
create or replace function sharequeue.replay_open_keys(
    p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint default null
) returns table ("offset" bigint, key_hash uuid, since timestamptz, until timestamptz, archiving boolean, letter bigint,
    released boolean)
language sql stable set search_path = pg_catalog as $$
    with last as (
        select distinct on (o.at_offset) o.at_offset, j.*
        from sharequeue.journal j
        cross join lateral (select unnest(j.offsets) as run) as r
        cross join lateral generate_series(lower(r.run), upper(r.run) - 1) as o (at_offset)
        where j.share_partition_id = p_share_partition_id and j.journal_id >= p_snapshot_id
            and (p_until is null or j.journal_id <= p_until) and j.kind in ('keys_added', 'keys_gone')
        order by o.at_offset, j.journal_id desc
    )
    select l.at_offset, l.key_hash, l.since, l.not_before, l.archiving, l.letter, l.released from last l where l.kind = 'keys_added'
$$;

-- Returns the numbers of finished records by outcome and delivery count.
create or replace function sharequeue.replay_outcomes(
    p_share_partition_id bigint, p_snapshot_id bigint, p_until bigint default null
) returns table (outcome text, delivery_count smallint, records bigint)
language sql stable set search_path = pg_catalog as $$
    -- A later snapshot has the total again.
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
