-- Arguments that a run needs: what an acquire leaves out, and whether a release gives the deliveries back.
drop function if exists sharequeue.acquire(text, text, integer, integer, text, integer, bigint, integer, uuid, text, text,
    bigint, bigint[], bigint[], int8multirange);
drop function if exists sharequeue.acquire_under_lock(sharequeue.share_partitions, sharequeue.group_settings, text, integer,
    bigint, integer, text, text, bigint, bigint[], bigint[], int8multirange, timestamptz);
drop function if exists sharequeue.take_fan_out(sharequeue.share_partitions, sharequeue.group_settings, bigint, bigint,
    bigint, timestamptz);
drop function if exists sharequeue.next_available(bigint, bigint, timestamptz);
drop function if exists sharequeue.release(text, text, uuid, boolean);
drop function if exists sharequeue.end_cancelled(bigint, bigint);
