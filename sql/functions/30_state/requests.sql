-- Returns the key under which a call's result is stored: a hash of operation, share-partitions, member and request id. The same
-- request id on another share-partition, or from another member, is another call. One key of 16 bytes keeps the index small.
-- Null, so without a stored result, if there is no request id or the caller has no rights on the group.
create or replace function sharequeue_internal.request_key(
    p_settings sharequeue.group_settings, p_group_id text, p_topics text[], p_partitions integer[], p_operation text,
    p_member_id text, p_request_id uuid
) returns uuid
language plpgsql stable as $$
begin
    if p_request_id is null or (p_settings.acls_apply is distinct from false
            and not sharequeue_internal.authorised(p_group_id, 'READ')) then
        return null;
    end if;
    return encode(substr(sha256(convert_to(
        row(p_operation, p_request_id, p_group_id, p_topics, p_partitions, p_member_id)::text, 'UTF8')), 1, 16), 'hex')::uuid;
end
$$;

-- Stores a call's result under its key, for a repeated call. p_sets are sets of offsets that are not in the result. Two calls of
-- one key wait for each other at their share-partitions. Only if all of these were deleted in between do both come here, and then
-- neither has done anything.
create or replace function sharequeue_internal.remember(
    p_request_key uuid, p_operation text, p_result jsonb, p_sets int8multirange[] default null
) returns void
language plpgsql volatile as $$
begin
    if p_request_key is not null then
        insert into sharequeue.requests (request_key, operation, result, sets, finished_at)
        values (p_request_key, p_operation, p_result, p_sets, sharequeue.clock())
        on conflict on constraint requests_pkey do nothing;
    end if;
end
$$;
