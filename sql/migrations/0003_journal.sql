-- The journal: every change of share-partition state in the order in which it happened, as Kafka's ShareUpdate and
-- ShareSnapshot records have it, in partitions by day; and daily rollups that outlive it.

-- One row per change, as it is afterwards; kind says which columns count:
--   initialized      a share-partition came to life: a snapshot with nothing in flight
--   snapshot         a snapshot begins: the share-partition's columns; its batches, leases and outcomes follow at once
--   share_partition  the share-partition's columns
--   batch            a row of in_flight_batches;  batch_gone: none under (first_offset, part) any more
--   offsets_added    a row of in_flight_batches holds these offsets too;  offsets_taken: no longer
--   lease            a row of leases;  lease_gone: none under lease_id any more
--   fetch            the usual step in one row: the batch at gone_first and the lease gone_lease_id went; a batch came,
--                    uniform, at its first delivery, and its lease, granted at this time. SPEO is its end, accepted_first as
--                    said, SPSO as said. Of a folded share-partition (below) gone_lease_id and spso are left out: nothing
--                    else is in flight or leased, and SPSO is the batch's start
--   outcome          so many records more of one bar of delivery_counts (cause is the outcome);  outcome_total: all of it
--   group_paused     the group was paused, or resumed where paused_reason is null
--   deleted          the share-partition is gone
-- No key and no checks: every index and every constraint is paid for by every operation. journal_id rises within a
-- share-partition, because its row is locked whenever one is drawn.
create table sharequeue.journal (
    -- From one sequence with the leases, so that a fetch draws one number for both.
    journal_id bigint not null default nextval('sharequeue.leases_lease_id_seq'),
    share_partition_id bigint not null,
    at timestamptz not null,
    first_offset bigint,
    last_offset bigint,
    gone_first bigint,
    lease_id bigint,
    gone_lease_id bigint,
    isolate bigint,
    not_before timestamptz,
    acquired_at timestamptz,
    expires_at timestamptz,
    spso bigint,
    speo bigint,
    delivery_complete_count bigint,
    accepted_first bigint,
    lost_records bigint,
    dead_letter_sequence bigint,
    next_expiry timestamptz,
    records bigint,
    token uuid,
    part integer,
    lock_duration_ms integer,
    member_epoch integer,
    state_epoch integer,
    partition integer,
    state smallint,
    delivery_count smallint,
    fan_out boolean,
    own_lock_duration boolean,
    redeliverable boolean,
    advance_due boolean,
    kind text not null,
    cause text,
    member_id text,
    status text,
    paused_reason text,
    topic_id text,
    group_id text,
    topic text,
    offsets int8multirange
) partition by range (at);
create index journal_by_share_partition on sharequeue.journal (share_partition_id, journal_id);
-- What was written since the last look, for the counting of updates. A BRIN index costs an insert nothing.
create index journal_by_age on sharequeue.journal using brin (journal_id) with (pages_per_range = 16);

-- What no day's partition takes: days that nobody has made one for, and times to which tests have moved the clock.
create table sharequeue.journal_other partition of sharequeue.journal default;

-- Where replay may begin: the journal_id of each row of kind initialized or snapshot.
create table sharequeue.journal_snapshots (
    share_partition_id bigint not null,
    journal_id bigint not null,
    taken_at timestamptz not null,
    constraint journal_snapshots_pkey primary key (share_partition_id, journal_id)
);
create index journal_snapshots_by_age on sharequeue.journal_snapshots (taken_at);

-- How many rows a share-partition's journal has grown since its last snapshot, as counted now and then.
create table sharequeue.journal_growth (
    share_partition_id bigint constraint journal_growth_pkey primary key,
    updates bigint not null
) with (fillfactor = 70);
create table sharequeue.journal_counted (
    singleton boolean constraint journal_counted_pkey primary key default true
        constraint journal_counted_singleton check (singleton),
    journal_id bigint not null
);
insert into sharequeue.journal_counted (journal_id) values (0);

-- One share-partition on one day (UTC), from the journal; kept when the day's journal is dropped. No foreign keys:
-- share-partitions end, what they did stays.
create table sharequeue.journal_daily (
    day date not null,
    share_partition_id bigint not null,
    group_id text not null,
    topic text not null,
    partition integer not null,
    -- Rows of the journal, of them snapshots; leases granted.
    updates bigint not null,
    snapshots bigint not null,
    leases bigint not null,
    -- Records that came into flight, that were accepted at their first delivery, that retention took unprocessed.
    entered bigint not null,
    accepted_first bigint not null,
    lost_records bigint not null,
    highest_delivery_count smallint not null,
    -- As they were at the end of the day.
    spso bigint not null,
    speo bigint not null,
    delivery_complete_count bigint not null,
    state_epoch integer not null,
    total_accepted_first bigint not null,
    total_lost_records bigint not null,
    constraint journal_daily_pkey primary key (share_partition_id, day)
);
create index journal_daily_by_day on sharequeue.journal_daily (day);

-- Which days have been rolled up.
create table sharequeue.journal_rolled_up (day date constraint journal_rolled_up_pkey primary key);

-- How many records of a share-partition ended how on a day, after how many deliveries; without those accepted at their
-- first delivery, which journal_daily counts.
create table sharequeue.journal_daily_outcomes (
    day date not null,
    share_partition_id bigint not null,
    outcome text not null,
    delivery_count smallint not null,
    records bigint not null,
    constraint journal_daily_outcomes_pkey primary key (share_partition_id, day, outcome, delivery_count)
);

-- Turned over by whoever journals a change itself, in one row for several tables; where it is not, triggers do. A column,
-- because a setting could be set by anyone who may call a function.
alter table sharequeue.in_flight_batches add column journalled boolean not null default false;
alter table sharequeue.leases
    add column journalled boolean not null default false,
    -- The answer of the fetch that granted the lease, for as long as the lease is there; it moves to requests when the
    -- lease ends. One row a fetch less to write, and to delete an hour later.
    add column request_id uuid,
    add column fetched sharequeue.acknowledged_and_acquired;
-- A share-partition is *folded* while all that is in flight is one batch, uniform, at its first delivery, under one lease of
-- acknowledge_and_acquire: [SPSO, SPEO). Batch and lease then stand in these columns and nowhere else, so that the next
-- fetch is one HOT update and one row of the journal. Every other operation unfolds it first (sql/functions/11_fold.sql).
alter table sharequeue.share_partitions
    add column folded_lease_id bigint,
    add column folded_acquired_at timestamptz,
    -- Lag as the fetch answered it.
    add column folded_lag bigint,
    -- Of the group's settings, which unfold the group's share-partitions when they change; and of the clock.
    add column folded_max_record_locks bigint,
    add column folded_clock_offset interval,
    add column folded_token uuid,
    add column folded_request_id uuid,
    add column folded_lock_duration_ms integer,
    add column folded_member_epoch integer,
    add column folded_read_committed boolean,
    add column folded_fan_out boolean,
    add column folded_member_id text;
