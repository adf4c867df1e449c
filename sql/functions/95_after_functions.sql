-- Updates of the data after each change of the functions.

-- Settings of existing groups, and of changed defaults.
select sharequeue_internal.compile_group_settings(group_id) from sharequeue.share_groups;

-- Snapshots of share-partitions that are older than the journal.
select sharequeue.take_snapshot(sp.share_partition_id) from sharequeue.share_partitions sp
where not exists (
    select from sharequeue.journal_snapshots s where s.share_partition_id = sp.share_partition_id);

-- Today's partition, from the first migration on.
select sharequeue.make_journal_partitions();
