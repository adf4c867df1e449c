-- The replicas of the service: when each was last at work, and whether it writes dead letters.
create or replace view sharequeue.replicas as
select replica_id, heard_at, drains from sharequeue.service_replicas;
