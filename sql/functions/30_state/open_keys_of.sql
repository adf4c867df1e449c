-- Returns the open keys of a share-partition: the first open record of each, whether that is a dead letter that holds its key,
-- since when the key is open, until when the first record waits (null: it does not), and how many records are held behind it.
-- As the owner, because a reader of the views has no rights on the table. Only views can call it.
create or replace function sharequeue_internal.open_keys_of(p_share_partition_id bigint)
returns table (
    key_hash uuid, first_offset bigint, is_letter boolean, since timestamptz, until timestamptz, held_records bigint
)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select k.key_hash, k.offsets[1], k.letters[1], k.since, k.untils[1], k.records - case when k.letters[1] then 0 else 1 end
    from (
        select r.key_hash, array_agg(r."offset" order by r."offset") as offsets, array_agg(r.letter is not null order by r."offset") as letters,
            array_agg(r.until order by r."offset") as untils, min(r.since) as since, count(*) filter (where r.letter is null) as records
        from sharequeue.open_key_records r
        where r.share_partition_id = p_share_partition_id and r.key_hash is not null
        group by r.key_hash
    ) as k
$$;
