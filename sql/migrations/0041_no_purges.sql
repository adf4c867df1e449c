-- Kafka's own tools and retention delete dead letters: no command of ours does, so there is nothing to write down.
drop function if exists sharequeue.record_purge(text, text, integer, bigint, bigint, bigint);
