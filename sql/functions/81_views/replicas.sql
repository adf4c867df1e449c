-- The replicas of the service: when each was last active, whether it writes dead letters, and when it last checked
-- the broker's topics, swept, maintained the journal and looked for dead letters; null if it has not.
create or replace view sharequeue.replicas as
select replica_id, heard_at, drains, watched_at, swept_at, journal_kept_at, drained_at
from sharequeue.service_replicas;
