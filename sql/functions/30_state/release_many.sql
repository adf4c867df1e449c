-- release, for many leases of one member: returns how many records each still held.
create or replace function sharequeue.release_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_member_id text, p_tokens uuid[],
    p_cancelled boolean default false, p_refund boolean default false
) returns setof sharequeue.released_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_there boolean[];
    v_place integer;
    v_id bigint;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the member id', p_member_id);
    if p_cancelled is null or p_refund is null or array_position(p_tokens, null) is not null then
        raise exception 'release_many needs the token of every lease, whether the run was cancelled, and whether its '
            'deliveries are given back'
            using errcode = 'SQ042';
    end if;
    v_there := sharequeue_internal.lock_share_partitions(p_group_id, p_topics, p_partitions, coalesce(cardinality(p_tokens), 0));
    for v_place in 1 .. cardinality(p_topics) loop
        select share_partition_id into v_id from sharequeue.share_partitions
        where v_there[v_place] and group_id = p_group_id and topic = p_topics[v_place]
            and partition = p_partitions[v_place];
        return next row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place],
            case when v_id is null then 0 else sharequeue_internal.release_of(v_id, p_member_id, p_tokens[v_place], p_cancelled,
                p_refund) end)::sharequeue.released_of;
    end loop;
end
$$;
