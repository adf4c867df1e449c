-- The sweep looks for share-partitions whose SPSO may stand at something finished.
create index share_partitions_by_advance_due on sharequeue.share_partitions (share_partition_id) where advance_due;
