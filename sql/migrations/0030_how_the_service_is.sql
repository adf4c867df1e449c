-- When each replica last did what it does by itself; null where it never did.
alter table sharequeue.service_replicas
    add column watched_at timestamptz,
    add column swept_at timestamptz,
    add column journal_kept_at timestamptz,
    add column drained_at timestamptz;

-- What happened to records that did not end by it: released or renewed by an acknowledgement, or their lock lapsed. For
-- monitoring.
create table sharequeue.record_events (
    share_partition_id bigint not null
        constraint record_events_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    event text not null
        constraint record_events_event_known check (event in ('released', 'renewed', 'lapsed')),
    records bigint not null,
    constraint record_events_pkey primary key (share_partition_id, event)
) with (fillfactor = 70);
