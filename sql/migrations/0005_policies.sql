-- Policies beyond Kafka's: the circuit breaker, what a cancelled run costs, what an outage does to locks; and the
-- service's own configs, which until now reached Python only.

-- Broker-level configs (group.share.…) that somebody has set; written by the service when it starts. A group without a
-- value of its own takes these before Kafka's defaults.
create table sharequeue.service_configs (
    name text constraint service_configs_pkey primary key
        constraint service_configs_name_is_a_brokers check (name like 'group.share.%' or name like 'errors.%'),
    value text not null
);

alter table sharequeue.group_settings
    -- The circuit breaker: leasing stops once more than so many percent failed of the last window of records; 0 is off.
    add column breaker_percent integer not null default 0,
    add column breaker_min_records bigint not null default 20,
    add column breaker_window_records bigint not null default 100,
    add column breaker_probe_records bigint not null default 10,
    add column breaker_open_ms integer not null default 30000,
    -- Whether a cancelled run gives the deliveries of what it still holds back.
    add column refund_cancelled boolean not null default false;

-- One row per share-partition whose group has a breaker, from its first answer on.
create table sharequeue.circuit_breakers (
    share_partition_id bigint constraint circuit_breakers_pkey primary key
        constraint circuit_breakers_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    -- closed: leasing goes on. open: nothing is leased before retry_at. probing: one small lease is out.
    state text not null default 'closed',
    -- Of the last window: records answered or lapsed, and those of them that failed. Older ones fade in proportion.
    answered double precision not null default 0,
    failed double precision not null default 0,
    opened_at timestamptz,
    retry_at timestamptz,
    -- What opened it, in words.
    reason text,
    -- The probe: which of its offsets are still out, how many it had, how many of them have failed.
    probe int8multirange not null default '{}',
    probe_records bigint not null default 0,
    probe_failed bigint not null default 0
) with (fillfactor = 70);

-- When the service was last alive, and the last time during which nobody could renew a lock.
create table sharequeue.service_beat (
    singleton boolean constraint service_beat_pkey primary key default true
        constraint service_beat_singleton check (singleton),
    beat_at timestamptz not null,
    -- Start of the Postgres server that saw the beat: another one means a crash or restart in between.
    server_started_at timestamptz not null,
    outage_from timestamptz,
    outage_until timestamptz
) with (fillfactor = 50);

-- Release takes one argument more: whether the run was cancelled.
drop function if exists sharequeue.release(text, text, uuid);

-- What an administrator's act on offsets did or would do: one row per set of offsets in one state.
create type sharequeue.forced as (
    error_code smallint, error_message text, act text, state smallint, delivery_count smallint, member_id text,
    offsets int8multirange, reason text
);

-- What a reset did or would do to one share-partition.
create type sharequeue.reset as (
    error_code smallint, error_message text, topic text, partition integer, start_offset_before bigint,
    start_offset bigint, state_epoch integer
);

-- The views gain columns in the middle.
drop view if exists sharequeue.share_partition_status, sharequeue.held_leases;
