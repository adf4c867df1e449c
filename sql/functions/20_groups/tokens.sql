-- Bearer tokens of the service's HTTP API. Super users create and revoke them, and the audit log has both, without the hash.
-- The secret is never passed to the database.

-- Creates a token for a principal. The caller keeps the secret and passes its SHA-256. A token with a null lifetime never
-- expires. Null scopes mean all: heartbeat, describe, metrics, admin.
create or replace function sharequeue.create_token(
    p_principal text, p_secret_hash bytea, p_lifetime interval, p_note text, p_scopes text[] default null,
    out token_id uuid, out created_at timestamptz, out expires_at timestamptz
)
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise_cluster();
    if sharequeue_internal.check_name('the principal', p_principal) not like 'User:_%'
            or p_principal in ('User:*', 'User:ANONYMOUS') then
        raise exception 'the principal of a token must be User:<name>, and not User:* or User:ANONYMOUS'
            using errcode = 'SQ042';
    end if;
    if octet_length(p_secret_hash) is distinct from 32 then
        raise exception 'the hash of the secret is not a SHA-256: expected 32 bytes' using errcode = 'SQ042';
    end if;
    if p_lifetime is not null and sharequeue_internal.check_span('the lifetime', p_lifetime) = interval '0' then
        raise exception 'the lifetime must not be 0: give a longer one, or null for a token that never expires'
            using errcode = 'SQ042';
    end if;
    if p_note is not null then
        perform sharequeue_internal.check_name('the note', p_note);
    end if;
    if p_scopes is not null and (cardinality(p_scopes) = 0 or array_position(p_scopes, null) is not null
            or not p_scopes <@ array['admin', 'describe', 'heartbeat', 'metrics']) then
        raise exception 'the scopes % are not valid: expected some of heartbeat, describe, metrics, admin, or null for all', p_scopes
            using errcode = 'SQ042';
    end if;
    token_id := gen_random_uuid();
    created_at := sharequeue.clock();
    expires_at := created_at + p_lifetime;
    insert into sharequeue.service_tokens (token_id, principal, secret_hash, note, created_at, expires_at, scopes)
    values (create_token.token_id, p_principal, p_secret_hash, p_note, create_token.created_at, create_token.expires_at,
        (select array_agg(distinct s.scope order by s.scope) from unnest(p_scopes) as s (scope)))
    on conflict on constraint service_tokens_secret_hash_key do nothing;
    if not found then
        raise exception 'a token with this hash already exists: create another secret' using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.audit('create_token', null, null, jsonb_build_object('token_id', token_id,
        'principal', p_principal, 'note', p_note, 'expires_at', expires_at, 'scopes', to_jsonb(p_scopes)));
end
$$;

-- Revokes the tokens that match all given arguments; at least an id or a principal is required. Returns those that
-- it revokes, or with p_dry_run would revoke, without those that were already revoked.
create or replace function sharequeue.revoke_tokens(p_token_id uuid, p_principal text, p_dry_run boolean default false)
returns table (
    token_id uuid, principal text, note text, created_at timestamptz, expires_at timestamptz, revoked_at timestamptz,
    scopes text[]
)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_ids uuid[];
    v_now timestamptz;
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_present('p_dry_run', p_dry_run);
    if p_token_id is null and p_principal is null then
        raise exception 'no token is selected: give an id or a principal' using errcode = 'SQ042';
    end if;
    v_ids := array(
        select t.token_id from sharequeue.service_tokens t
        where t.token_id = coalesce(p_token_id, t.token_id) and t.principal = coalesce(p_principal, t.principal)
            and t.revoked_at is null
        order by t.token_id);
    if not p_dry_run then
        -- Locked in one order. If two calls revoke the same token, the first one does it.
        v_ids := array(
            select t.token_id from sharequeue.service_tokens t
            where t.token_id = any (v_ids) and t.revoked_at is null
            order by t.token_id for update);
        v_now := sharequeue.clock();
        update sharequeue.service_tokens t set revoked_at = v_now where t.token_id = any (v_ids);
        perform sharequeue_internal.audit('revoke_token', null,
            to_jsonb(t) - 'secret_hash' - 'revoked_at', jsonb_build_object('revoked_at', t.revoked_at))
        from sharequeue.service_tokens t where t.token_id = any (v_ids);
    end if;
    return query select t.token_id, t.principal, t.note, t.created_at, t.expires_at, t.revoked_at, t.scopes
        from sharequeue.service_tokens t where t.token_id = any (v_ids) order by t.created_at, t.token_id;
end
$$;

-- Returns the principal of a token's secret; null if no valid token has this hash. The service calls it for every
-- request with a token: one index lookup, so a revocation takes effect with the next request. p_scope is the scope
-- that the request needs, if the token has scopes; null needs all scopes.
create or replace function sharequeue.principal_of_token(p_secret_hash bytea, p_scope text default null) returns text
language plpgsql stable as $$
declare
    v_principal text;
    v_scopes text[];
begin
    select principal, scopes into v_principal, v_scopes from sharequeue.service_tokens
    where secret_hash = p_secret_hash and revoked_at is null
        and (expires_at is null or expires_at > sharequeue.clock());
    if v_scopes is not null and not coalesce(p_scope = any (v_scopes), false) then
        raise exception 'The token of % has only the scopes: %. This request needs: %. Create another token with `sharequeue tokens create --scope`.',
            v_principal, array_to_string(v_scopes, ', '), coalesce(p_scope, 'all scopes')
            using errcode = 'SQ031';
    end if;
    return v_principal;
end
$$;
