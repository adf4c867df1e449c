-- One function answers parts of batches and one joins what is finished: their shorter copies brought less than they cost.
drop function if exists sharequeue.answer_few_parts(bigint, sharequeue.group_settings, bigint[], bigint, bigint,
    sharequeue.answers, timestamptz);
drop function if exists sharequeue.answer_part(bigint, bigint, bigint, integer, smallint, boolean, int8multirange,
    smallint, text, timestamptz);
drop function if exists sharequeue.join_all_terminal(bigint, bigint, bigint);
drop function if exists sharequeue.join_terminal(bigint, bigint);

-- The usual fetch: what it does in the tables has another name, and a share-partition's own row no trigger for it any more.
drop function if exists sharequeue.fetch_side_by_side(text, text, integer, integer, text, integer, uuid, uuid, bigint,
    bigint, bigint, text);
drop function if exists sharequeue.accept_behind_head(bigint, bigint, bigint);
drop trigger if exists share_partitions_unfold on sharequeue.share_partitions;
drop function if exists sharequeue.share_partition_unfold();
-- By statement now, where it was by row.
drop trigger if exists group_settings_unfold on sharequeue.group_settings;
