-- It says now what was accepted of the records that it lets go.
drop function if exists sharequeue_internal.let_go_overtaken(sharequeue.share_partitions, text, uuid);
-- They are told now whose records were suspects.
drop function if exists sharequeue_internal.end_cancelled(bigint, bigint, boolean);
drop function if exists sharequeue_internal.release_of(bigint, text, uuid, boolean, boolean);
drop function if exists sharequeue.release_many(text, text[], integer[], text, uuid[], boolean, boolean);
