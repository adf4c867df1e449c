-- Dagster's runs, events and schedules: a database beside ours on the same server, as in the embedded stack.
-- Postgres' image runs this once, when its volume is empty.
create database dagster;
