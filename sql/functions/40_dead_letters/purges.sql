-- Letters that somebody deletes from a dead-letter topic: written down before Kafka is asked, for there is no transaction
-- over both. What Postgres knows of the records stays as it is.

-- A person deletes the letters of a partition below an offset; the log started at p_log_start.
create or replace function sharequeue.record_purge(
    p_topic text, p_topic_id text, p_partition integer, p_log_start bigint, p_before bigint, p_letters bigint
) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_name('the topic', p_topic), sharequeue_internal.check_name('the topic id', p_topic_id),
        sharequeue_internal.check_between('the partition', p_partition, 0, 2147483647),
        sharequeue_internal.check_between('the log''s start', p_log_start, 0, 9223372036854775807),
        sharequeue_internal.check_between('the offset', p_before, p_log_start, 9223372036854775807),
        sharequeue_internal.check_between('the number of letters', p_letters, 0, 9223372036854775807);
    perform sharequeue_internal.audit('purge_dead_letters', null,
        jsonb_build_object('topic', p_topic, 'topic_id', p_topic_id, 'partition', p_partition, 'log_start', p_log_start),
        jsonb_build_object('log_start', p_before, 'letters', p_letters));
end
$$;
