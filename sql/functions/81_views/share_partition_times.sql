-- Since when each share-partition is there, and when its state was last written, as its journal says. created_at is null
-- once retention has taken the beginning.
create or replace view sharequeue.share_partition_times as
select sp.share_partition_id, sp.group_id, sp.topic, sp.partition,
    (select j.at from sharequeue.journal j
        where j.share_partition_id = sp.share_partition_id and j.kind = 'initialized'
        order by j.journal_id desc limit 1) as created_at,
    (select j.at from sharequeue.journal j
        where j.share_partition_id = sp.share_partition_id order by j.journal_id desc limit 1) as written_at
from sharequeue.share_partitions sp;
