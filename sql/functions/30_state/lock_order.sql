-- The one order of locks. Whoever takes more than one keeps to it, and nobody meets a deadlock:
--
--   1. what belongs to the whole cluster: the tables acls and service_configs, the rows of topics;
--   2. groups (rows of share_groups), by id;
--   3. their settings (rows of group_settings), by id;
--   4. share-partitions, by share_partition_id;
--   5. everything else, all of which hangs on one of those above: batches, leases, circuit breakers, counts, outputs,
--      dead letters, the journal's own tables; several of one table by share_partition_id.
--
-- Steps that are not needed are left out. An operation on one share-partition starts at 4 and takes one row. Who skips
-- rows that are locked keeps to the order too: SKIP LOCKED waits where a later version of the row is locked. Two things to
-- know: a row that is updated twice in a transaction
-- has its foreign keys checked, which asks for KEY SHARE on its group (2) from whoever holds 4; so nobody asks for more
-- than NO KEY UPDATE on a group before it holds everything the group has. And a transaction of a user's own that calls
-- several operations has to call them by share_partition_id.

-- Locks from groups down to share-partitions in that order, of the groups given, or of all where p_group_ids is null; of
-- the share-partitions only those of p_topic and p_partition, where these are given. Returns the ids of the
-- share-partitions. They are locked as for deletion: a report, or an assignment, that refers to several of them waits for
-- the first, and not in the middle.
create or replace function sharequeue_internal.lock_in_order(
    p_group_ids text[], p_settings boolean, p_share_partitions boolean, p_topic text default null,
    p_partition integer default null
) returns bigint[]
language plpgsql volatile as $$
begin
    if p_settings then
        -- Before the rows: who changes ACLs locks the table against changes (groups_learn_acls).
        lock table sharequeue.group_settings in row exclusive mode;
        perform from sharequeue.group_settings where p_group_ids is null or group_id = any (p_group_ids)
        order by group_id for no key update;
    end if;
    if not p_share_partitions then
        return '{}';
    end if;
    return array(
        select share_partition_id from sharequeue.share_partitions
        where (p_group_ids is null or group_id = any (p_group_ids)) and (p_topic is null or topic = p_topic)
            and (p_partition is null or partition = p_partition)
        order by share_partition_id for update);
end
$$;

-- A group's row, locked against members that come and against everybody else who changes the group; returns whether
-- there is such a group.
create or replace function sharequeue_internal.lock_group(p_group_id text) returns boolean
language plpgsql volatile as $$
begin
    perform from sharequeue.share_groups where group_id = p_group_id for no key update;
    return found;
end
$$;
