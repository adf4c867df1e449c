-- A group remembers which pipeline works on it, and which losses a run has reported.
alter table sharequeue.share_groups add column pipeline text
    constraint share_groups_pipeline_length check (length(pipeline) between 1 and 249);

-- Of a share-partition's lost records, those that a run or a lease has reported.
create table sharequeue.reported_losses (
    share_partition_id bigint constraint reported_losses_pkey primary key
        constraint reported_losses_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    records bigint not null constraint reported_losses_records_natural check (records >= 0)
);
