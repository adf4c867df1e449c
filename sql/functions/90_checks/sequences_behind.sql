-- Returns the sequences whose next value is not above all that were used, with the next and the last used value. Logical
-- replication and a copy of the rows leave sequences at their start: ids would repeat. Each table is read at its end, the journal
-- only where it is past the sequence.
create or replace function sharequeue.sequences_behind() returns table (sequence text, next bigint, used bigint)
language sql stable set search_path = pg_catalog as $$
    with sequences (sequence, next) as (
        select 'leases_lease_id_seq', last_value + is_called::int from sharequeue.leases_lease_id_seq
        union all
        select 'share_partitions_share_partition_id_seq', last_value + is_called::int
        from sharequeue.share_partitions_share_partition_id_seq
        union all
        select 'audit_log_audit_id_seq', last_value + is_called::int from sharequeue.audit_log_audit_id_seq
    )
    select s.sequence, s.next, u.used from sequences s cross join lateral (
        select case s.sequence
            when 'leases_lease_id_seq' then greatest(
                (select max(lease_id) from sharequeue.leases), (select max(lease_id) from sharequeue.lease_outputs),
                (select max(lease_id) from sharequeue.failed_attempts), (select max(lease_id) from sharequeue.kept_records),
                (select max(journal_id) from sharequeue.journal_snapshots),
                (select max(journal_id) from sharequeue.journal_counted),
                (select max(journal_id) from sharequeue.journal j where j.journal_id >= s.next))
            when 'share_partitions_share_partition_id_seq' then greatest(
                (select max(share_partition_id) from sharequeue.share_partitions),
                (select max(share_partition_id) from sharequeue.journal_snapshots),
                (select max(share_partition_id) from sharequeue.journal_daily))
            else (select max(audit_id) from sharequeue.audit_log)
        end as used
    ) as u where s.next <= u.used
$$;

-- Sets the sequences that are behind. Returns them, with their next value.
create or replace function sharequeue_internal.advance_sequences() returns jsonb
language sql volatile set search_path = pg_catalog as $$
    select coalesce(jsonb_object_agg(b.sequence, setval(format('sharequeue.%I', b.sequence)::regclass, b.used) + 1), '{}')
    from sharequeue.sequences_behind() as b
$$;
