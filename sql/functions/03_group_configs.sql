-- Group configs as the state functions need them: the group's own value, else Kafka's default. Names, defaults and
-- bounds for people are in sharequeue/configs.py; a test holds the two against each other.
create or replace function sharequeue.group_config(p_group_id text, p_name text) returns text
language sql stable set search_path = pg_catalog as $$
    select coalesce(
        (select value from sharequeue.group_configs where group_id = p_group_id and name = p_name),
        case p_name
            when 'share.delivery.count.limit' then '5'
            when 'share.record.lock.duration.ms' then '30000'
            when 'share.partition.max.record.locks' then '2000'
            when 'share.isolation.level' then 'read_uncommitted'
            when 'share.renew.acknowledge.enable' then 'true'
            when 'errors.deadletterqueue.topic.name' then ''
        end
    )
$$;
