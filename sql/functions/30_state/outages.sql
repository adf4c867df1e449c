-- Locks do not lapse because of an outage of the database: while they cannot be renewed, their time stops.
--
-- The service writes a beat every second. After a crash of Postgres, the first call that checks lapsed locks finds that Postgres
-- was down since the last beat (was_away), or that there was no beat for a long time (was_silent). It records the period in which
-- no lock could be renewed. The service records the same after it could not write its beat. A lock that was valid at the last beat,
-- and that would have lapsed in the outage, continues afterwards with its remaining time. A lock that was taken or renewed in the
-- meantime does not: its holder could reach the database. Without a service there are no beats, and locks lapse by the clock.

-- Returns how long beats may be missing before this counts as an outage. If Postgres stands still (its processes stopped, its
-- machine suspended), the only trace is that beats are missing. The first call that checks lapsed locks, of the service or of a
-- member that renews, finds the silence and records it, once for each beat. A dead service has the same effect: then a lock is
-- extended once by its remaining time.
create or replace function sharequeue_internal.longest_silence() returns interval
language sql immutable parallel safe as $$ select pg_catalog.make_interval(secs => 10) $$;

-- Returns whether the silence since a beat must be recorded: it is long, and has not been recorded yet.
create or replace function sharequeue_internal.was_silent(p_beat sharequeue.service_beat) returns boolean
language sql volatile as $$
    select p_beat.outage_from is distinct from p_beat.beat_at
        and sharequeue.clock() - p_beat.beat_at > sharequeue_internal.longest_silence()
$$;

-- Returns the time in which holders must reach the database again after an outage. It is also the longest time before an outage
-- in which a lock can have been taken or renewed without a later beat.
create or replace function sharequeue_internal.outage_margin() returns interval
language sql immutable parallel safe as $$ select pg_catalog.make_interval(secs => 5) $$;

-- Records that the service is alive. Returns the length of the outage that this beat ends; null if there was none.
create or replace function sharequeue.beat(p_longer_than interval default null) returns interval
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_span('the longest silence', coalesce(p_longer_than, interval '0'));
    insert into sharequeue.service_beat as b (beat_at, server_started_at)
    values (sharequeue.clock(), pg_postmaster_start_time()) on conflict on constraint service_beat_pkey do nothing;
    if found then
        insert into sharequeue.service_run default values on conflict on constraint service_run_pkey do nothing;
        return null;
    end if;
    return sharequeue_internal.note_outage(p_longer_than, true);
end
$$;

-- Returns whether Postgres was down since a beat: it is another server process, or has recovered from a crash. The death of one
-- backend is enough for such a recovery.
create or replace function sharequeue_internal.was_away(p_beat sharequeue.service_beat) returns boolean
language sql stable as $$
    select p_beat.server_started_at <> pg_postmaster_start_time() or not exists (select from sharequeue.service_run)
$$;

-- Corrects a beat in the future: the clock was set back since. It counts as one of now, and an outage in the future is no
-- longer one. A step of more than a second is recorded, as a fault of the service.
create or replace function sharequeue_internal.note_set_back(p_beat sharequeue.service_beat, p_at timestamptz)
returns sharequeue.service_beat
language plpgsql volatile as $$
declare
    v_beat sharequeue.service_beat := p_beat;
begin
    if sharequeue_internal.is_ahead(p_beat.beat_at, p_at) then
        v_beat.set_back_at := p_at;
        v_beat.set_back_by := p_beat.beat_at - p_at;
    end if;
    if p_beat.outage_until > p_at + sharequeue_internal.outage_margin() then
        v_beat.outage_from := null;
        v_beat.outage_until := null;
    end if;
    v_beat.beat_at := p_at;
    update sharequeue.service_beat set beat_at = v_beat.beat_at, outage_from = v_beat.outage_from,
        outage_until = v_beat.outage_until, set_back_at = v_beat.set_back_at, set_back_by = v_beat.set_back_by;
    return v_beat;
end
$$;

-- Records an outage if there was one since the last beat: Postgres was down, or beats were missing for longer than the argument.
create or replace function sharequeue_internal.note_outage(p_longer_than interval, p_beat boolean) returns interval
language plpgsql volatile as $$
declare
    v_beat sharequeue.service_beat;
    v_at timestamptz;
begin
    select * into v_beat from sharequeue.service_beat for no key update;
    v_at := sharequeue.clock();
    if v_beat.beat_at > v_at then
        v_beat := sharequeue_internal.note_set_back(v_beat, v_at);
    end if;
    if sharequeue_internal.was_away(v_beat) or v_at - v_beat.beat_at > p_longer_than then
        insert into sharequeue.service_run default values on conflict on constraint service_run_pkey do nothing;
        update sharequeue.service_beat
        set outage_from = v_beat.beat_at, outage_until = v_at + sharequeue_internal.outage_margin(), beat_at = v_at,
            server_started_at = pg_postmaster_start_time();
        return v_at - v_beat.beat_at;
    elsif not p_beat and sharequeue_internal.was_silent(v_beat) then
        -- The beat stays as it is: the service has not written one.
        update sharequeue.service_beat
        set outage_from = v_beat.beat_at, outage_until = v_at + sharequeue_internal.outage_margin();
        return v_at - v_beat.beat_at;
    elsif p_beat then
        update sharequeue.service_beat set beat_at = v_at;
    end if;
    return null;
end
$$;

-- Extends the locks of a share-partition that would have lapsed only because of the last outage. Called before lapsed locks are
-- ended. A second call changes nothing, because the extended locks end after the outage.
create or replace function sharequeue_internal.outlast_outage(p_share_partition_id bigint, p_at timestamptz) returns void
language plpgsql volatile as $$
declare
    v_beat sharequeue.service_beat;
begin
    select * into v_beat from sharequeue.service_beat;
    if not found then
        return;
    end if;
    if sharequeue_internal.was_away(v_beat) or sharequeue_internal.was_silent(v_beat) then
        -- Skipped while another call has the row: it records the same. A call that waited for the row might hold a
        -- share-partition that the other one waits for (30_state/lock_order.sql).
        perform from sharequeue.service_beat for no key update skip locked;
        if found then
            perform sharequeue_internal.note_outage(null, false);
        end if;
        select * into v_beat from sharequeue.service_beat;
        if sharequeue_internal.was_away(v_beat) or sharequeue_internal.was_silent(v_beat) then
            v_beat.outage_from := least(v_beat.beat_at, sharequeue.clock());
            v_beat.outage_until := sharequeue.clock() + sharequeue_internal.outage_margin();
        end if;
    end if;
    if v_beat.outage_until is not null then
        update sharequeue.leases set expires_at = expires_at + (v_beat.outage_until - v_beat.outage_from)
        where share_partition_id = p_share_partition_id and expires_at <= p_at
            and expires_at > v_beat.outage_from and expires_at <= v_beat.outage_until
            and locked_at <= v_beat.outage_from + sharequeue_internal.outage_margin();
    end if;
end
$$;

-- Extends every lock, before a call can treat it as lapsed. Called by operators, and by a service that was not running for some
-- time. Share-partitions are locked in the order of their ids.
create or replace function sharequeue.extend_locks(p_amount interval) returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_ids bigint[];
    v_extended bigint;
begin
    perform sharequeue_internal.authorise_cluster();
    perform sharequeue_internal.check_span('the additional time', p_amount);
    v_ids := sharequeue_internal.lock_in_order(null, false, true);
    update sharequeue.leases set expires_at = expires_at + p_amount where share_partition_id = any (v_ids);
    get diagnostics v_extended = row_count;
    update sharequeue.share_partitions set next_expiry = next_expiry + p_amount
    where share_partition_id = any (v_ids) and next_expiry is not null;
    perform sharequeue_internal.audit('extend_locks', null, null,
        jsonb_build_object('amount', p_amount::text, 'leases', v_extended));
    return v_extended;
end
$$;
