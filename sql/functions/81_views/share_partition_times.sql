-- When each share-partition was created, and when its state was last written, according to its journal. created_at
-- is null once retention has removed the beginning of the journal.
create or replace view sharequeue.share_partition_times as
select sp.share_partition_id, sp.group_id, sp.topic, sp.partition,
    (select j.at from sharequeue.journal j
        where j.share_partition_id = sp.share_partition_id and j.kind = 'initialized'
        order by j.journal_id desc limit 1) as created_at,
    (select j.at from sharequeue.journal j
        where j.share_partition_id = sp.share_partition_id order by j.journal_id desc limit 1) as written_at
from sharequeue.share_partitions sp;
