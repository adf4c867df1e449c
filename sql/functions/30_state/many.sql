-- One call and one commit for many share-partitions of one group. acquire_many, acknowledge_many, observe_many, renew_many and
-- release_many have the rules; `acquire`, `acknowledge`, `observe` and `renew` are the same calls for one, for SQL users. They
-- return topic and partition before their own columns, and the lease's token if one was given. In acquire_many,
-- acknowledge_many and renew_many an error of one share-partition is a row with an error_code, and undoes nothing of the others;
-- only a malformed call raises. All rows are locked first, by id, and stay locked until the call commits. So a call may name at
-- most a thousand share-partitions; callers send 200. observe_many locks only the rows that it writes, and takes more of them.

-- Locks the named share-partitions by id (30_state/lock_order.sql), before any of them is changed. Returns their rows, in the
-- order of the call, null for one that does not exist. One that is created meanwhile is left out, because its lock would be out
-- of order. Refuses arrays of different lengths: every array has an element for each share-partition.
create or replace function sharequeue_internal.lock_share_partitions(
    p_group_id text, p_topics text[], p_partitions integer[], variadic p_lengths integer[]
) returns sharequeue.share_partitions[]
language plpgsql volatile as $$
declare
    v_found sharequeue.share_partitions[];
    v_places bigint[];
    v_sps sharequeue.share_partitions[];
    v_number integer;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.check_present('the group id', p_group_id);
    perform sharequeue_internal.check_many(1000, p_topics, p_partitions, variadic p_lengths);
    if cardinality(p_topics) = 1 then
        v_found := array(
            select sp from sharequeue.share_partitions sp
            where sp.group_id = p_group_id and sp.topic = p_topics[1] and sp.partition = p_partitions[1] for update);
        return case when cardinality(v_found) = 1 then v_found else array[null]::sharequeue.share_partitions[] end;
    end if;
    select array_agg(l.sp order by l.place), array_agg(l.place order by l.place) into v_found, v_places
    from (
        select sp, n.place
        from unnest(p_topics, p_partitions) with ordinality as n (topic, partition, place)
        join sharequeue.share_partitions sp on sp.group_id = p_group_id and sp.topic = n.topic and sp.partition = n.partition
        order by sp.share_partition_id for update of sp) as l;
    if cardinality(v_places) = cardinality(p_topics) then
        return v_found;
    end if;
    v_sps := array_fill(null::sharequeue.share_partitions, array[cardinality(p_topics)]);
    for v_number in 1 .. coalesce(cardinality(v_places), 0) loop
        v_sps[v_places[v_number]] := v_found[v_number];
    end loop;
    return v_sps;
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
            or v_count <> any (p_lengths) or array_position(p_lengths, null) is not null then
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
