-- A snapshot of a share-partition waits for it; who takes several locks them all first (functions/70_journal/keep.sql).
drop function if exists sharequeue.take_snapshot(bigint, boolean);
