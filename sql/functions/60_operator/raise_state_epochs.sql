-- After a restore of the database from a backup, or a copy of it: fences every older holder, so that all leased records are
-- delivered again, and sets the sequences that are behind.
create or replace function sharequeue.raise_state_epochs() returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_id bigint;
    v_lease_id bigint;
    v_completed bigint;
    v_raised bigint := 0;
    v_sequences jsonb;
begin
    perform sharequeue_internal.authorise_cluster();
    v_sequences := sharequeue_internal.advance_sequences();  -- before the audit log, whose own may be behind
    foreach v_id in array sharequeue_internal.lock_in_order(null, false, true) loop
        v_completed := 0;
        for v_lease_id in select lease_id from sharequeue.leases where share_partition_id = v_id order by lease_id loop
            v_completed := v_completed + (select e.completed from sharequeue_internal.end_unacknowledged(v_id, v_lease_id) as e);
        end loop;
        perform sharequeue_internal.advance_spso(v_id, v_completed);
        update sharequeue.share_partitions set next_expiry = null, state_epoch = sharequeue_internal.next_epoch(
                format('Share-partition %s-%s of group %s', topic, partition, group_id), state_epoch)
        where share_partition_id = v_id;
        v_raised := v_raised + 1;
    end loop;
    perform sharequeue_internal.audit('raise_state_epochs', null, null, jsonb_build_object('share_partitions', v_raised) || case
        when v_sequences = '{}' then '{}' else jsonb_build_object('sequences', v_sequences) end);
    return v_raised;
end
$$;
