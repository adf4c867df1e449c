-- Removes the in-flight state and the leases of a share-partition that is deleted. There are no foreign keys for this, because
-- their checks would make every acquire slower.
create or replace function sharequeue_internal.share_partition_gone() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
begin
    delete from sharequeue.in_flight_batches where share_partition_id = old.share_partition_id;
    delete from sharequeue.leases where share_partition_id = old.share_partition_id;
    delete from sharequeue.open_key_records where share_partition_id = old.share_partition_id;
    perform sharequeue_internal.forget_kept(old.share_partition_id);
    return null;
end
$$;
create or replace trigger share_partitions_gone after delete on sharequeue.share_partitions
    for each row execute function sharequeue_internal.share_partition_gone();
