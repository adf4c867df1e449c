-- A record that is put back goes to the partition it came from, unless its redrive places records by their keys. A
-- redrive that was killed is carried on in its own way.
alter table sharequeue.redrives add column by_key boolean not null default false;
drop function if exists sharequeue.open_redrive(text, text, integer, uuid, int8multirange, bigint);
