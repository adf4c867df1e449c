-- Returns how many records of these topics a group has lost to retention since the last call: each is returned once.
-- Records that a lease still holds are left to a later call, because records that their holder accepts are not lost.
create or replace function sharequeue.report_losses(p_group_id text, p_topics text[]) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_id bigint;
    v_before bigint;
    v_lost bigint;
    v_new bigint := 0;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_present('the topics', p_topics);
    -- Locked all at once and by id, before the rows that refer to them (30_state/lock_order.sql).
    foreach v_id in array array(
        select share_partition_id from sharequeue.share_partitions
        where group_id = p_group_id and topic = any (p_topics) and lost_records > 0
        order by share_partition_id for key share)
    loop
        insert into sharequeue.reported_losses (share_partition_id, records) values (v_id, 0)
        on conflict on constraint reported_losses_pkey do nothing;
        select records into v_before from sharequeue.reported_losses where share_partition_id = v_id for update;
        select sp.lost_records - coalesce((
            select sum(sharequeue.records(sharequeue_internal.offsets_of(b.first_offset, b.last_offset, b.offsets)
                * int8multirange(int8range(null, sp.spso))))
            from sharequeue.in_flight_batches b
            where b.share_partition_id = v_id and b.state = 1 and b.first_offset < sp.spso), 0)
        into v_lost from sharequeue.share_partitions sp where sp.share_partition_id = v_id;
        if v_lost > v_before then
            update sharequeue.reported_losses set records = v_lost where share_partition_id = v_id;
            v_new := v_new + v_lost - v_before;
        end if;
    end loop;
    return v_new;
end
$$;
