-- Adds the current figures to the history: one row per share-partition and per bar of the delivery-count histogram.
create or replace function sharequeue.record_report(p_group_id text) returns timestamptz
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_at timestamptz := sharequeue.clock();
    v_ids bigint[];
begin
    perform sharequeue_internal.authorise(p_group_id, 'DESCRIBE');
    perform sharequeue_internal.check_present('the group id', p_group_id);
    perform from sharequeue.share_groups where group_id = p_group_id;
    if not found then
        raise exception 'there is no share group %', left(p_group_id, 300) using errcode = 'SQ069';
    end if;
    -- The share-partitions that both tables refer to, locked all at once and by id (30_state/lock_order.sql), and not one by
    -- one as rows are written.
    v_ids := array(
        select share_partition_id from sharequeue.share_partitions where group_id = p_group_id
        order by share_partition_id for key share);
    insert into sharequeue.share_partition_history
    select v_at, share_partition_id, spso, speo, log_start, log_end, lag, acquired, available, archiving,
        delivery_complete_count
    from sharequeue.share_partition_status where group_id = p_group_id and share_partition_id = any (v_ids)
    order by share_partition_id;
    insert into sharequeue.delivery_count_history
    select v_at, d.share_partition_id, d.outcome, d.delivery_count, d.records
    from sharequeue.delivery_count_totals d where d.share_partition_id = any (v_ids) order by d.share_partition_id;
    return v_at;
end
$$;
