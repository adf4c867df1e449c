-- One call and one commit for many share-partitions of one group: `<operation>_many`. Each processes one share-partition after
-- the other, as the single operation does, and returns the columns of that operation after topic and partition, and the lease's
-- token if one was given. An error of one share-partition is a row with an error_code, and undoes nothing of the others; only a
-- malformed call raises. All rows are locked first, by id, and stay locked until the call commits. So a call may name at most a
-- thousand share-partitions; callers send 200.

-- Locks the named share-partitions by id (30_state/lock_order.sql), before any of them is changed. Returns the existing ones, in
-- the order of the call. One that is created meanwhile is left out, because its lock would be out of order. Refuses arrays of
-- different lengths: every array has an element for each share-partition.
create or replace function sharequeue_internal.lock_share_partitions(
    p_group_id text, p_topics text[], p_partitions integer[], variadic p_lengths integer[]
) returns boolean[]
language plpgsql volatile as $$
declare
    v_ids bigint[];
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_present('the group id', p_group_id);
    perform sharequeue_internal.check_many(1000, p_topics, p_partitions, variadic p_lengths);
    v_ids := array(
        select sp.share_partition_id from sharequeue.share_partitions sp
        where sp.group_id = p_group_id and (sp.topic, sp.partition) in (
            select n.topic, n.partition from unnest(p_topics, p_partitions) as n (topic, partition))
        order by sp.share_partition_id for update);
    return array(
        select sp.share_partition_id is not null
        from unnest(p_topics, p_partitions) with ordinality as n (topic, partition, place)
        left join sharequeue.share_partitions sp on sp.group_id = p_group_id and sp.topic = n.topic
            and sp.partition = n.partition and sp.share_partition_id = any (v_ids)
        order by n.place);
end
$$;

-- Checks the arrays of one call: no nulls among the names, the same length, and not too many elements.
create or replace function sharequeue_internal.check_many(
    p_most integer, p_topics text[], p_partitions integer[], variadic p_lengths integer[]
) returns void
language plpgsql immutable as $$
declare
    v_count integer := cardinality(p_topics);
begin
    if p_topics is null or p_partitions is null or cardinality(p_partitions) <> v_count
            or exists (select from unnest(p_lengths) as l where l is distinct from v_count) then
        raise exception 'the arrays differ in length: expected one element for each share-partition in each of them'
            using errcode = 'SQ042';
    elsif array_position(p_topics, null) is not null or array_position(p_partitions, null) is not null then
        raise exception 'a topic or a partition is null: give both for each share-partition' using errcode = 'SQ042';
    elsif v_count > p_most then
        raise exception 'a call can name at most % share-partitions, not %: send several calls', p_most, v_count
            using errcode = 'SQ042';
    end if;
end
$$;
