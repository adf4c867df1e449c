-- The tables and types of the first release, by subject. Numbers below 0100 were used before it: `sharequeue migrate`
-- refuses a database that has one of them.

-- The database as a whole -----------------------------------------------------------------------------------------------

-- Tests move the clock by the offset; only the owner of the schema may.
create table sharequeue.clock_offset (
    singleton boolean constraint clock_offset_pkey primary key default true
        constraint clock_offset_singleton check (singleton),
    amount interval not null default interval '0'
);
insert into sharequeue.clock_offset default values;

-- Which state this is, and in which database it is; one row from the first use on, so that copies of a template each have an
-- identity of their own. A copy of a state in use has the same row in another place: sharequeue.check_identity refuses it.
create table sharequeue.state_identity (
    only_row boolean constraint state_identity_pkey primary key default true
        constraint state_identity_one_row check (only_row),
    -- Outputs carry it in their names, so that another database, or this one made anew, neither overwrites nor sweeps them.
    -- An adoption draws a new one.
    state_id uuid not null default gen_random_uuid(),
    -- It stays: the folders of sinks, and tables with transactions, know the state by it.
    origin_id uuid not null default gen_random_uuid(),
    -- The place: null where the server does not let the schema's owner read it.
    system_identifier bigint,
    database_oid oid not null,
    -- Of this table: a restore makes it anew.
    table_oid oid not null,
    database_name text not null,
    bound_at timestamptz not null
);

-- The ids under which the state has named outputs before it was adopted, with the last lease that was its own at that time.
create table sharequeue.former_state_ids (
    state_id uuid constraint former_state_ids_pkey primary key,
    last_lease_id bigint not null,
    until timestamptz not null
);

-- The marks that this database has set, or was about to set, in folders of sinks: each run sets a new one. A mark that is
-- not here is of another database with the same identity.
create table sharequeue.sink_marks (
    mark uuid constraint sink_marks_pkey primary key default gen_random_uuid(),
    folder text not null,
    marked_at timestamptz not null
);

-- The Kafka cluster that the state is of; one row from the first contact on.
create table sharequeue.kafka_cluster (
    singleton boolean constraint kafka_cluster_pkey primary key default true
        constraint kafka_cluster_singleton check (singleton),
    cluster_id text not null,
    bound_at timestamptz not null
);

-- The role of each purpose. `sharequeue migrate --roles` fills it; without a row the names are sharequeue_owner,
-- sharequeue_service, sharequeue_worker and sharequeue_reader.
create table sharequeue.roles (
    purpose text constraint roles_pkey primary key
        constraint roles_purpose_known check (purpose in ('owner', 'service', 'worker', 'reader')),
    role_name text not null constraint roles_role_name_not_empty check (role_name <> '')
);

-- Groups, their configs, their members ----------------------------------------------------------------------------------

create table sharequeue.share_groups (
    group_id text constraint share_groups_pkey primary key
        constraint share_groups_group_id_not_empty check (group_id <> ''),
    -- A group begins at epoch 1 (R-GR-4), so that its first member gets epoch 2.
    group_epoch integer not null default 1,
    assignment_epoch integer not null default 0,
    assigned_at timestamptz,
    metadata_hash text,
    created_at timestamptz not null default clock_timestamp(),
    -- Which pipeline works on the group.
    pipeline text constraint share_groups_pipeline_length check (length(pipeline) between 1 and 249)
);

-- No foreign key: as on a broker, the configs of a deleted group stay, and a group that comes back has them.
create table sharequeue.group_configs (
    group_id text not null,
    name text not null,
    value text not null,
    constraint group_configs_pkey primary key (group_id, name)
);

-- The configs of a group that operations need, in one narrow row. Triggers on group_configs keep it.
create table sharequeue.group_settings (
    group_id text constraint group_settings_pkey primary key
        constraint group_settings_group_fkey references sharequeue.share_groups on delete cascade,
    delivery_count_limit integer not null,
    lock_duration_ms integer not null,
    min_lock_duration_ms integer not null,
    max_lock_duration_ms integer not null,
    max_record_locks bigint not null,
    read_committed boolean not null,
    renew_enabled boolean not null,
    dead_letters boolean not null,
    -- Leasing is paused for this reason; null while it is not.
    paused_reason text,
    -- An ACL names the group, or groups without an ACL are closed. Triggers keep it, so that an operation on a group
    -- that nobody restricts reads one boolean.
    acls_apply boolean not null default false,
    -- The circuit breaker stops leasing once more than so many percent of the last window of records have failed; 0 is off.
    breaker_percent integer not null,
    breaker_min_records bigint not null,
    breaker_window_records bigint not null,
    breaker_probe_records bigint not null,
    breaker_open_ms integer not null,
    -- A cancelled run gives back the deliveries of what it still holds.
    refund_cancelled boolean not null,
    retry_backoff_ms integer not null,
    retry_backoff_max_ms integer not null,
    -- Order by key: a record is accepted only when no earlier record of its key is open.
    ordered boolean not null,
    -- A dead letter keeps its key open until it is redriven or discarded.
    hold_dead_letters boolean not null,
    max_open_keys bigint not null
) with (fillfactor = 70);

create table sharequeue.members (
    group_id text not null constraint members_group_fkey references sharequeue.share_groups on delete cascade,
    member_id text not null constraint members_member_id_length check (length(member_id) between 1 and 36),
    member_epoch integer not null,
    previous_member_epoch integer not null default 0,
    rack_id text,
    client_id text not null default '',
    client_host text not null default '',
    -- The principal under which it joined; null for a super user.
    principal text,
    subscribed_topic_names text[] not null default '{}',
    joined_at timestamptz not null,
    heartbeat_at timestamptz not null,
    session_expires_at timestamptz not null,
    -- The assignment of the last response to a heartbeat.
    told_share_partition_ids bigint[],
    -- Whether the member has sent a heartbeat with the epoch of the response that had it: the response was not lost.
    told_is_received boolean not null default true,
    constraint members_pkey primary key (group_id, member_id)
-- Each heartbeat writes the row.
) with (fillfactor = 50);

create table sharequeue.topics (
    topic text constraint topics_pkey primary key,
    topic_id text not null,
    partitions integer not null,
    seen_at timestamptz not null
);

-- Partitions by which a topic has grown and which a group has yet to start at 0, each group in a step of its own. No
-- foreign key: a group whose row is locked must not hold up the rows of the others.
create table sharequeue.grown_topics (
    group_id text not null,
    topic text not null,
    topic_id text not null,
    first_new integer not null,
    partitions integer not null,
    constraint grown_topics_pkey primary key (group_id, topic, topic_id, first_new)
);

-- Topic ids of which a group has state and which the broker reports as deleted: since when it has done so without a break.
create table sharequeue.gone_topics (
    topic text not null,
    topic_id text not null,
    gone_since timestamptz not null,
    said_at timestamptz not null,
    constraint gone_topics_pkey primary key (topic, topic_id)
);

-- When the broker was last asked about all share-partitions that a group has of a topic. The answers are in the rows of
-- the share-partitions, which are written only when something has changed.
create table sharequeue.observations (
    group_id text not null constraint observations_group_fkey references sharequeue.share_groups on delete cascade,
    topic text not null,
    observed_at timestamptz not null,
    constraint observations_pkey primary key (group_id, topic)
) with (fillfactor = 50);

-- Access ----------------------------------------------------------------------------------------------------------------

-- Kafka's ACLs (kafka-acls.sh) on groups and topics. The literal name * is every resource of the type.
create table sharequeue.acls (
    principal text not null constraint acls_principal_is_user check (principal like 'User:_%'),
    operation text not null constraint acls_operation_known check (operation in
        ('ALL', 'READ', 'DESCRIBE', 'ALTER', 'DELETE', 'ALTER_CONFIGS', 'DESCRIBE_CONFIGS')),
    permission text not null constraint acls_permission_known check (permission in ('ALLOW', 'DENY')),
    resource_type text not null default 'GROUP'
        constraint acls_resource_type_known check (resource_type in ('GROUP', 'TOPIC')),
    pattern_type text not null constraint acls_pattern_type_known check (pattern_type in ('LITERAL', 'PREFIXED')),
    resource_name text not null constraint acls_resource_name_not_empty check (resource_name <> ''),
    constraint acls_pkey primary key (principal, operation, permission, resource_type, pattern_type, resource_name),
    constraint acls_operation_of_topic check (resource_type = 'GROUP' or operation in ('ALL', 'READ', 'DESCRIBE'))
);
-- A list of groups asks for the ACLs of each of them.
create index acls_by_resource on sharequeue.acls (resource_type, pattern_type, resource_name);

-- Kafka's authorizer settings; one row. Without the row the default applies.
create table sharequeue.authorizer (
    singleton boolean constraint authorizer_pkey primary key default true
        constraint authorizer_singleton check (singleton),
    allow_everyone_if_no_acl_found boolean not null default true
);
insert into sharequeue.authorizer default values;

-- Bearer tokens: the principal of a caller of the service's HTTP API. Of the secret only its SHA-256 is kept: it has 256
-- random bits, so neither salt nor a slow hash is needed, and an index finds it.
create table sharequeue.service_tokens (
    token_id uuid not null constraint service_tokens_pkey primary key,
    principal text not null constraint service_tokens_principal_is_user check (principal like 'User:_%'),
    secret_hash bytea not null constraint service_tokens_secret_hash_key unique
        constraint service_tokens_secret_hash_is_sha256 check (octet_length(secret_hash) = 32),
    note text,
    created_at timestamptz not null,
    -- Null: it does not expire.
    expires_at timestamptz,
    revoked_at timestamptz,
    -- Null: all of them.
    scopes text[] constraint service_tokens_scopes_known
        check (cardinality(scopes) > 0 and scopes <@ array['admin', 'describe', 'heartbeat', 'metrics'])
);

-- Every administrative act. Append only: a trigger refuses updates and deletes. No foreign key: the audit log outlives the
-- group.
create table sharequeue.audit_log (
    audit_id bigint generated always as identity constraint audit_log_pkey primary key,
    happened_at timestamptz not null,
    -- The principal that ACLs see, and the role that was logged in.
    principal text not null,
    role_name text not null,
    act text not null,
    group_id text,
    before jsonb,
    after jsonb
);
create index audit_log_by_group on sharequeue.audit_log (group_id, audit_id);

-- Share-partitions, leases, records in flight ---------------------------------------------------------------------------

-- No check constraints on this table, on leases and on in_flight_batches: Postgres reads and compiles each one anew for
-- every statement. Their rules are among the invariants of sharequeue.verify.
create table sharequeue.share_partitions (
    share_partition_id bigint generated always as identity constraint share_partitions_pkey primary key,
    group_id text not null constraint share_partitions_group_fkey references sharequeue.share_groups on delete cascade,
    topic text not null,
    partition integer not null,
    topic_id text not null,
    -- active, or topic_recreated once the broker shows the topic's name under another id.
    status text not null default 'active',
    state_epoch integer not null,
    spso bigint not null,
    -- Exclusive: the next offset never delivered.
    speo bigint not null,
    delivery_complete_count bigint not null default 0,
    -- Records that retention has deleted before they were processed.
    lost_records bigint not null default 0,
    log_start bigint not null default 0,
    log_end bigint not null default 0,
    last_stable_offset bigint not null default 0,
    observed_at timestamptz,
    dead_letter_sequence bigint not null default 0,
    -- No lock lapses before this: a lower bound over the leases, so that most operations need not look for one. Null where
    -- nothing is leased.
    next_expiry timestamptz,
    -- Something in flight may be redeliverable. Set when records become available, cleared by an acquire that finds none
    -- (Kafka's findNextFetchOffset).
    redeliverable boolean not null default false,
    -- Records accepted at their first delivery. The other bars of the histogram are rows of delivery_counts; this one grows
    -- with every acknowledgement, and this row is written anyway.
    accepted_first bigint not null default 0,
    -- SPSO may stand at a finished record, because an acquire archived aborted or compacted records, or the log start moved.
    advance_due boolean not null default false,
    -- Leasing of this share-partition alone is paused for this reason.
    paused_reason text,
    -- Every id that the topic had before offsets were reset to a topic made again, the newest first: observations of them are
    -- ignored, and offsets cannot be reset to them.
    replaced_topic_ids text[],
    -- Rows of open_key_records, and their different keys. A trigger on that table keeps both.
    open_key_records bigint not null default 0,
    open_keys bigint not null default 0,
    -- A record that is available or archiving may have no row there: its key was not reported. Cleared by an acquire
    -- under order by key that finds none.
    keys_unknown boolean not null default true,
    constraint share_partitions_name unique (group_id, topic, partition)
-- Every operation writes the row: half of each page is left for its next versions, so that updates stay HOT.
) with (fillfactor = 50);
create index share_partitions_by_next_expiry on sharequeue.share_partitions (next_expiry) where next_expiry is not null;
create index share_partitions_by_advance_due on sharequeue.share_partitions (share_partition_id) where advance_due;

create table sharequeue.assignments (
    group_id text not null,
    member_id text not null,
    share_partition_id bigint not null
        constraint assignments_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    constraint assignments_pkey primary key (group_id, member_id, share_partition_id),
    constraint assignments_member_fkey
        foreign key (group_id, member_id) references sharequeue.members on delete cascade
);

-- What one member holds of one share-partition, however many offsets, under one acquisition lock.
create table sharequeue.leases (
    -- acquire draws it, because it marks the records before it writes the lease.
    lease_id bigint generated by default as identity constraint leases_pkey primary key,
    share_partition_id bigint not null,
    member_id text not null,
    member_epoch integer not null,
    token uuid not null default gen_random_uuid(),
    lock_duration_ms integer not null,
    acquired_at timestamptz not null,
    -- When it was acquired or last renewed. If that is in the future, the clock was set back since.
    locked_at timestamptz not null,
    expires_at timestamptz not null,
    -- How records that lapse come back: divided (fan_out), or together under Kafka's throttle.
    fan_out boolean not null default true,
    -- The caller chose the duration; otherwise a renewal takes the group's of that time (R-RN-2).
    own_lock_duration boolean not null default true,
    -- The isolation level of the acquire, at which the records are read.
    read_committed boolean
);
-- The only one beside the key: each index adds 3 µs to an acquire. A member's leases are found by its group's
-- share-partitions.
create index leases_by_share_partition on sharequeue.leases (share_partition_id, expires_at);

-- Records between SPSO and SPEO: one row per batch while it is uniform, one row per distinct state of its records once it
-- is not (Kafka's "exploded" batch).
create table sharequeue.in_flight_batches (
    share_partition_id bigint not null,
    -- The batch, both inclusive.
    first_offset bigint not null,
    last_offset bigint not null,
    -- 0 in a batch that was never exploded.
    part integer not null default 0,
    -- Kafka's numbers: 0 available, 1 acquired, 2 acknowledged, 3 archiving, 4 archived.
    state smallint not null,
    delivery_count smallint not null,
    -- Only where acquired.
    lease_id bigint,
    -- Suspects, available again after their lock lapsed: a fan_out lease has at most so many offsets of them.
    isolate bigint,
    -- Available, but not to be delivered before.
    not_before timestamptz,
    -- Why it is archiving or archived: 'rejected' or 'exhausted' (a dead letter), 'gap' (no record at the offset).
    cause text,
    -- Which offsets of the batch; null for all of them, in a batch that was never exploded. Not compressed: a set of 50,000
    -- ranges takes 56 ms to compress and 4 to write.
    offsets int8multirange,
    constraint in_flight_batches_pkey primary key (share_partition_id, first_offset, part)
) with (fillfactor = 90);
alter table sharequeue.in_flight_batches alter column offsets set storage external;
-- What waits to be delivered again, and what waits for its dead letter. One index for both: each adds 2 µs to an insert.
create index in_flight_batches_waiting on sharequeue.in_flight_batches (share_partition_id, state, first_offset)
    where state in (0, 3);
create index in_flight_batches_by_lease on sharequeue.in_flight_batches (lease_id) where lease_id is not null;
create index in_flight_batches_not_before on sharequeue.in_flight_batches (share_partition_id, not_before)
    where not_before is not null;

-- Open records whose key a worker has reported, in groups that are ordered by key: a row stays while its record is available,
-- acquired or archiving, and with sharequeue.order.on.dead.letter = hold until its dead letter is redriven or discarded.
create table sharequeue.open_key_records (
    share_partition_id bigint not null,
    "offset" bigint not null,
    -- The MD5 of the key; null for a record without a key.
    key_hash uuid,
    -- When the row was written.
    since timestamptz not null,
    -- The record itself is not delivered before; null: at once. Held records wait for others, and have no time of their own.
    until timestamptz,
    -- A worker has released or rejected it: later records of its key are held until it is finished.
    released boolean not null default false,
    -- It waits for its dead letter to be written.
    archiving boolean not null default false,
    -- Its dead letter is written, and holds the key: the number of the letter's batch. Null: no letter does.
    letter bigint,
    constraint open_key_records_pkey primary key (share_partition_id, "offset")
) with (fillfactor = 90);
create index open_key_records_by_key on sharequeue.open_key_records (share_partition_id, key_hash, "offset")
    where key_hash is not null;
create index open_key_records_that_stop on sharequeue.open_key_records (share_partition_id, key_hash, "offset")
    where released or archiving or letter is not null;
create index open_key_records_letters on sharequeue.open_key_records (share_partition_id, letter, "offset")
    where letter is not null;

-- Results that are kept for a while, so that a call that is repeated after a lost reply has the same result.
create table sharequeue.requests (
    -- Of share-partition, operation, member and request id.
    request_key uuid constraint requests_pkey primary key,
    operation text not null,
    result jsonb not null,
    finished_at timestamptz not null,
    -- The result's sets of offsets, in the order of its rows: they need not be written as JSON.
    sets int8multirange[]
);
alter table sharequeue.requests alter column sets set storage external;
-- A BRIN index would read all that came since the last vacuum.
create index requests_by_age on sharequeue.requests (finished_at);

-- One row per share-partition whose group has a breaker, from its first acknowledgement on.
create table sharequeue.circuit_breakers (
    share_partition_id bigint constraint circuit_breakers_pkey primary key
        constraint circuit_breakers_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    -- closed: leasing goes on. open: nothing is leased before retry_at. probing: one small lease is out.
    state text not null default 'closed',
    -- Of the last window: records whose delivery has ended, and those of them that failed. Older ones fade in proportion.
    records double precision not null default 0,
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

-- How many records have ended in which way, after how many deliveries; never reset.
create table sharequeue.delivery_counts (
    share_partition_id bigint not null
        constraint delivery_counts_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    outcome text not null
        constraint delivery_counts_outcome_known check (outcome in ('accepted', 'rejected', 'exhausted', 'gap')),
    delivery_count smallint not null,
    records bigint not null,
    constraint delivery_counts_pkey primary key (share_partition_id, outcome, delivery_count)
) with (fillfactor = 70);

-- What happened to records without ending them: released or renewed by an acknowledgement, or their lock lapsed.
create table sharequeue.record_events (
    share_partition_id bigint not null
        constraint record_events_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    event text not null
        constraint record_events_event_known check (event in ('released', 'renewed', 'lapsed')),
    records bigint not null,
    constraint record_events_pkey primary key (share_partition_id, event)
) with (fillfactor = 70);

-- How many of a share-partition's lost records a run or a lease has reported.
create table sharequeue.reported_losses (
    share_partition_id bigint constraint reported_losses_pkey primary key
        constraint reported_losses_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    records bigint not null constraint reported_losses_records_natural check (records >= 0)
);

-- Dead letters ----------------------------------------------------------------------------------------------------------

-- One batch at a time per share-partition, numbered; written_at is set once the broker has confirmed it.
create table sharequeue.dead_letter_batches (
    share_partition_id bigint not null
        constraint dead_letter_batches_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    sequence bigint not null,
    opened_at timestamptz not null,
    written_at timestamptz,
    -- Closed without a record in the topic, where the group's config drops what cannot be written.
    dropped boolean not null default false,
    -- Records of all batches up to this one that were closed with a letter each, and without. Null while it is open.
    total_letters bigint,
    total_dropped bigint,
    constraint dead_letter_batches_pkey primary key (share_partition_id, sequence)
);
create unique index dead_letter_batches_one_open on sharequeue.dead_letter_batches (share_partition_id)
    where written_at is null;

create table sharequeue.dead_letter_runs (
    share_partition_id bigint not null,
    sequence bigint not null,
    cause text not null constraint dead_letter_runs_cause_known check (cause in ('rejected', 'exhausted')),
    delivery_count smallint not null,
    offsets int8multirange not null,
    constraint dead_letter_runs_pkey primary key (share_partition_id, sequence, cause, delivery_count),
    constraint dead_letter_runs_batch_fkey foreign key (share_partition_id, sequence)
        references sharequeue.dead_letter_batches on delete cascade
);

-- Deliveries that failed, of groups with a dead-letter topic: one row per lease of which records were released, were
-- rejected or have lapsed. Rows below SPSO are removed when the next is written and when dead letters are closed.
create table sharequeue.failed_attempts (
    share_partition_id bigint not null
        constraint failed_attempts_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    -- The outputs of the attempt, among them its exceptions, are under this id.
    lease_id bigint not null,
    member_id text not null,
    -- Empty where it was no member of the group.
    client_id text not null,
    acquired_at timestamptz not null,
    -- Exclusive end of the offsets.
    past bigint not null,
    offsets int8multirange not null,
    -- Why the lease ended without an acknowledgement, as 'Class: message'; null if it was acknowledged, or not known.
    reason text
);
alter table sharequeue.failed_attempts alter column offsets set storage external;
create index failed_attempts_by_end on sharequeue.failed_attempts (share_partition_id, past);
-- Under a publication for all tables Postgres refuses to change rows that have no key. The whole row identifies them; it is
-- written to the WAL only where that is read logically.
alter table sharequeue.failed_attempts replica identity full;

-- Dead letters that the last writer could not write, and what has to be done. The next batch that is closed removes the row.
create table sharequeue.held_dead_letters (
    share_partition_id bigint constraint held_dead_letters_pkey primary key
        constraint held_dead_letters_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    reason text not null,
    since timestamptz not null
);

-- Logs that ended below delivered records: where, and since when. Once such a log has grown again, nothing else shows that its
-- offsets name other records than those that were delivered. A reset of the offsets removes the row.
create table sharequeue.truncated_logs (
    share_partition_id bigint constraint truncated_logs_pkey primary key
        constraint truncated_logs_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    -- The lowest end that was seen.
    log_end bigint not null,
    -- Exclusive: the end of what had been delivered.
    delivered bigint not null,
    truncated_at timestamptz not null
);

-- Dead letters that were put back.
create table sharequeue.redrives (
    redrive_id uuid constraint redrives_pkey primary key,
    dead_letter_topic text not null,
    topic_id text not null,
    -- Which letters are taken; a condition that is null holds for all. Offsets are by partition of the dead-letter topic.
    cause text constraint redrives_cause_check check (cause in ('rejected', 'exhausted')),
    since timestamptz,
    until timestamptz,
    group_id text,
    source_topic text,
    source_partition integer,
    header_name text,
    header_value text,
    offsets jsonb,
    -- Null for each record's own source.
    target_topic text,
    requested_by text not null default session_user,
    requested_at timestamptz not null,
    ended_at timestamptz,
    sent bigint not null default 0,
    -- Other groups pass over the records; the topics are known before any record is sent.
    only_group text,
    target_topics text[] not null default '{}',
    -- Their ids and the ends of their logs at that time, by topic and partition: records of this redrive are behind them.
    target_logs jsonb not null default '{}',
    -- Records go to partitions by their keys, and not to the partition from which they came.
    by_key boolean not null default false
);
create index redrives_for_one_group on sharequeue.redrives (only_group) where only_group is not null;

-- Letters of a partition that are not sent any more: those that were sent, so that none is sent twice, and those that somebody
-- has discarded. With the topic's id, because a topic made again begins at offset 0.
create table sharequeue.redriven (
    dead_letter_topic text not null,
    topic_id text not null,
    partition integer not null,
    sequence bigint not null default 0,
    offsets int8multirange not null default '{}',
    discarded int8multirange not null default '{}',
    constraint redriven_pkey primary key (dead_letter_topic, topic_id, partition)
);

-- One batch at a time per partition, durable before anything of it is sent.
create table sharequeue.redrive_batches (
    dead_letter_topic text not null,
    topic_id text not null,
    partition integer not null,
    sequence bigint not null,
    redrive_id uuid not null constraint redrive_batches_redrive_fkey references sharequeue.redrives,
    offsets int8multirange not null,
    opened_at timestamptz not null,
    sent_at timestamptz,
    constraint redrive_batches_pkey primary key (dead_letter_topic, topic_id, partition, sequence)
);
create unique index redrive_batches_one_open on sharequeue.redrive_batches (dead_letter_topic, topic_id, partition)
    where sent_at is null;

-- The letters that a redrive has planned to send, and their source records, before anything of it is sent.
create table sharequeue.redrive_plans (
    redrive_id uuid not null constraint redrive_plans_redrive_fkey references sharequeue.redrives on delete cascade,
    partition integer not null,
    letters int8multirange not null,
    -- The group that gave the records up, and where they are.
    group_id text not null,
    source_topic text not null,
    source_partition integer not null,
    source_offsets int8multirange not null,
    constraint redrive_plans_pkey primary key (redrive_id, partition, group_id, source_topic, source_partition)
);

-- Replays that were published into the output of a group, or are being published.
create table sharequeue.publications (
    publication_id uuid constraint publications_pkey primary key,
    group_id text not null,
    sink text not null,
    replay text not null,
    requested_by text not null default session_user,
    begun_at timestamptz not null,
    ended_at timestamptz
);
create index publications_by_group on sharequeue.publications (group_id);

-- Their records. With the topic's id, because a topic made again begins at offset 0.
create table sharequeue.published_records (
    publication_id uuid not null
        constraint published_records_publication_fkey references sharequeue.publications on delete cascade,
    topic text not null,
    topic_id text not null,
    partition integer not null,
    offsets int8multirange not null,
    -- Those that have rows in the output because of it; known at the end.
    with_rows int8multirange not null default '{}',
    constraint published_records_pkey primary key (publication_id, topic, partition)
);

-- Outputs ---------------------------------------------------------------------------------------------------------------

-- The outputs that count: the acknowledgement of the lease writes the row in its transaction. No foreign keys: leases and
-- share-partitions end, outputs stay.
create table sharequeue.lease_outputs (
    lease_id bigint not null,
    sink text not null,
    group_id text not null,
    topic text not null,
    partition integer not null,
    -- Tells a topic from one that was made again under its name.
    topic_id text not null,
    location text not null,
    records bigint not null,
    acknowledged_at timestamptz not null,
    constraint lease_outputs_pkey primary key (lease_id, sink)
);
create index lease_outputs_by_sink on sharequeue.lease_outputs (group_id, sink);
create index lease_outputs_pending on sharequeue.lease_outputs (group_id, sink)
    where starts_with(location, 'sink:pending:');

-- Raw records of released offsets in files, for their next delivery: the acknowledgement that released them writes the row in its
-- transaction. The row of a newer lease counts before that of an older one. The topic is that of the share-partition: a reset
-- removes the rows.
create table sharequeue.kept_records (
    -- The lease under which they were read.
    lease_id bigint constraint kept_records_pkey primary key,
    share_partition_id bigint not null,
    -- The isolation level at which they were read.
    read_committed boolean,
    location text not null,
    -- The first of the offsets, and the exclusive end of the last one.
    first_offset bigint not null,
    past bigint not null,
    offsets int8multirange not null,
    kept_at timestamptz not null
);
alter table sharequeue.kept_records alter column offsets set storage external;
create index kept_records_by_end on sharequeue.kept_records (share_partition_id, past, first_offset);

-- Which group a sink's folder belongs to.
create table sharequeue.sink_folders (
    folder text not null,
    group_id text not null,
    constraint sink_folders_pkey primary key (folder)
);

-- The columns of a sink's files with their types, as far as leases have written them.
create table sharequeue.sink_columns (
    group_id text not null,
    sink text not null,
    columns text not null,
    constraint sink_columns_pkey primary key (group_id, sink)
);

-- Small outputs made one: which folder a compaction writes, and which folders it has replaced. A killed compaction leaves
-- its row, by which a sweep finds what to remove.
create table sharequeue.compactions (
    compaction_id uuid constraint compactions_pkey primary key,
    group_id text not null constraint compactions_group_fkey references sharequeue.share_groups on delete cascade,
    sink text not null,
    location text not null,
    began_at timestamptz not null,
    -- From here on the new folder counts, and these do not.
    committed_at timestamptz,
    replaced text[] not null default '{}',
    -- A sweep has given it up; it cannot be committed any more.
    abandoned_at timestamptz,
    constraint compactions_committed_or_abandoned check (committed_at is null or abandoned_at is null)
);
create index compactions_by_sink on sharequeue.compactions (group_id, sink);

-- Accepted rows that go on from files into a table of a lakehouse, or a topic, which have transactions of their own. The
-- folders that go together and their number are written here before the target is touched: a repetition repeats exactly that.
create table sharequeue.transfers (
    group_id text not null,
    sink text not null,
    -- Rises with each transfer; the table has the number of the last one that it took.
    number bigint not null,
    -- What is under way; empty when nothing is.
    locations text[] not null,
    records bigint not null,
    -- Until then the transfer belongs to the one that began it.
    claimed_until timestamptz not null,
    -- Why the last attempt could not be finished, and since when; null while nothing is held.
    held_reason text,
    held_since timestamptz,
    constraint transfers_pkey primary key (group_id, sink)
);

-- The service -----------------------------------------------------------------------------------------------------------

-- The service's own configs, by name. A group without a value takes the broker-level ones (group.share.…) before Kafka's
-- defaults.
create table sharequeue.service_configs (
    name text constraint service_configs_pkey primary key,
    value text not null
);

-- When the service was last alive, and the last time during which no lock could be renewed.
create table sharequeue.service_beat (
    singleton boolean constraint service_beat_pkey primary key default true
        constraint service_beat_singleton check (singleton),
    beat_at timestamptz not null,
    -- Start of the Postgres server at the beat: another one means a crash or restart in between.
    server_started_at timestamptz not null,
    outage_from timestamptz,
    outage_until timestamptz,
    -- When a beat last found that the clock was set back, and by how much.
    set_back_at timestamptz,
    set_back_by interval
) with (fillfactor = 50);

-- One row as long as Postgres has not recovered from a crash; the service's beats write it. An unlogged table is empty after
-- a recovery and after a failover, while the server's start time stays where the kill of one backend made it recover.
create unlogged table sharequeue.service_run (
    singleton boolean constraint service_run_pkey primary key default true
        constraint service_run_singleton check (singleton)
);
insert into sharequeue.service_run default values;

-- What one replica does at a time (the watch, the dead letters of a share-partition). It ends by itself.
create table sharequeue.service_leases (
    task text constraint service_leases_pkey primary key,
    holder text not null,
    -- A new one each time the lease is taken: the holder before learns from it that it was overtaken.
    token uuid not null,
    -- When it was last taken or kept. If that is in the future, the clock was set back since.
    taken_at timestamptz not null,
    expires_at timestamptz not null
);

-- The replicas, and when each was last at work.
create table sharequeue.service_replicas (
    replica_id text constraint service_replicas_pkey primary key,
    heard_at timestamptz not null,
    -- The replica writes dead letters by itself.
    writes_letters boolean not null default false,
    -- When it last did each task; null where it never did.
    watched_at timestamptz,
    swept_at timestamptz,
    journal_kept_at timestamptz,
    letters_written_at timestamptz,
    -- It was stopped in order: what it did is not missed. A replica that was killed may have died.
    stopped boolean not null default false
) with (fillfactor = 50);

-- The journal -----------------------------------------------------------------------------------------------------------

-- Every change of the state in the order in which it happened, as in Kafka's ShareUpdate and ShareSnapshot records, in
-- partitions by day. One row per change, with the values after it; kind says which columns count:
--   initialized      a share-partition came to life: a snapshot with nothing in flight
--   snapshot         a snapshot begins: the share-partition's columns; its batches, leases and outcomes follow at once
--   share_partition  the share-partition's columns
--   batch            a row of in_flight_batches;  batch_gone: none under (first_offset, part) any more
--   offsets_added    a row of in_flight_batches holds these offsets too;  offsets_taken: no longer
--   lease            a row of leases;  lease_gone: none under lease_id any more
--   keys_added       rows of open_key_records with these offsets, one key and one time;  keys_gone: none under these offsets
--   outcome          so many records more of one bar of delivery_counts (cause is the outcome);  outcome_total: all of it
--   group_paused     the group was paused, or resumed where paused_reason is null
--   deleted          the share-partition is gone
-- No key and no checks: every operation would pay for them. journal_id rises within a share-partition, whose row is
-- locked when one is drawn.
create table sharequeue.journal (
    -- From one sequence with the leases.
    journal_id bigint not null default nextval('sharequeue.leases_lease_id_seq'),
    share_partition_id bigint not null,
    at timestamptz not null,
    first_offset bigint,
    last_offset bigint,
    lease_id bigint,
    isolate bigint,
    not_before timestamptz,
    acquired_at timestamptz,
    locked_at timestamptz,
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
    key_hash uuid,
    since timestamptz,
    part integer,
    lock_duration_ms integer,
    member_epoch integer,
    state_epoch integer,
    partition integer,
    state smallint,
    delivery_count smallint,
    fan_out boolean,
    own_lock_duration boolean,
    read_committed boolean,
    redeliverable boolean,
    advance_due boolean,
    keys_unknown boolean,
    archiving boolean,
    letter bigint,
    released boolean,
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
alter table sharequeue.journal alter column offsets set storage external;
alter table sharequeue.journal replica identity full;
create index journal_by_share_partition on sharequeue.journal (share_partition_id, journal_id);
-- What was written since updates were last counted. A BRIN index adds nothing to an insert.
create index journal_by_age on sharequeue.journal using brin (journal_id) with (pages_per_range = 16);

-- Days that have no partition, because no maintenance was there to make it, and times of clocks that were wrong. The index
-- finds its days; rows are written here only while maintenance is away.
create table sharequeue.journal_other partition of sharequeue.journal default;
create index journal_other_by_time on sharequeue.journal_other (at);
alter table sharequeue.journal_other replica identity full;

-- Where replay may begin: the journal_id of each row of kind initialized or snapshot.
create table sharequeue.journal_snapshots (
    share_partition_id bigint not null,
    journal_id bigint not null,
    taken_at timestamptz not null,
    constraint journal_snapshots_pkey primary key (share_partition_id, journal_id)
);
create index journal_snapshots_by_age on sharequeue.journal_snapshots (taken_at);

-- How many rows a share-partition's journal has grown by since its last snapshot, and how far they have been counted.
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

-- One share-partition on one day (UTC), from the journal; it stays when the day's journal is dropped. No foreign keys: it
-- outlives the share-partition.
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
    -- Records that came into flight, that were accepted at their first delivery, that retention deleted unprocessed.
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

-- How many records of a share-partition have ended in which way on a day, after how many deliveries; without those accepted
-- at their first delivery, which journal_daily counts.
create table sharequeue.journal_daily_outcomes (
    day date not null,
    share_partition_id bigint not null,
    outcome text not null,
    delivery_count smallint not null,
    records bigint not null,
    constraint journal_daily_outcomes_pkey primary key (share_partition_id, day, outcome, delivery_count)
);

-- The days that have been rolled up. A closed day is not counted again: its rows are being removed.
create table sharequeue.journal_rolled_up (
    day date constraint journal_rolled_up_pkey primary key,
    closed boolean not null default false
);

-- Reports ---------------------------------------------------------------------------------------------------------------

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

-- What operations take and return ---------------------------------------------------------------------------------------

create type sharequeue.acquired as (
    error_code smallint, error_message text, lease_id bigint, token uuid, state_epoch integer,
    lock_duration_ms integer, expires_at timestamptz, delivery_count smallint, offsets int8multirange, isolation_level text
);
create type sharequeue.acknowledged as (
    error_code smallint, error_message text, spso bigint, lag bigint,
    accepted bigint, released bigint, rejected bigint, gaps bigint, exhausted bigint
);

-- One call for many share-partitions of a group: the result of each, with its name in front.
create type sharequeue.acquired_of as (
    topic text, partition integer, suspects boolean, last_attempt boolean,
    error_code smallint, error_message text, lease_id bigint, token uuid, state_epoch integer,
    lock_duration_ms integer, expires_at timestamptz, delivery_count smallint, offsets int8multirange, isolation_level text,
    -- The group was ordered by key when it was leased.
    ordered boolean
);
create type sharequeue.acknowledged_of as (
    topic text, partition integer, token uuid, error_code smallint, error_message text, spso bigint, lag bigint,
    accepted bigint, released bigint, rejected bigint, gaps bigint, exhausted bigint
);
create type sharequeue.renewed_of as (
    topic text, partition integer, token uuid, error_code smallint, error_message text, expires_at timestamptz
);
create type sharequeue.released_of as (topic text, partition integer, token uuid, records bigint);
create type sharequeue.observed_of as (topic text, partition integer, status text);

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

-- What one acquire has taken: sets of offsets by delivery count, in the order of the result.
create type sharequeue.taken as (delivery_counts smallint[], offsets int8multirange[]);
-- The same while it is being gathered: runs, whether offset by offset, and whether the throttle cut it short.
create type sharequeue.taken_offsets as (
    firsts bigint[], lasts bigint[], delivery_counts smallint[], records bigint, by_offset boolean, throttled boolean
);
-- What a broker's fetch would know of the log: the number of records that it carries, the first and last offsets of the log's
-- batches, and the offsets of aborted transactions.
create type sharequeue.fetched_log as (batch_size bigint, firsts bigint[], lasts bigint[], aborted int8multirange);
-- One acknowledgement, as sets of offsets by type (R-AK-4).
create type sharequeue.acknowledgements as (
    accept int8multirange, release int8multirange, reject int8multirange, gap int8multirange, renew int8multirange,
    -- Given back unprocessed, with their delivery, because an earlier record of their key is open.
    hold int8multirange
);

-- The member that calls, and the token of its lease.
create type sharequeue_internal.holder as (member_id text, member_epoch integer, token uuid);
-- An error of an operation; code 0 and no message without one.
create type sharequeue_internal.fault as (error_code smallint, error_message text);
-- How an acquire is done; the arguments of sharequeue.acquire.
create type sharequeue_internal.fetch_options as (
    lock_duration_ms integer, redelivery text, mode text, batch_size bigint, log_firsts bigint[], log_lasts bigint[],
    aborted int8multirange, leave_out int8multirange
);
-- What an acquire requests, and of which share-partitions; the arguments of sharequeue.acquire_many.
create type sharequeue_internal.acquire_request as (
    group_id text, topics text[], partitions integer[], state_epoch integer, max_records bigint, max_bytes bigint,
    mean_bytes double precision[], leave_outs int8multirange[], parts integer, last_attempt boolean
);
-- Its result: rows without large sets, these sets apart, and the number of records.
create type sharequeue_internal.acquired_rows as (rows sharequeue.acquired_of[], sets int8multirange[], records bigint);
-- Leases that are to be written, as rows of the result with their fresh records.
create type sharequeue_internal.new_leases as (share_partition_ids bigint[], rows sharequeue.acquired_of[]);
-- Leases at SPSO that are acknowledged together, and what this gives.
create type sharequeue_internal.head_leases as (
    places integer[], share_partition_ids bigint[], accepts int8multirange[], tokens uuid[], spsos bigint[], lags bigint[]
);
-- Batches as Kafka's clients acknowledge them; the arguments of sharequeue.acknowledge_batches.
create type sharequeue_internal.batches as (
    firsts bigint[], lasts bigint[], types smallint[], type_counts integer[]
);
-- When released records are delivered again: not before this time; or after the group's back-off; and sets of them, each at
-- a time of its own. None of them before the circuit breaker's time.
create type sharequeue_internal.release_times as (
    not_before timestamptz, backoff boolean, offsets int8multirange[], untils timestamptz[], earliest timestamptz
);
-- Numbers of records of one acknowledgement: by outcome, those that are terminal now, and those accepted at their first delivery.
create type sharequeue_internal.tally as (
    accepted bigint, released bigint, rejected bigint, gaps bigint, exhausted bigint, completed bigint, accepted_first bigint,
    held bigint
);
-- The leases that a call acknowledges; the arguments of sharequeue.acknowledge_many.
create type sharequeue_internal.acknowledge_request as (
    group_id text, topics text[], partitions integer[], state_epochs integer[], member_id text, member_epoch integer, tokens uuid[],
    accepts int8multirange[], releases int8multirange[], rejects int8multirange[], gaps int8multirange[], outputs jsonb,
    not_befores timestamptz[], backoff boolean, delays jsonb, holds int8multirange[], keys jsonb, kept jsonb
);
-- Records of a lease that are kept in files, in the form of an element of p_kept.
create type sharequeue_internal.kept_offsets as (location text, offsets int8multirange);
-- Records with one key that a worker has reported, in the form of the elements of p_keys.
create type sharequeue_internal.key_offsets as (key uuid, offsets int8multirange);
