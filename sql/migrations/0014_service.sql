-- Several replicas of the service, any of which may stop at any moment: what one of them does alone, and whether anybody
-- was there to hear the members.

-- What one replica does at a time (the watch, the dead letters of a share-partition). It ends by itself.
create table sharequeue.service_leases (
    task text constraint service_leases_pkey primary key,
    holder text not null,
    -- Another one each time that it is taken: who was overtaken is told by it.
    token uuid not null,
    expires_at timestamptz not null
);

-- Which replicas are there, and when each was last at work.
create table sharequeue.service_replicas (
    replica_id text constraint service_replicas_pkey primary key,
    heard_at timestamptz not null
) with (fillfactor = 50);

-- The share-partitions that a member was last told to work on; null when it was told by an earlier release.
alter table sharequeue.members add column told_share_partition_ids bigint[];

-- Partitions that a topic has grown by, and that a group has yet to start at 0: each group in a step of its own. No
-- foreign key: a group whose row is locked must not hold up what is recorded for the others.
create table sharequeue.grown_topics (
    group_id text not null,
    topic text not null,
    topic_id text not null,
    first_new integer not null,
    partitions integer not null,
    constraint grown_topics_pkey primary key (group_id, topic, topic_id, first_new)
);
