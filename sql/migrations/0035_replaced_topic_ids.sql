-- Every id that a topic had before offsets were reset to a topic made again, the newest first, not only the last one: what is
-- observed of them is ignored, and nobody resets to them.
alter table sharequeue.share_partitions alter column previous_topic_id type text[]
    using case when previous_topic_id is not null then array[previous_topic_id] end;
alter table sharequeue.share_partitions rename column previous_topic_id to replaced_topic_ids;

-- Whether a caller may do something with a group is asked for each group of a list: only the ACLs that may cover it are read.
create index acls_by_resource on sharequeue.acls (resource_type, pattern_type, resource_name);
drop function if exists sharequeue.authorized_operations(text);

-- A group has no bounds of its own: a name that is not a group's config is refused from now on.
delete from sharequeue.group_configs where name like 'group.share.%';
