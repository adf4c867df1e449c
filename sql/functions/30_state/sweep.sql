-- Ends leases whose lock has lapsed on share-partitions that no call uses, at most p_limit leases in a call, first of the
-- share-partitions whose locks lapsed first, and moves SPSO past finished records there. Skips share-partitions that another
-- call is using; that call ends the leases itself. A share-partition that cannot be swept does not delay others: stuck has
-- its group and the reason. So the call never waits long for a row. Also deletes the stored results of calls that are older
-- than an hour, ten thousand in a call.
create or replace function sharequeue.sweep(p_limit integer, out leases bigint, out records bigint, out stuck jsonb)
-- It reads no table whole, whatever the statistics are, as in end_leases_at.
language plpgsql volatile set search_path = pg_catalog set enable_seqscan = off set lock_timeout = '50ms' as $$
declare
    v_at timestamptz := sharequeue.clock();
    v_id bigint;
    v_group_id text;
    v_settled record;
    v_ahead boolean;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_between('the limit of leases', p_limit, 1, 2147483647);
    leases := 0;
    records := 0;
    stuck := '{}';
    -- Whether there are locks from before the clock was set back. Only the share-partitions whose locks end last are checked, not
    -- only one: next_expiry is a lower bound, and stays when a lease ends.
    v_ahead := exists (
        select from (
            select share_partition_id from sharequeue.share_partitions where next_expiry > v_at + interval '1 minute'
            order by next_expiry desc limit 100) as sp
        where sharequeue_internal.locked_ahead(sp.share_partition_id, v_at));
    for v_id in
        (select sp.share_partition_id from sharequeue.share_partitions sp
            where sp.next_expiry <= v_at order by sp.next_expiry limit p_limit)
        union
        (select sp.share_partition_id from sharequeue.share_partitions sp
            where v_ahead and sp.next_expiry > v_at
                and sharequeue_internal.locked_ahead(sp.share_partition_id, v_at) limit p_limit)
        union
        (select sp.share_partition_id from sharequeue.share_partitions sp where sp.advance_due limit p_limit)
        order by 1
    loop
        exit when leases >= p_limit;
        select group_id into v_group_id from sharequeue.share_partitions
        where share_partition_id = v_id for no key update skip locked;
        continue when not found;
        begin
            select s.leases, s.records into v_settled
            from sharequeue_internal.settle_lapsed(v_id, v_at, p_limit - leases) as s;
            perform sharequeue_internal.advance_if_due(v_id);
        exception when others then
            stuck := stuck || jsonb_build_object(v_group_id, sqlerrm);
            continue;
        end;
        leases := leases + v_settled.leases;
        records := records + v_settled.records;
    end loop;
    -- By ctid: by request key it would read the whole table each time.
    delete from sharequeue.requests where ctid = any (array(
        select r.ctid from sharequeue.requests r where r.finished_at < v_at - interval '1 hour'
        order by r.finished_at limit 10000 for update skip locked));
end
$$;
