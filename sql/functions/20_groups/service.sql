-- Replicas of the service: tasks that only one of them does at a time, and the time during which none of them was active.

-- Takes a task for p_seconds, or keeps it if the token already has it. Returns false while another replica has it. A task that
-- was taken in the future, before the clock was set back, can be taken: its holder may be dead, and one that is not is fenced.
create or replace function sharequeue.take_service_lease(
    p_task text, p_holder text, p_token uuid, p_seconds double precision
) returns boolean
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_at timestamptz;
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_text('the task', p_task, 600);
    perform sharequeue_internal.check_name('the holder', p_holder);
    perform sharequeue_internal.check_present('the token', p_token);
    if not coalesce(p_seconds between 1 and 3600, false) then
        raise exception 'the lease of a task must be 1 to 3600 seconds, not %', coalesce(p_seconds::text, 'null')
            using errcode = 'SQ042';
    end if;
    perform from sharequeue.service_leases where task = p_task for update;
    v_at := sharequeue.clock();
    insert into sharequeue.service_leases as l (task, holder, token, taken_at, expires_at)
    values (p_task, p_holder, p_token, v_at, v_at + make_interval(secs => p_seconds))
    on conflict on constraint service_leases_pkey do update
        set holder = excluded.holder, token = excluded.token, taken_at = excluded.taken_at, expires_at = excluded.expires_at
        where l.token = p_token or l.expires_at <= v_at or sharequeue_internal.is_ahead(l.taken_at, v_at);
    return found;
end
$$;

-- The fence: rejects a replica that has lost the task, in the transaction in which it would have written. No other
-- replica can take the task before that transaction ends.
create or replace function sharequeue.hold_service_lease(p_task text, p_token uuid) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_present('the task', p_task), sharequeue_internal.check_present('the token', p_token);
    perform from sharequeue.service_leases where task = p_task and token = p_token for share;
    if not found then
        raise exception 'another replica has the task "%" now', p_task using errcode = 'SQ016';
    end if;
end
$$;

-- Ends the lease of a task, so that any replica may take it. Nothing happens if another replica has it.
create or replace function sharequeue.end_service_lease(p_task text, p_token uuid) returns void
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_present('the task', p_task);
    delete from sharequeue.service_leases where task = p_task and token = p_token;
end
$$;

-- Notes that a replica is at work, and with p_writes_letters that it writes dead letters. With p_silence, at its start and
-- after it could not work: if no replica was heard for longer than that, members could not send heartbeats. Then
-- their sessions continue with their remaining time. Returns the length of the silence, null if there was none. A
-- session whose row another call holds is being renewed, and is not changed. With p_stops, the replica stops in order: it is not
-- missed.
create or replace function sharequeue.hear_replica(
    p_replica_id text, p_silence interval default null, p_writes_letters boolean default false,
    p_stops boolean default false
) returns interval
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_at timestamptz;
    v_heard timestamptz;
    v_silence interval;
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_name('the replica id', p_replica_id);
    perform sharequeue_internal.check_span('the longest silence', coalesce(p_silence, interval '0'));
    perform sharequeue_internal.check_present('p_writes_letters', p_writes_letters),
        sharequeue_internal.check_present('p_stops', p_stops);
    if p_silence is not null then
        -- Two that start together must not both lengthen the sessions.
        perform pg_advisory_xact_lock(7264519032119);
        v_at := sharequeue.clock();
        select max(least(heard_at, v_at)) into v_heard from sharequeue.service_replicas;
        if v_heard is null or v_at - v_heard > p_silence then
            v_silence := v_at - v_heard;
            update sharequeue.members m
            set session_expires_at = case when v_heard is null then greatest(m.session_expires_at, v_at + p_silence)
                else m.session_expires_at + v_silence end
            where (m.group_id, m.member_id) in (
                select k.group_id, k.member_id from sharequeue.members k
                where v_heard is null or k.session_expires_at > v_heard
                order by k.group_id, k.member_id for update skip locked);
        end if;
        delete from sharequeue.service_replicas where heard_at < v_at - interval '1 day';
        delete from sharequeue.service_leases where expires_at < v_at - interval '1 day';
    end if;
    v_at := sharequeue.clock();
    insert into sharequeue.service_replicas as r (replica_id, heard_at, writes_letters, stopped)
    values (p_replica_id, v_at, p_writes_letters, p_stops)
    on conflict on constraint service_replicas_pkey do update
    set heard_at = excluded.heard_at, writes_letters = excluded.writes_letters, stopped = excluded.stopped;
    -- Times from before the clock was set back: otherwise a dead replica would count as the one that was last heard.
    update sharequeue.service_replicas set heard_at = v_at where replica_id = any (array(
        select r.replica_id from sharequeue.service_replicas r where sharequeue_internal.is_ahead(r.heard_at, v_at)
        order by r.replica_id for update skip locked));
    return v_silence;
end
$$;

-- Returns whether a replica of the service that writes dead letters was active in the last 15 s. If not, jobs write
-- those of their group.
create or replace function sharequeue.service_writes_letters() returns boolean
language sql stable set search_path = pg_catalog as $$
    select exists (
        select from sharequeue.service_replicas
        where writes_letters and sharequeue_internal.seconds_unheard(heard_at, sharequeue.clock()) < 15)
$$;

-- Records how many seconds ago a replica last checked the broker's topics, swept, maintained the journal and looked for dead
-- letters; null if it has not yet. The view replicas shows it. Nothing happens for an unknown replica.
create or replace function sharequeue.note_service_work(
    p_replica_id text, p_watched double precision, p_swept double precision, p_journal_kept double precision,
    p_letters_written double precision
) returns void
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_at timestamptz := sharequeue.clock();
    v_age double precision;
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_name('the replica id', p_replica_id);
    foreach v_age in array array[p_watched, p_swept, p_journal_kept, p_letters_written] loop
        if not coalesce(v_age between 0 and 1e9, true) then
            raise exception 'an age must be 0 to 1000000000 seconds, not %', v_age using errcode = 'SQ042';
        end if;
    end loop;
    update sharequeue.service_replicas
    set watched_at = v_at - make_interval(secs => p_watched), swept_at = v_at - make_interval(secs => p_swept),
        journal_kept_at = v_at - make_interval(secs => p_journal_kept),
        letters_written_at = v_at - make_interval(secs => p_letters_written)
    where replica_id = p_replica_id;
end
$$;
