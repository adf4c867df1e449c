-- Heartbeats of members and related operations, each one call and one transaction (R-GR). Only the service
-- may call them. Each locks the group's row first. The caller computes the assignment (sharequeue/groups/assignors.py), and
-- holds no lock meanwhile: assign_share_partitions writes nothing if the group has changed since.

-- Returns the group's own number, else the service's, moved into the service's bounds. p_service has the lowest, the default
-- and the highest value.
create or replace function sharequeue_internal.within_bounds(p_own text, p_service integer[]) returns integer
language plpgsql immutable parallel safe as $$
begin
    if cardinality(p_service) is distinct from 3 or array_position(p_service, null) is not null
            or p_service[2] not between p_service[1] and p_service[3] or p_service[1] < 0 then
        raise exception 'a config of the service is %: expected three numbers in rising order: minimum, value, maximum', p_service
            using errcode = 'SQ042';
    end if;
    return least(greatest(coalesce(p_own::integer, p_service[2]), p_service[1]), p_service[3]);
end
$$;

-- Checks the fields of a heartbeat (those of R-GR-0 that do not depend on the group's state). They are checked nowhere else. A
-- field of blanks is empty: Kafka trims it as Java does. Raises INVALID_REQUEST and INVALID_TOPIC.
create or replace function sharequeue_internal.check_heartbeat(
    p_group_id text, p_member_id text, p_member_epoch integer, p_rack_id text, p_topics text[], p_client_id text
) returns void
language plpgsql immutable as $$
declare
    v_blank constant text := '^[\x01-\x20]*$';
    v_topic text;
begin
    if coalesce(length(p_member_id), 0) not between 1 and 36 then
        raise exception 'The member id has % characters: expected 1 to 36, for example a UUID.',
            coalesce(length(p_member_id), 0) using errcode = 'SQ042';
    elsif p_member_id ~ v_blank then
        raise exception 'The member id must not be blank: give, for example, a UUID.' using errcode = 'SQ042';
    elsif coalesce(p_group_id, '') ~ v_blank then
        raise exception 'The group id must not be empty: give the id of the share group.' using errcode = 'SQ042';
    elsif p_rack_id ~ v_blank then
        raise exception 'The rack id must not be empty: give the id of the rack, or leave it out.' using errcode = 'SQ042';
    elsif greatest(length(p_group_id), length(p_rack_id), length(p_client_id)) > 249 then
        raise exception 'The % id has % characters: expected at most 249.',
            case when length(p_group_id) > 249 then 'group' when length(p_rack_id) > 249 then 'rack' else 'client' end,
            greatest(length(p_group_id), length(p_rack_id), length(p_client_id)) using errcode = 'SQ042';
    elsif p_member_epoch = 0 and coalesce(cardinality(p_topics), 0) = 0 then
        raise exception 'A member that joins (member epoch 0) must subscribe: give subscribed_topic_names.'
            using errcode = 'SQ042';
    elsif coalesce(p_member_epoch, -1) < 0 then
        raise exception 'Member epoch % is not valid: expected 0 to join, -1 to leave, or the epoch of the last response.',
            coalesce(p_member_epoch::text, 'null') using errcode = 'SQ042';
    end if;
    perform sharequeue_internal.check_present('the client id', p_client_id);
    -- Kafka accepts any text here. But no topic can have such a name, so the member would wait for ever.
    select coalesce(t.name, 'null') into v_topic from unnest(p_topics) as t (name)
    where t.name is null or t.name !~ '^[a-zA-Z0-9._-]{1,249}$' or t.name in ('.', '..') limit 1;
    if found then
        raise exception 'The topic name % is not legal: use 1 to 249 letters, digits, dots, underscores and hyphens, and not "." or "..".',
            to_json(left(v_topic, 60)) using errcode = 'SQ017';
    end if;
end
$$;

-- Returns a member's assignment, only with topics to which it is still subscribed.
create or replace function sharequeue.assignment_of(p_group_id text, p_member_id text) returns jsonb
language plpgsql stable set search_path = pg_catalog as $$
begin
    return (
        select coalesce(jsonb_agg(jsonb_build_object('topic_id', t.topic_id, 'topic_name', t.topic,
            'partitions', t.partitions) order by t.topic), '[]')
        from (
            select sp.topic_id, sp.topic, jsonb_agg(sp.partition order by sp.partition) as partitions
            from sharequeue.assignments a
            join sharequeue.share_partitions sp using (share_partition_id)
            join sharequeue.members m on m.group_id = a.group_id and m.member_id = a.member_id
            where a.group_id = p_group_id and a.member_id = p_member_id and sp.topic = any (m.subscribed_topic_names)
            group by sp.topic_id, sp.topic) as t);
end
$$;

-- Returns the input of the assignor if an assignment is due (R-GR-5); null if none is due: the group's epoch, each member's
-- share-partitions and topics (only topics with assignable share-partitions), and each topic's share-partitions.
create or replace function sharequeue_internal.due_assignment(p_group_id text, p_interval_ms integer) returns jsonb
language plpgsql volatile as $$
declare
    v_at timestamptz := sharequeue.clock();
    v_epoch integer;
    v_partitions jsonb;
begin
    select g.group_epoch into v_epoch from sharequeue.share_groups g
    where g.group_id = p_group_id and g.assignment_epoch < g.group_epoch and (g.assigned_at is null
        -- A time in the future was stored before the clock was set back.
        or v_at - g.assigned_at >= p_interval_ms * interval '1 millisecond' or sharequeue_internal.is_ahead(g.assigned_at, v_at));
    if not found then
        return null;
    end if;
    select coalesce(jsonb_object_agg(t.topic, t.ids), '{}') into v_partitions
    from (select s.topic, jsonb_agg(s.share_partition_id) as ids
        from sharequeue.assignable_share_partitions(p_group_id) s group by s.topic) as t;
    return jsonb_build_object(
        'group_epoch', v_epoch,
        'subscriptions', (
            -- A subscription may name thousands of topics that do not exist: no caller needs them.
            select coalesce(jsonb_object_agg(m.member_id, array(
                select n.name from unnest(m.subscribed_topic_names) as n (name) where v_partitions ? n.name)), '{}')
            from sharequeue.members m where m.group_id = p_group_id),
        'partitions', v_partitions,
        'current', (
            select coalesce(jsonb_object_agg(t.member_id, t.ids), '{}')
            from (select a.member_id, jsonb_agg(a.share_partition_id) as ids
                from sharequeue.assignments a where a.group_id = p_group_id group by a.member_id) as t));
end
$$;

-- ShareGroupHeartbeat of a member that joins (epoch 0) or stays. Null for p_subscribed_topic_names or p_rack_id
-- means "as before". The milliseconds are the service's configs, three numbers each: the least, the value, the most.
-- An error is SQLSTATE SQnnn, where nnn is Kafka's error number; nothing has changed then. With p_assign, while an
-- assignment is due, only to_assign is returned: compute the assignment, write it with assign_share_partitions, and
-- repeat the call. Otherwise the member gets the assignment that the group has; assignment is null when it is the
-- same as the last one returned (R-GR-8). p_principal is the caller; null is the service itself, which may send
-- heartbeats for all members.
create or replace function sharequeue.heartbeat(
    p_group_id text, p_member_id text, p_member_epoch integer, p_rack_id text, p_subscribed_topic_names text[],
    p_client_id text, p_client_host text, p_max_size integer, p_session_timeout_ms integer[],
    p_heartbeat_interval_ms integer[], p_assignment_interval_ms integer[], p_assign boolean,
    p_principal text default null, out member_epoch integer, out session_timeout_ms integer, out heartbeat_interval_ms integer, out assignment jsonb,
    out to_assign jsonb
)
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_asked boolean := p_member_epoch = 0 or p_subscribed_topic_names is not null;
    v_member sharequeue.members;
    v_configs record;
    v_topics text[];
    v_at timestamptz;
begin
    perform sharequeue_internal.authorise_cluster();
    -- As on a broker: for a caller without the right this is the first error, whatever else is wrong.
    perform sharequeue_internal.authorise_heartbeat(p_group_id, p_principal, p_subscribed_topic_names);
    perform sharequeue_internal.check_heartbeat(p_group_id, p_member_id, p_member_epoch, p_rack_id,
        p_subscribed_topic_names, p_client_id);
    perform sharequeue_internal.check_present('the client host', p_client_host),
        sharequeue_internal.check_between('the maximum size of a group', p_max_size, 1, 2147483647),
        sharequeue_internal.check_present('p_assign', p_assign);
    loop
        if p_member_epoch = 0 then
            insert into sharequeue.share_groups (group_id) values (p_group_id) on conflict do nothing;
        end if;
        exit when sharequeue_internal.lock_group(p_group_id);
        -- A group that is deleted in between is created again.
        if p_member_epoch <> 0 then
            raise exception 'There is no share group %. Join with member epoch 0 to create it.', p_group_id
                using errcode = 'SQ069';
        end if;
    end loop;
    v_at := sharequeue.clock();

    select * into v_member from sharequeue.members m where m.group_id = p_group_id and m.member_id = p_member_id;
    perform sharequeue_internal.check_membership(
        v_member, p_group_id, p_member_id, p_member_epoch, p_max_size, p_principal);

    -- The member is alive.
    select max(c.value) filter (where c.name = 'share.session.timeout.ms') as session,
        max(c.value) filter (where c.name = 'share.heartbeat.interval.ms') as heartbeat,
        max(c.value) filter (where c.name = 'share.assignment.interval.ms') as assignment
    into v_configs from sharequeue.group_configs c where c.group_id = p_group_id;
    session_timeout_ms := sharequeue_internal.within_bounds(v_configs.session, p_session_timeout_ms);
    heartbeat_interval_ms := sharequeue_internal.within_bounds(v_configs.heartbeat, p_heartbeat_interval_ms);
    v_topics := case when p_subscribed_topic_names is null then v_member.subscribed_topic_names
        else array(select distinct t.name collate "C" from unnest(p_subscribed_topic_names) as t (name) order by 1) end;
    if v_member.member_id is null then
        insert into sharequeue.members (group_id, member_id, member_epoch, rack_id, client_id, client_host,
            subscribed_topic_names, joined_at, heartbeat_at, session_expires_at, principal)
        values (p_group_id, p_member_id, 0, p_rack_id, p_client_id, p_client_host, v_topics, v_at, v_at,
            v_at + session_timeout_ms * interval '1 millisecond', p_principal);
    else
        update sharequeue.members m
        set rack_id = coalesce(p_rack_id, m.rack_id), client_id = p_client_id, client_host = p_client_host,
            subscribed_topic_names = v_topics, heartbeat_at = v_at,
            told_is_received = m.told_is_received or m.member_epoch = p_member_epoch,
            session_expires_at = v_at + session_timeout_ms * interval '1 millisecond'
        where m.group_id = p_group_id and m.member_id = p_member_id;
    end if;

    -- The group's epochs (R-GR-4, R-GR-5).
    perform sharequeue.raise_group_epoch(p_group_id, v_topics is distinct from v_member.subscribed_topic_names);
    if p_assign then
        to_assign := sharequeue_internal.due_assignment(
            p_group_id, sharequeue_internal.within_bounds(v_configs.assignment, p_assignment_interval_ms));
        if to_assign is not null then
            return;
        end if;
    end if;

    -- The member jumps to the assignment's epoch (R-GR-7); a changed assignment is returned (R-GR-8).
    select g.assignment_epoch into member_epoch from sharequeue.share_groups g where g.group_id = p_group_id;
    -- A member that still has the previous epoch did not receive the last response. A broker would not send it again, and the
    -- member would work with its assignment of before, or with none.
    v_asked := v_asked or (p_member_epoch <> v_member.member_epoch and not v_member.told_is_received);
    if v_asked or member_epoch is distinct from v_member.member_epoch then
        assignment := sharequeue_internal.tell_assignment(
            p_group_id, p_member_id, member_epoch, v_topics, v_member.told_share_partition_ids, v_asked);
    end if;
end
$$;

-- Checks that a member may send a heartbeat: first our own check of the principal, then those of R-GR-0 that depend on the
-- members: their number, the member, its epoch. p_member is its row; null if the group does not have it.
create or replace function sharequeue_internal.check_membership(
    p_member sharequeue.members, p_group_id text, p_member_id text, p_member_epoch integer, p_max_size integer, p_principal text
) returns void
language plpgsql stable as $$
begin
    if p_member.member_id is not null and sharequeue_internal.is_other_principal(p_member.principal, p_principal) then
        perform sharequeue_internal.refuse_other_principal(p_group_id, p_member_id, p_principal);
    end if;
    if p_member.member_id is null then
        if (select count(*) from sharequeue.members m where m.group_id = p_group_id) >= p_max_size then
            raise exception 'Group % has % members, the maximum of `group.share.max.size`. Stop one, or raise the limit.',
                p_group_id, p_max_size using errcode = 'SQ081';
        elsif p_member_epoch <> 0 then
            perform sharequeue_internal.refuse_stranger(p_group_id, p_member_id);
        end if;
    elsif p_member_epoch > p_member.member_epoch
            or p_member_epoch not in (0, p_member.member_epoch, p_member.previous_member_epoch) then
        -- A member that did not receive the last response still has the previous epoch.
        raise exception 'Member epoch % is % %, the current epoch of member % (its previous one was %). Abandon the leases and join again with epoch 0.',
            p_member_epoch, case when p_member_epoch > p_member.member_epoch then 'above' else 'below' end,
            p_member.member_epoch, p_member_id, p_member.previous_member_epoch using errcode = 'SQ110';
    end if;
end
$$;

-- Returns a member's assignment for its response, and records it with its epoch; null if it is the one that was returned before
-- (p_told) and was not asked for.
create or replace function sharequeue_internal.tell_assignment(
    p_group_id text, p_member_id text, p_epoch integer, p_topics text[], p_told bigint[], p_asked boolean
) returns jsonb
language plpgsql volatile as $$
declare
    v_told bigint[] := array(
        select a.share_partition_id from sharequeue.assignments a
        join sharequeue.share_partitions sp using (share_partition_id)
        where a.group_id = p_group_id and a.member_id = p_member_id and sp.topic = any (p_topics)
        order by a.share_partition_id);
begin
    update sharequeue.members m
    set previous_member_epoch = case when m.member_epoch = p_epoch then m.previous_member_epoch else m.member_epoch end,
        member_epoch = p_epoch, told_share_partition_ids = v_told,
        told_is_received = m.told_is_received and m.told_share_partition_ids is not distinct from v_told
    where m.group_id = p_group_id and m.member_id = p_member_id
        and (m.member_epoch <> p_epoch or m.told_share_partition_ids is distinct from v_told);
    return case when p_asked or v_told is distinct from p_told then sharequeue.assignment_of(p_group_id, p_member_id) end;
end
$$;

-- Raises UNKNOWN_MEMBER_ID unless the group has the member.
create or replace function sharequeue_internal.refuse_stranger(p_group_id text, p_member_id text) returns void
language plpgsql immutable as $$
begin
    raise exception '% is not a member of group %: it never joined, left, or its session expired. Join again with member epoch 0.',
        p_member_id, p_group_id using errcode = 'SQ025';
end
$$;

-- Checks the rights for a heartbeat (R-GR-0): READ on the group, and DESCRIBE on the topics that it names. Without a
-- principal the caller is the service itself.
create or replace function sharequeue_internal.authorise_heartbeat(p_group_id text, p_principal text, p_topics text[])
returns void
language plpgsql stable as $$
declare
    v_topic text;
begin
    if p_principal is null then
        return;
    elsif sharequeue_internal.check_name('the principal', p_principal) not like 'User:_%' then
        raise exception 'the principal is not valid: expected User:<name>, not %', p_principal using errcode = 'SQ042';
    elsif not sharequeue_internal.allowed('GROUP', p_group_id, 'READ', p_principal) then
        raise exception '% may not READ group %', p_principal, p_group_id using errcode = 'SQ030';
    end if;
    select t.name into v_topic from unnest(p_topics) as t (name)
    where not sharequeue_internal.allowed('TOPIC', t.name, 'DESCRIBE', p_principal) limit 1;
    if found then
        raise exception '% may not DESCRIBE topic %', p_principal, v_topic using errcode = 'SQ029';
    end if;
end
$$;

-- Returns the topics that the broker was not seen to have, of those that a heartbeat of the principal may name in the group.
-- The others are left out, because the time of a lookup would show which topics exist.
create or replace function sharequeue.unknown_topics(p_group_id text, p_principal text, p_topics text[]) returns text[]
language plpgsql stable set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_present('the group id', p_group_id),
        sharequeue_internal.check_present('the topics', p_topics);
    return array(
        select distinct u.name collate "C" from unnest(p_topics) as u (name)
        where not exists (select from sharequeue.topics t where t.topic = u.name and t.partitions > 0)
            and (p_principal is null or (sharequeue_internal.allowed('GROUP', p_group_id, 'READ', p_principal)
                and sharequeue_internal.allowed('TOPIC', u.name, 'DESCRIBE', p_principal)))
        order by 1);
end
$$;

-- Returns whether the caller is another principal than the member's. The service itself (null) acts for all members. A member
-- that joined through the database, without a principal, belongs to the service's role alone.
create or replace function sharequeue_internal.is_other_principal(p_of_member text, p_of_caller text) returns boolean
language sql immutable parallel safe as $$
    select p_of_caller is not null and p_of_member is distinct from p_of_caller
$$;

-- Raises GROUP_AUTHORIZATION_FAILED if another principal joined as the member. Unlike in Kafka, a member belongs to its
-- principal.
create or replace function sharequeue_internal.refuse_other_principal(p_group_id text, p_member_id text, p_principal text)
returns void
language plpgsql immutable as $$
begin
    raise exception 'member % of group % belongs to another principal than %', p_member_id, p_group_id, p_principal
        using errcode = 'SQ030';
end
$$;

-- ShareGroupHeartbeat of a member that leaves (epoch -1), at any epoch. Records that it still holds stay locked until their
-- lock expires, as in Kafka. p_principal as for heartbeat: the member's own, or one that may ALTER the group.
create or replace function sharequeue.leave_group(p_group_id text, p_member_id text, p_principal text default null)
returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.authorise_heartbeat(p_group_id, p_principal, '{}');
    perform sharequeue_internal.check_heartbeat(p_group_id, p_member_id, 1, null, null, '');
    if not sharequeue_internal.lock_group(p_group_id) then
        raise exception 'There is no share group %: check the group id.', p_group_id using errcode = 'SQ069';
    end if;
    if exists (select from sharequeue.members m
            where m.group_id = p_group_id and m.member_id = p_member_id
                and sharequeue_internal.is_other_principal(m.principal, p_principal))
            and not sharequeue_internal.allowed('GROUP', p_group_id, 'ALTER', p_principal) then
        perform sharequeue_internal.refuse_other_principal(p_group_id, p_member_id, p_principal);
    end if;
    delete from sharequeue.members m where m.group_id = p_group_id and m.member_id = p_member_id;
    if not found then
        perform sharequeue_internal.refuse_stranger(p_group_id, p_member_id);
    end if;
    perform sharequeue_internal.note_leavers(p_group_id, 1);
end
$$;

-- Raises the group epoch by one for each member that left, if other members remain. A group without members needs no
-- assignment, and its next member need not wait.
create or replace function sharequeue_internal.note_leavers(p_group_id text, p_members integer) returns void
language plpgsql volatile as $$
declare
    v_any_member constant boolean := exists (select from sharequeue.members m where m.group_id = p_group_id);
begin
    update sharequeue.share_groups g
    set group_epoch = g.group_epoch + least(p_members, 2147483647 - g.group_epoch),
        assignment_epoch = case when v_any_member then g.assignment_epoch
            else g.group_epoch + least(p_members, 2147483647 - g.group_epoch) end,
        assigned_at = case when v_any_member then g.assigned_at end
    where g.group_id = p_group_id and p_members > 0;
end
$$;

-- Removes the members of a group whose session has expired, releases their records, and returns their ids. A heartbeat in the
-- future, from before the clock was set back, counts as one of now. Raises COORDINATOR_NOT_AVAILABLE (SQ015) while another
-- transaction has locked the group.
create or replace function sharequeue.expire_members(p_group_id text) returns text[]
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_gone text[];
    v_at timestamptz;
begin
    perform sharequeue_internal.authorise_cluster();
    perform from sharequeue.share_groups g where g.group_id = p_group_id for no key update skip locked;
    if not found then
        raise exception 'Group % is locked by another transaction. Try again in a moment.', p_group_id
            using errcode = 'SQ015';
    end if;
    v_at := sharequeue.clock();
    update sharequeue.members m
    set session_expires_at = m.session_expires_at - (m.heartbeat_at - v_at), heartbeat_at = v_at
    where m.group_id = p_group_id and m.heartbeat_at > v_at;
    with gone as (
        delete from sharequeue.members m where m.group_id = p_group_id and m.session_expires_at <= v_at
        returning m.member_id)
    select coalesce(array_agg(gone.member_id order by gone.member_id), '{}') into v_gone from gone;
    perform sharequeue_internal.release_held(p_group_id, v_gone, p_reason => 'SessionExpired: no heartbeat came before the '
        'session ended: the process that held the record was killed, or could not reach the service');
    perform sharequeue_internal.note_leavers(p_group_id, cardinality(v_gone));
    return v_gone;
end
$$;

-- Raises a group's epoch if its topics have changed, as a heartbeat does. Returns the epoch, null if there is no such group,
-- and the input of the assignor if an assignment is due.
create or replace function sharequeue.refresh_group(
    p_group_id text, p_assignment_interval_ms integer[], out group_epoch integer, out to_assign jsonb
)
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise_cluster();
    if sharequeue_internal.lock_group(p_group_id) then
        perform sharequeue.raise_group_epoch(p_group_id, false);
        select g.group_epoch into group_epoch from sharequeue.share_groups g where g.group_id = p_group_id;
        to_assign := sharequeue_internal.due_assignment(p_group_id, sharequeue_internal.within_bounds((
            select c.value from sharequeue.group_configs c
            where c.group_id = p_group_id and c.name = 'share.assignment.interval.ms'), p_assignment_interval_ms));
    end if;
end
$$;

-- Writes the whole assignment that was computed for a group's epoch, as pairs of member and share-partition. Returns false,
-- and writes nothing, if the group now has another epoch or this epoch already has an assignment.
create or replace function sharequeue.assign_share_partitions(
    p_group_id text, p_group_epoch integer, p_member_ids text[], p_share_partition_ids bigint[]
) returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise_cluster();
    if cardinality(p_member_ids) is distinct from cardinality(p_share_partition_ids)
            or array_position(p_member_ids, null) is not null or array_position(p_share_partition_ids, null) is not null
            or p_member_ids is null then
        raise exception 'the assignment is not valid: expected one member for each share-partition, and no nulls'
            using errcode = 'SQ042';
    end if;
    perform from sharequeue.share_groups g
    where g.group_id = p_group_id and g.group_epoch = p_group_epoch and g.assignment_epoch < g.group_epoch
    for no key update;
    if not found then
        return false;
    end if;
    delete from sharequeue.assignments a
    where a.group_id = p_group_id and not exists (
        select from unnest(p_member_ids, p_share_partition_ids) as t (member_id, id)
        where t.member_id = a.member_id and t.id = a.share_partition_id);
    -- A share-partition may have been deleted since.
    insert into sharequeue.assignments (group_id, member_id, share_partition_id)
    select m.group_id, m.member_id, sp.share_partition_id
    from unnest(p_member_ids, p_share_partition_ids) as t (member_id, id)
    join sharequeue.members m on m.group_id = p_group_id and m.member_id = t.member_id
    join sharequeue.share_partitions sp on sp.share_partition_id = t.id and sp.group_id = p_group_id
    order by sp.share_partition_id
    on conflict on constraint assignments_pkey do nothing;
    -- An empty assignment does not delay the next one: the first member of a new group gets its share-partitions
    -- as soon as they are initialised.
    update sharequeue.share_groups g
    set assignment_epoch = g.group_epoch,
        assigned_at = case when cardinality(p_member_ids) > 0 then sharequeue.clock() end
    where g.group_id = p_group_id;
    return true;
end
$$;
