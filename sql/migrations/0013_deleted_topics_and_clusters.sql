-- Configs that outlive their group, topics that are gone from the broker, the one Kafka cluster that the state is of.

-- As on a broker, deleting a group leaves its configs: a group that comes back starts where they say.
alter table sharequeue.group_configs drop constraint group_configs_group_fkey;

-- All configs of the service are kept, whatever their names begin with; set_service_configs checks them.
alter table sharequeue.service_configs drop constraint service_configs_name_is_a_brokers;

-- The id that the topic had before offsets were reset to a topic made anew: what is still said of it is old news.
alter table sharequeue.share_partitions add column previous_topic_id text;

-- Topic ids that some group has state of and that the broker says are gone: since when it has said so without a break.
create table sharequeue.gone_topics (
    topic text not null,
    topic_id text not null,
    gone_since timestamptz not null,
    said_at timestamptz not null,
    constraint gone_topics_pkey primary key (topic, topic_id)
);

-- The Kafka cluster that the state is of; one row from the first contact on.
create table sharequeue.kafka_cluster (
    singleton boolean constraint kafka_cluster_pkey primary key default true
        constraint kafka_cluster_singleton check (singleton),
    cluster_id text not null,
    bound_at timestamptz not null
);
