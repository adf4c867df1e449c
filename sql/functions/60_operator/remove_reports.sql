-- Removes a group's reports that are older than p_keep, at most p_limit rows of each table; each recorder of reports
-- calls it each time, so that each call has little to do. Returns the number of removed rows.
create or replace function sharequeue.remove_reports(
    p_group_id text, p_keep interval, p_limit integer default 1000
) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_before timestamptz;
    v_ids bigint[];
    v_removed bigint;
    v_counts bigint;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id),
        sharequeue_internal.check_span('the time for which reports are kept', p_keep),
        sharequeue_internal.check_between('the limit of rows', p_limit, 1, 2147483647);
    v_before := sharequeue.clock() - p_keep;
    select array_agg(share_partition_id) into v_ids from sharequeue.share_partitions where group_id = p_group_id;
    delete from sharequeue.share_partition_history where ctid = any (array(
        select h.ctid from sharequeue.share_partition_history h
        where h.share_partition_id = any (v_ids) and h.reported_at < v_before
        limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    delete from sharequeue.delivery_count_history where ctid = any (array(
        select h.ctid from sharequeue.delivery_count_history h
        where h.share_partition_id = any (v_ids) and h.reported_at < v_before
        limit p_limit for update skip locked));
    get diagnostics v_counts = row_count;
    return v_removed + v_counts;
end
$$;
