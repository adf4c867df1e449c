-- The tables of a share group outside the broker: groups and members, share-partitions and what is in flight
-- in them, leases, dead letters, the outputs that count, and the reports' history.

create schema if not exists sharequeue;

-- Time. Tests move it by the offset; only the owner of the schema may.
create table sharequeue.clock_offset (
    singleton boolean constraint clock_offset_pkey primary key default true
        constraint clock_offset_singleton check (singleton),
    amount interval not null default interval '0'
);
insert into sharequeue.clock_offset default values;

-- Groups, their configs, their members ---------------------------------------------------------------------------

create table sharequeue.share_groups (
    group_id text constraint share_groups_pkey primary key
        constraint share_groups_group_id_not_empty check (group_id <> ''),
    -- A group begins at epoch 1 (kafka-semantics R-GR), so that its first member gets epoch 2.
    group_epoch integer not null default 1,
    assignment_epoch integer not null default 0,
    assigned_at timestamptz,
    metadata_hash text,
    created_at timestamptz not null default clock_timestamp()
);

create table sharequeue.group_configs (
    group_id text not null constraint group_configs_group_fkey references sharequeue.share_groups on delete cascade,
    name text not null,
    value text not null,
    constraint group_configs_pkey primary key (group_id, name)
);

create table sharequeue.members (
    group_id text not null constraint members_group_fkey references sharequeue.share_groups on delete cascade,
    member_id text not null constraint members_member_id_length check (length(member_id) between 1 and 36),
    member_epoch integer not null,
    previous_member_epoch integer not null default 0,
    rack_id text,
    client_id text not null default '',
    client_host text not null default '',
    subscribed_topic_names text[] not null default '{}',
    joined_at timestamptz not null,
    heartbeat_at timestamptz not null,
    session_expires_at timestamptz not null,
    constraint members_pkey primary key (group_id, member_id)
);

create table sharequeue.topics (
    topic text constraint topics_pkey primary key,
    topic_id text not null,
    partitions integer not null,
    seen_at timestamptz not null
);

-- Share-partitions and what is in flight ---------------------------------------------------------------------------

create table sharequeue.share_partitions (
    share_partition_id bigint generated always as identity constraint share_partitions_pkey primary key,
    group_id text not null constraint share_partitions_group_fkey references sharequeue.share_groups on delete cascade,
    topic text not null,
    partition integer not null constraint share_partitions_partition_natural check (partition >= 0),
    topic_id text not null,
    -- active, or topic_recreated once the broker shows the topic's name under another id.
    status text not null default 'active'
        constraint share_partitions_status_known check (status in ('active', 'topic_recreated')),
    state_epoch integer not null,
    spso bigint not null,
    -- Exclusive: the next offset never delivered.
    speo bigint not null,
    delivery_complete_count bigint not null default 0,
    -- Records that retention took before anyone had processed them.
    lost_records bigint not null default 0,
    log_start bigint not null default 0,
    log_end bigint not null default 0,
    last_stable_offset bigint not null default 0,
    observed_at timestamptz,
    dead_letter_sequence bigint not null default 0,
    constraint share_partitions_name unique (group_id, topic, partition),
    constraint share_partitions_window check (0 <= spso and spso <= speo and speo <= 9223372036854775807)
) with (fillfactor = 70);

create table sharequeue.assignments (
    group_id text not null,
    member_id text not null,
    share_partition_id bigint not null
        constraint assignments_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    constraint assignments_pkey primary key (group_id, member_id, share_partition_id),
    constraint assignments_member_fkey
        foreign key (group_id, member_id) references sharequeue.members on delete cascade
);

-- A lease: what one member holds of one share-partition, however many offsets, under one acquisition lock.
create table sharequeue.leases (
    lease_id bigint generated always as identity constraint leases_pkey primary key,
    share_partition_id bigint not null
        constraint leases_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    member_id text not null,
    member_epoch integer not null,
    token uuid not null default gen_random_uuid(),
    lock_duration_ms integer not null,
    acquired_at timestamptz not null,
    expires_at timestamptz not null
);
create index leases_by_share_partition on sharequeue.leases (share_partition_id);
create index leases_by_expiry on sharequeue.leases (expires_at);
create index leases_by_member on sharequeue.leases (member_id);

-- The state of every offset in [SPSO, SPEO), as one set of offsets per distinct state. Kafka's state numbers
-- (KIP-932): 0 available, 1 acquired, 2 acknowledged, 3 archiving, 4 archived.
create table sharequeue.in_flight (
    in_flight_id bigint generated always as identity constraint in_flight_pkey primary key,
    share_partition_id bigint not null
        constraint in_flight_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    state smallint not null constraint in_flight_state_known check (state between 0 and 4),
    delivery_count smallint not null constraint in_flight_delivery_count_natural check (delivery_count >= 0),
    lease_id bigint constraint in_flight_lease_fkey references sharequeue.leases,
    -- Why it is archiving or archived: 'rejected' or 'exceeded' (a dead letter), 'gap' (nothing was there).
    cause text constraint in_flight_cause_known check (cause in ('rejected', 'exceeded', 'gap')),
    -- Suspects, available again without an answer: at most so many offsets of them in one lease.
    isolate bigint constraint in_flight_isolate_positive check (isolate > 0),
    offsets int8multirange not null constraint in_flight_offsets_not_empty check (not isempty(offsets)),
    constraint in_flight_one_row_a_state
        unique nulls not distinct (share_partition_id, state, delivery_count, lease_id, cause, isolate),
    constraint in_flight_acquired_is_leased check ((state = 1) = (lease_id is not null)),
    constraint in_flight_archiving_has_cause check (state <> 3 or cause in ('rejected', 'exceeded'))
) with (fillfactor = 70);
create index in_flight_by_lease on sharequeue.in_flight (lease_id) where lease_id is not null;

-- Answers kept for a while, so that a call repeated after a lost reply gets the same one.
create table sharequeue.requests (
    request_id uuid constraint requests_pkey primary key,
    operation text not null,
    answer jsonb not null,
    answered_at timestamptz not null
);
create index requests_by_age on sharequeue.requests (answered_at);

-- How many records ended how, after how many deliveries; ever.
create table sharequeue.delivery_counts (
    share_partition_id bigint not null
        constraint delivery_counts_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    outcome text not null
        constraint delivery_counts_outcome_known check (outcome in ('accepted', 'rejected', 'exceeded', 'gap')),
    delivery_count smallint not null,
    records bigint not null,
    constraint delivery_counts_pkey primary key (share_partition_id, outcome, delivery_count)
) with (fillfactor = 70);

-- What readers go by: an output counts only once its lease's acknowledgement has committed, and the row is written
-- in that same transaction. lease_id has no foreign key: leases end, outputs stay.
create table sharequeue.lease_outputs (
    lease_id bigint not null,
    sink text not null,
    share_partition_id bigint not null
        constraint lease_outputs_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    location text not null,
    records bigint not null,
    acknowledged_at timestamptz not null,
    constraint lease_outputs_pkey primary key (lease_id, sink)
);
create index lease_outputs_by_share_partition on sharequeue.lease_outputs (share_partition_id);

-- Dead letters -----------------------------------------------------------------------------------------------------

-- One batch at a time per share-partition, numbered; written_at is set once the broker confirmed it.
create table sharequeue.dead_letter_batches (
    share_partition_id bigint not null
        constraint dead_letter_batches_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    sequence bigint not null,
    opened_at timestamptz not null,
    written_at timestamptz,
    -- Closed without a record in the topic, where the group's config says to drop what cannot be written.
    dropped boolean not null default false,
    constraint dead_letter_batches_pkey primary key (share_partition_id, sequence)
);
create unique index dead_letter_batches_one_open on sharequeue.dead_letter_batches (share_partition_id)
    where written_at is null;

create table sharequeue.dead_letter_runs (
    share_partition_id bigint not null,
    sequence bigint not null,
    cause text not null constraint dead_letter_runs_cause_known check (cause in ('rejected', 'exceeded')),
    delivery_count smallint not null,
    offsets int8multirange not null,
    constraint dead_letter_runs_pkey primary key (share_partition_id, sequence, cause, delivery_count),
    constraint dead_letter_runs_batch_fkey foreign key (share_partition_id, sequence)
        references sharequeue.dead_letter_batches on delete cascade
);

-- Reports ----------------------------------------------------------------------------------------------------------

create table sharequeue.share_partition_history (
    reported_at timestamptz not null,
    share_partition_id bigint not null
        constraint share_partition_history_fkey references sharequeue.share_partitions on delete cascade,
    spso bigint not null,
    speo bigint not null,
    log_start bigint not null,
    log_end bigint not null,
    lag bigint not null,
    acquired bigint not null,
    available bigint not null,
    archiving bigint not null,
    delivery_complete_count bigint not null,
    constraint share_partition_history_pkey primary key (share_partition_id, reported_at)
);

create table sharequeue.delivery_count_history (
    reported_at timestamptz not null,
    share_partition_id bigint not null
        constraint delivery_count_history_fkey references sharequeue.share_partitions on delete cascade,
    outcome text not null,
    delivery_count smallint not null,
    records bigint not null,
    constraint delivery_count_history_pkey primary key (share_partition_id, reported_at, outcome, delivery_count)
);

-- What the operations answer -----------------------------------------------------------------------------------------

create type sharequeue.acquired as (
    error_code smallint, error_message text, lease_id bigint, token uuid, state_epoch integer,
    lock_duration_ms integer, expires_at timestamptz, delivery_count smallint, offsets int8multirange
);

create type sharequeue.acknowledged as (
    error_code smallint, error_message text, spso bigint, lag bigint,
    accepted bigint, released bigint, rejected bigint, gaps bigint, exhausted bigint
);
