-- A redrive may be for one share group only: the others pass over the records it puts back. Which topics have such
-- records is known before any of them is sent.
alter table sharequeue.redrives
    add column only_group text,
    add column target_topics text[] not null default '{}';
create index redrives_for_one_group on sharequeue.redrives (only_group) where only_group is not null;
drop function if exists sharequeue.open_redrive(text, text, integer, uuid, int8multirange, bigint);
