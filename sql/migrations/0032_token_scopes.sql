-- For what a token is good. Null is for everything.
alter table sharequeue.service_tokens add column scopes text[]
    constraint service_tokens_scopes_known
        check (cardinality(scopes) > 0 and scopes <@ array['admin', 'describe', 'heartbeat', 'metrics']);

drop function if exists sharequeue.create_token(text, bytea, interval, text);
drop function if exists sharequeue.revoke_tokens(uuid, text, boolean);
drop function if exists sharequeue.principal_of_token(bytea);
