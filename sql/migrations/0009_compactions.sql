-- Small outputs made one: which folder a compaction writes, and which folders it has replaced. Whoever is killed in
-- between leaves a row, by which a sweep finds what to remove.
create table sharequeue.compactions (
    compaction_id uuid constraint compactions_pkey primary key,
    group_id text not null constraint compactions_group_fkey references sharequeue.share_groups on delete cascade,
    sink text not null,
    location text not null,
    began_at timestamptz not null,
    -- From here on the new folder counts, and these do not.
    committed_at timestamptz,
    replaced text[] not null default '{}',
    -- A sweep has given it up; it cannot be committed any more.
    abandoned_at timestamptz,
    constraint compactions_committed_or_abandoned check (committed_at is null or abandoned_at is null)
);
create index compactions_by_sink on sharequeue.compactions (group_id, sink);
