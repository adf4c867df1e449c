-- Who is signed in to the pages of the service, by a token. Of a session's secret only its SHA-256 is kept, as of a token's
-- (0025). A session ends with its token, and by itself.
create table sharequeue.page_sessions (
    session_hash bytea not null constraint page_sessions_pkey primary key
        constraint page_sessions_session_hash_is_sha256 check (octet_length(session_hash) = 32),
    token_id uuid not null constraint page_sessions_token_fkey references sharequeue.service_tokens (token_id)
        on delete cascade,
    opened_at timestamptz not null,
    expires_at timestamptz not null
);
create index page_sessions_by_token on sharequeue.page_sessions (token_id);
create index page_sessions_by_expiry on sharequeue.page_sessions (expires_at);
