-- release, for many leases of one member: returns how many records each still held. p_suspects has for each lease whether its
-- records were suspects when they were leased: after a cancelled run, or with a refund, they are suspects again. p_reasons has
-- for each lease why it was not acknowledged, as 'Class: message' or null: the dead letters of its records have it.
create or replace function sharequeue.release_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_member_id text, p_tokens uuid[],
    p_cancelled boolean default false, p_refund boolean default false, p_suspects boolean[] default null,
    p_reasons text[] default null
) returns setof sharequeue.released_of
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_sps sharequeue.share_partitions[];
    v_id bigint;
begin
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.check_present('the member id', p_member_id);
    if p_cancelled is null or p_refund is null or array_position(p_tokens, null) is not null
            or array_position(p_suspects, null) is not null then
        raise exception 'the arguments of release_many are not valid: expected p_cancelled, p_refund, and for each lease '
            'its token and an element of p_suspects'
            using errcode = 'SQ042';
    end if;
    v_sps := sharequeue_internal.lock_share_partitions(p_group_id, p_topics, p_partitions, coalesce(cardinality(p_tokens), 0),
        coalesce(cardinality(p_suspects), cardinality(p_topics)), coalesce(cardinality(p_reasons), cardinality(p_topics)));
    for v_place in 1 .. cardinality(p_topics) loop
        v_id := (v_sps[v_place]).share_partition_id;
        return next row(p_topics[v_place], p_partitions[v_place], p_tokens[v_place],
            case when v_id is null then 0 else sharequeue_internal.release_of(v_id, p_member_id, p_tokens[v_place], p_cancelled,
                p_refund, coalesce(p_suspects[v_place], false), left(p_reasons[v_place], 2000)) end)::sharequeue.released_of;
    end loop;
end
$$;
