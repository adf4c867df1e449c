-- What a dead letter tells beyond Kafka's headers: who tried its record when; and why dead letters are held.

-- Deliveries that failed, of groups with a dead-letter topic: one row per lease of which records were released, rejected
-- or never answered. Rows of offsets below SPSO are removed when the next is written and when dead letters are closed.
create table sharequeue.failed_attempts (
    share_partition_id bigint not null
        constraint failed_attempts_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    -- Under this the outputs of the attempt stand, the exceptions with what the handler said among them.
    lease_id bigint not null,
    member_id text not null,
    -- What the member called itself, as long as it was one; empty otherwise.
    client_id text not null,
    acquired_at timestamptz not null,
    -- Exclusive end of the offsets.
    past bigint not null,
    offsets int8multirange not null
);
create index failed_attempts_by_end on sharequeue.failed_attempts (share_partition_id, past);
alter table sharequeue.failed_attempts alter column offsets set storage external;

-- Dead letters that the last drain could not write, and what has to be done. Gone with the next batch that is closed.
create table sharequeue.held_dead_letters (
    share_partition_id bigint constraint held_dead_letters_pkey primary key
        constraint held_dead_letters_share_partition_fkey references sharequeue.share_partitions on delete cascade,
    reason text not null,
    since timestamptz not null
);
