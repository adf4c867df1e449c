-- The replicas of the service: when each was last active, whether it writes dead letters, and when it last checked
-- the broker's topics, swept, maintained the journal and looked for dead letters; null if it has not. The next two columns
-- are the same in all rows: when a replica last found that the database's clock was set back, and by how much. The last one:
-- it was stopped in order.
create or replace view sharequeue.replicas as
select r.replica_id, r.heard_at, r.writes_letters, r.watched_at, r.swept_at, r.journal_kept_at, r.letters_written_at, b.set_back_at,
    b.set_back_by, r.stopped
from sharequeue.service_replicas r left join sharequeue.service_beat b on true;
