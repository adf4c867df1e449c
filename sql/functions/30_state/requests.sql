-- Returns the key under which a call's result is stored: a hash of share-partition, operation, member and request id. The same
-- request id on another share-partition, or from another member, is another call. One key of 16 bytes keeps the index small.
-- Null without a request id.
create or replace function sharequeue_internal.request_key(
    p_share_partition_id bigint, p_operation text, p_member_id text, p_request_id uuid
) returns uuid
language sql immutable parallel safe as $$
    select encode(substr(sha256(convert_to(
        p_share_partition_id || ' ' || p_operation || ' ' || p_request_id || ' ' || p_member_id, 'UTF8')), 1, 16),
        'hex')::uuid
$$;

-- The same for a call that names many share-partitions. Null, so without a stored result, if there is no request id or the
-- caller has no rights on the group.
create or replace function sharequeue_internal.request_key_many(
    p_group_id text, p_topics text[], p_partitions integer[], p_operation text, p_member_id text, p_request_id uuid
) returns uuid
language sql stable as $$
    select md5(p_operation || p_request_id || jsonb_build_array(p_group_id, p_topics, p_partitions, p_member_id))::uuid
    where p_request_id is not null and sharequeue_internal.authorised(p_group_id, 'READ')
$$;

-- Stores a call's result under its key, for a repeated call. p_sets are sets of offsets that are not in the result.
create or replace function sharequeue_internal.remember(
    p_request_key uuid, p_operation text, p_result jsonb, p_sets int8multirange[] default null
) returns void
language plpgsql volatile as $$
begin
    if p_request_key is not null then
        insert into sharequeue.requests (request_key, operation, result, sets, finished_at)
        values (p_request_key, p_operation, p_result, p_sets, sharequeue.clock());
    end if;
end
$$;

-- Returns the result that is stored under a key; null if there is none. Called under the share-partition's lock, and only for a
-- caller with rights on the group.
create or replace function sharequeue_internal.stored_result(p_request_key uuid) returns jsonb
language plpgsql stable as $$
begin
    return (select result from sharequeue.requests where request_key = p_request_key);
end
$$;
