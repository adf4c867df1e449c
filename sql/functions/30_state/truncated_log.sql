-- Returns the message for a log that was truncated below delivered records and has grown again since, null if there is none: the
-- cause and what to do. This text is only here.
create or replace function sharequeue_internal.truncated_log(p_log sharequeue.truncated_logs) returns text
language sql stable as $$
    select format('the log was truncated to %s at %s, and has grown again: offsets %s to %s are other records than those that were '
        'delivered, and are not delivered. To deliver them, stop the members of the group and reset this partition to %s; to pass '
        'over them, reset it to its current offset (`sharequeue offsets reset`)', p_log.log_end,
        to_char(p_log.truncated_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), p_log.log_end, p_log.delivered - 1, p_log.log_end)
    where p_log.share_partition_id is not null
$$;
