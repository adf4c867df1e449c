-- The order of locks. Every transaction that takes more than one lock follows it, so that there are no deadlocks:
--
--   1. what belongs to the whole cluster: the tables acls and service_configs, the rows of topics;
--   2. groups (rows of share_groups), by id;
--   3. their settings (rows of group_settings), by id;
--   4. share-partitions, by share_partition_id;
--   5. everything else, because it belongs to one of those above: batches, leases, circuit breakers, counts, outputs,
--      dead letters, the journal's own tables; several of one table by share_partition_id.
--
-- Steps that are not needed are left out. An operation on one share-partition starts at 4 and takes one row. A transaction that
-- skips locked rows follows the order too: SKIP LOCKED waits if a later version of the row is locked. Two details: a row that is
-- updated twice in a transaction has its foreign keys checked, which requests KEY SHARE on its group (2) while the transaction
-- holds 4. So no transaction requests more than NO KEY UPDATE on a group before it holds everything of the group. And a
-- transaction of a user that calls several operations must call them by share_partition_id.

-- Locks groups and then their share-partitions in that order: the given groups, or all if p_group_ids is null; of the
-- share-partitions only those of p_topic and p_partition, if these are given. Returns the ids of the share-partitions. They are
-- locked as for deletion, so that a report or an assignment that refers to several of them waits for the first one, and not
-- between two of them.
create or replace function sharequeue_internal.lock_in_order(
    p_group_ids text[], p_settings boolean, p_share_partitions boolean, p_topic text default null,
    p_partition integer default null
) returns bigint[]
language plpgsql volatile as $$
begin
    if p_settings then
        -- Before the rows: a change of ACLs locks the table against changes (groups_learn_acls).
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

-- Locks a group's row against new members and against other changes of the group. Returns whether the group exists.
create or replace function sharequeue_internal.lock_group(p_group_id text) returns boolean
language plpgsql volatile as $$
begin
    perform from sharequeue.share_groups where group_id = p_group_id for no key update;
    return found;
end
$$;
