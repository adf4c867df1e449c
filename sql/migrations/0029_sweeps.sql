-- A sweep says which groups it could not serve. A member's row is written at each of its heartbeats.
drop function if exists sharequeue.sweep(integer);
alter table sharequeue.members set (fillfactor = 50);
