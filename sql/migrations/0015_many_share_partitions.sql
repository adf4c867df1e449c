-- One call for many share-partitions of a group (sql/functions/19_many.sql): what each answers, with its name in front.
create type sharequeue.acquired_of as (
    topic text, partition integer, suspects boolean, last_attempt boolean,
    error_code smallint, error_message text, lease_id bigint, token uuid, state_epoch integer,
    lock_duration_ms integer, expires_at timestamptz, delivery_count smallint, offsets int8multirange
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

-- When the broker was last asked about every share-partition that a group has of a topic. What it said stands on the
-- share-partitions' own rows, which are written only when it says something else.
create table sharequeue.observations (
    group_id text not null constraint observations_group_fkey references sharequeue.share_groups on delete cascade,
    topic text not null,
    observed_at timestamptz not null,
    constraint observations_pkey primary key (group_id, topic)
) with (fillfactor = 50);
