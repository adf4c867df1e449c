-- The configs that a group may have, and the value of each that neither the group nor the service has set.
-- Generated from sharequeue/groups/configs/keys.py: do not edit, run `python -m tools.reference`.

create or replace function sharequeue_internal.group_config_names() returns text[]
language sql immutable parallel safe as $$
    select array[
        'errors.deadletterqueue.copy.record.enable',
        'errors.deadletterqueue.topic.name',
        'share.assignment.interval.ms',
        'share.assignor.offload.enable',
        'share.auto.offset.reset',
        'share.delivery.count.limit',
        'share.heartbeat.interval.ms',
        'share.isolation.level',
        'share.partition.max.record.locks',
        'share.record.lock.duration.ms',
        'share.renew.acknowledge.enable',
        'share.session.timeout.ms',
        'sharequeue.cancelled.run.refund.enable',
        'sharequeue.circuit.breaker.failure.percent',
        'sharequeue.circuit.breaker.min.records',
        'sharequeue.circuit.breaker.open.ms',
        'sharequeue.circuit.breaker.probe.records',
        'sharequeue.circuit.breaker.window.records',
        'sharequeue.dead.letter.drop.enable',
        'sharequeue.dead.letter.error.message.enable',
        'sharequeue.dead.letter.topic.enable',
        'sharequeue.fetch.max.bytes',
        'sharequeue.order',
        'sharequeue.order.max.open.keys',
        'sharequeue.order.on.dead.letter',
        'sharequeue.results.max.waiting.records',
        'sharequeue.retry.backoff.max.ms',
        'sharequeue.retry.backoff.ms',
        'sharequeue.retry.keep.enable']
$$;

-- Return the default of a group's config, or of a bound of a lock's duration; null if there is no such config.
create or replace function sharequeue_internal.group_config_default(p_name text) returns text
language sql immutable parallel safe as $$
    select case p_name
        when 'group.share.max.record.lock.duration.ms' then '60000'
        when 'group.share.min.record.lock.duration.ms' then '15000'
        when 'errors.deadletterqueue.copy.record.enable' then 'false'
        when 'errors.deadletterqueue.topic.name' then ''
        when 'share.assignment.interval.ms' then '1000'
        when 'share.assignor.offload.enable' then 'true'
        when 'share.auto.offset.reset' then 'latest'
        when 'share.delivery.count.limit' then '5'
        when 'share.heartbeat.interval.ms' then '5000'
        when 'share.isolation.level' then 'read_uncommitted'
        when 'share.partition.max.record.locks' then '2000'
        when 'share.record.lock.duration.ms' then '30000'
        when 'share.renew.acknowledge.enable' then 'true'
        when 'share.session.timeout.ms' then '45000'
        when 'sharequeue.cancelled.run.refund.enable' then 'false'
        when 'sharequeue.circuit.breaker.failure.percent' then '0'
        when 'sharequeue.circuit.breaker.min.records' then '20'
        when 'sharequeue.circuit.breaker.open.ms' then '30000'
        when 'sharequeue.circuit.breaker.probe.records' then '10'
        when 'sharequeue.circuit.breaker.window.records' then '100'
        when 'sharequeue.dead.letter.drop.enable' then 'false'
        when 'sharequeue.dead.letter.error.message.enable' then 'true'
        when 'sharequeue.dead.letter.topic.enable' then 'false'
        when 'sharequeue.fetch.max.bytes' then '0'
        when 'sharequeue.order' then 'none'
        when 'sharequeue.order.max.open.keys' then '100000'
        when 'sharequeue.order.on.dead.letter' then 'continue'
        when 'sharequeue.results.max.waiting.records' then '10000000'
        when 'sharequeue.retry.backoff.max.ms' then '3600000'
        when 'sharequeue.retry.backoff.ms' then '60000'
        when 'sharequeue.retry.keep.enable' then 'true'
    end
$$;
