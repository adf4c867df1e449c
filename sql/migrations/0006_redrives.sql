-- Dead letters put back: who asked for which, what went when, and which letters have been sent, so that none is sent
-- twice.

create table sharequeue.redrives (
    redrive_id uuid constraint redrives_pkey primary key,
    dead_letter_topic text not null,
    topic_id text not null,
    -- What was asked for, in words.
    selection text not null,
    -- Null for each record's own source.
    target_topic text,
    requested_by text not null default session_user,
    requested_at timestamptz not null,
    ended_at timestamptz,
    sent bigint not null default 0
);

-- Letters of a partition that were sent. The topic's id, because a topic made again begins at offset 0.
create table sharequeue.redriven (
    dead_letter_topic text not null,
    topic_id text not null,
    partition integer not null,
    sequence bigint not null default 0,
    offsets int8multirange not null default '{}',
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
