-- Heartbeats of many members in one call that only keep the member alive: they request nothing, and the group
-- has not changed. Returns the positions (from 1 on) of those that are done, with the data for the response. Every
-- other one must go through heartbeat, which reports the error or does the work that is due. No group is locked, and
-- the call waits for no row. It does not check whether a group's topics have changed (R-GR-4), so it is only
-- for replicas that check all groups. The arguments are those of heartbeat.
create or replace function sharequeue.keep_alive(
    p_group_ids text[], p_member_ids text[], p_member_epochs integer[], p_client_ids text[], p_client_hosts text[],
    p_principals text[], p_session_timeout_ms integer[], p_heartbeat_interval_ms integer[]
) returns table (place bigint, session_timeout_ms integer, heartbeat_interval_ms integer)
language plpgsql volatile set search_path = pg_catalog as $$
#variable_conflict use_column
declare
    v_open constant boolean := not exists (select from sharequeue.acls where resource_type = 'GROUP')
        and coalesce((select allow_everyone_if_no_acl_found from sharequeue.authorizer), true);
    v_done bigint[];
    v_at timestamptz;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise_cluster();
    if p_group_ids is null or exists (
            select from unnest(array[cardinality(p_member_ids), cardinality(p_member_epochs), cardinality(p_client_ids),
                cardinality(p_client_hosts), cardinality(p_principals)]) as n
            where n is distinct from cardinality(p_group_ids)) then
        raise exception 'the arrays differ in length: expected one element for each member in each of them'
            using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.within_bounds(null, p_session_timeout_ms),
        sharequeue_internal.within_bounds(null, p_heartbeat_interval_ms);
    v_done := array(
        select a.place
        from unnest(p_group_ids, p_member_ids, p_member_epochs, p_client_ids, p_client_hosts, p_principals)
            with ordinality as a (group_id, member_id, epoch, client_id, client_host, principal, place)
        join sharequeue.share_groups g on g.group_id = a.group_id
        join sharequeue.members m on m.group_id = a.group_id and m.member_id = a.member_id
        where m.member_epoch = a.epoch and g.group_epoch = a.epoch and g.assignment_epoch = a.epoch
            and m.client_id = a.client_id and m.client_host = a.client_host
            and not sharequeue_internal.is_other_principal(m.principal, a.principal)
            -- Checked once for each group and principal, and not at all if there is no ACL on groups.
            and (v_open or a.principal is null or (a.group_id, a.principal) in (
                select o.group_id, o.principal
                from (select distinct u.group_id, u.principal
                    from unnest(p_group_ids, p_principals) as u (group_id, principal)) as o
                where sharequeue_internal.allowed('GROUP', o.group_id, 'READ', o.principal)))
        order by m.group_id, m.member_id for update of m skip locked);
    v_at := sharequeue.clock();
    return query
        with own as materialized (
            select g.group_id,
                sharequeue_internal.within_bounds(max(c.value) filter (where c.name = 'share.session.timeout.ms'),
                    p_session_timeout_ms) as session,
                sharequeue_internal.within_bounds(max(c.value) filter (where c.name = 'share.heartbeat.interval.ms'),
                    p_heartbeat_interval_ms) as heartbeat
            from (select distinct u.group_id from unnest(p_group_ids) as u (group_id)) as g
            left join sharequeue.group_configs c on c.group_id = g.group_id
                and c.name in ('share.session.timeout.ms', 'share.heartbeat.interval.ms')
            group by g.group_id
        ), alive as (
            update sharequeue.members m
            set heartbeat_at = v_at, told_is_received = true, session_expires_at = v_at + o.session * interval '1 millisecond'
            from unnest(v_done) as d (place) join own o on o.group_id = p_group_ids[d.place]
            where m.group_id = o.group_id and m.member_id = p_member_ids[d.place]
        )
        select d.place, o.session, o.heartbeat
        from unnest(v_done) as d (place) join own o on o.group_id = p_group_ids[d.place];
end
$$;
