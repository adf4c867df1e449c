-- The bearer tokens of the service's HTTP API, without secrets. state is `in force`, `expired` or `revoked`; scopes
-- are the rights of a token, null means all.
create or replace view sharequeue.token_list as
select token_id, principal, note, created_at, expires_at, revoked_at,
    case when revoked_at is not null then 'revoked' when expires_at <= sharequeue.clock() then 'expired'
        else 'in force' end as state,
    scopes
from sharequeue.service_tokens;
