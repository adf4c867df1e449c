-- What is done with a database each time the functions have changed.

-- Groups that were there before, and defaults that changed with this file.
select sharequeue_internal.compile_group_settings(group_id) from sharequeue.share_groups;

-- Share-partitions that were there before the journal was.
select sharequeue.take_snapshot(sp.share_partition_id) from sharequeue.share_partitions sp
where not exists (
    select from sharequeue.journal_snapshots s where s.share_partition_id = sp.share_partition_id);

-- Today's partition, from the first migration on.
select sharequeue.make_journal_partitions();
