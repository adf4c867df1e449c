-- Bearer tokens: as whom a caller of the service's HTTP API acts. Of the secret only its SHA-256 is kept: it has 256
-- random bits, so neither salt nor a slow hash is needed, and it is found by an index.
create table sharequeue.service_tokens (
    token_id uuid not null constraint service_tokens_pkey primary key,
    principal text not null constraint service_tokens_principal_is_user check (principal like 'User:_%'),
    secret_hash bytea not null constraint service_tokens_secret_hash_key unique
        constraint service_tokens_secret_hash_is_sha256 check (octet_length(secret_hash) = 32),
    note text,
    created_at timestamptz not null,
    -- Null is for ever.
    expires_at timestamptz,
    revoked_at timestamptz
);
