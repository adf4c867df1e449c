-- Every id that a topic had before offsets were reset to a topic made again, the newest first, not only the last one: what is
-- observed of them is ignored, and nobody resets to them.
alter table sharequeue.share_partitions alter column previous_topic_id type text[]
    using case when previous_topic_id is not null then array[previous_topic_id] end;
alter table sharequeue.share_partitions rename column previous_topic_id to replaced_topic_ids;
