-- The state belongs to one database, because what is outside of it (files, tables, dead letters) cannot belong to two. The identity
-- is a row, which every copy of the database has, too. So the row names the place of the database, by what a copy does not have.
-- The place is compared when something begins, not in each operation on records.

-- Returns the place of this database. A dump that is restored, and a database that is made from a template, have another one; a
-- standby, a copy of the server's files and a server that was restarted have the same.
create or replace function sharequeue_internal.place(
    out system_identifier bigint, out database_oid oid, out table_oid oid, out database_name text
)
language plpgsql stable as $$
begin
    select d.oid, d.datname into database_oid, database_name from pg_database d where d.datname = current_database();
    table_oid := to_regclass('sharequeue.state_identity');
    begin
        select c.system_identifier into system_identifier from pg_control_system() as c;
    exception when insufficient_privilege or feature_not_supported then
        -- Some managed server: the two oids are left.
        null;
    end;
end
$$;

-- Returns whether a state's identity is that of this database.
create or replace function sharequeue_internal.is_here(p_bound sharequeue.state_identity) returns boolean
language sql stable as $$
    select (p_bound.database_oid, p_bound.table_oid) = (h.database_oid, h.table_oid)
        and coalesce(p_bound.system_identifier = h.system_identifier, true)
    from sharequeue_internal.place() as h
$$;

-- Returns whether nothing outside can belong to the state: it has no share-partition, no letter that was redriven or
-- discarded, and never had a lease.
create or replace function sharequeue_internal.owns_nothing() returns boolean
language sql stable as $$
    select pg_sequence_last_value('sharequeue.leases_lease_id_seq') is null
        and not exists (select from sharequeue.share_partitions) and not exists (select from sharequeue.redrives)
        and not exists (select from sharequeue.redriven)
$$;

-- Returns the name of a place, for messages.
create or replace function sharequeue_internal.place_name(p_database_name text, p_database_oid oid, p_system_identifier bigint)
returns text
language sql immutable as $$
    select format('database %s (oid %s of server %s)', p_database_name, p_database_oid,
        coalesce(p_system_identifier::text, 'unknown'))
$$;

-- Returns the identity, of this place. A state that owns nothing is bound to its place, with new ids. A copy of any other state is
-- refused with INCONSISTENT_CLUSTER_ID.
create or replace function sharequeue_internal.own_identity() returns sharequeue.state_identity
language plpgsql volatile as $$
declare
    v_bound sharequeue.state_identity;
    v_here record;
begin
    select * into v_bound from sharequeue.state_identity;
    if found and sharequeue_internal.is_here(v_bound) then
        return v_bound;
    end if;
    select * into v_here from sharequeue_internal.place();
    if v_bound.state_id is not null and not sharequeue_internal.owns_nothing() then
        raise exception 'this is %, but its state is that of %, since %: this is a copy. Outputs, dead letters and leases belong to one of '
            'the two. Nothing was changed. To look at the copy, use commands that only read. To work with the original, correct '
            'SHAREQUEUE_DATABASE_URL. If this one is to replace the original (a restore, a move), stop everything that uses the '
            'original, then run `sharequeue adopt`',
            sharequeue_internal.place_name(v_here.database_name, v_here.database_oid, v_here.system_identifier),
            sharequeue_internal.place_name(v_bound.database_name, v_bound.database_oid, v_bound.system_identifier), v_bound.bound_at
            using errcode = 'SQ104';
    end if;
    -- Another session may be doing the same: one of them draws the ids.
    insert into sharequeue.state_identity as i (system_identifier, database_oid, table_oid, database_name, bound_at)
    values (v_here.system_identifier, v_here.database_oid, v_here.table_oid, v_here.database_name, sharequeue.clock())
    on conflict on constraint state_identity_pkey do update
        set state_id = excluded.state_id, origin_id = excluded.origin_id, system_identifier = excluded.system_identifier,
            database_oid = excluded.database_oid, table_oid = excluded.table_oid, database_name = excluded.database_name,
            bound_at = excluded.bound_at
        where not sharequeue_internal.is_here(i);
    select * into v_bound from sharequeue.state_identity;
    return v_bound;
end
$$;

-- Refuses to go on in a copy.
create or replace function sharequeue_internal.refuse_copy() returns void
language plpgsql volatile as $$
begin
    perform sharequeue_internal.own_identity();
end
$$;

-- Returns the ids under which this state names outputs: first the current one, then those from before an adoption, each with the
-- last lease that was its own. A copy is refused.
create or replace function sharequeue.check_identity()
returns table (state_id uuid, last_lease_id bigint, origin_id uuid, bound_at timestamptz)
language plpgsql volatile set search_path = pg_catalog as $$
#variable_conflict use_column
declare
    v_own sharequeue.state_identity;
begin
    perform sharequeue.require_read_committed();
    v_own := sharequeue_internal.own_identity();
    return query
        select v_own.state_id, null::bigint, v_own.origin_id, v_own.bound_at
        union all
        (select f.state_id, f.last_lease_id, v_own.origin_id, v_own.bound_at from sharequeue.former_state_ids f order by f.until desc);
end
$$;

-- Returns where the state is bound and where it is, in words; bound_to is null before its first use. is_copy is true for a
-- copy that check_identity refuses.
create or replace function sharequeue.identity_found(
    out bound_to text, out bound_at timestamptz, out here text, out is_copy boolean
)
language plpgsql stable set search_path = pg_catalog as $$
declare
    v_bound sharequeue.state_identity;
begin
    select sharequeue_internal.place_name(p.database_name, p.database_oid, p.system_identifier) into here
    from sharequeue_internal.place() as p;
    select * into v_bound from sharequeue.state_identity;
    is_copy := found and not (sharequeue_internal.is_here(v_bound) or sharequeue_internal.owns_nothing());
    bound_at := v_bound.bound_at;
    if v_bound.state_id is not null then
        bound_to := sharequeue_internal.place_name(v_bound.database_name, v_bound.database_oid, v_bound.system_identifier);
    end if;
end
$$;

-- Makes this database the one that goes on: from now on every other one with the same identity is refused in the folders of
-- sinks, once this one has written there. Outputs get a new id in their names, so that those that the other one writes are never
-- taken for this one's. Every earlier holder is fenced. Returns the number of share-partitions.
create or replace function sharequeue.adopt() returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_before sharequeue.state_identity;
    v_here record;
    v_last_lease_id bigint;
    v_raised bigint;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise_cluster();
    -- Of the leases that the state knows, before they are fenced. The sequence says less: it also numbers the journal, so
    -- that it may have passed ids that the other database has given to leases since.
    v_last_lease_id := greatest((select max(l.lease_id) from sharequeue.leases l),
        (select max(o.lease_id) from sharequeue.lease_outputs o), (select max(k.lease_id) from sharequeue.kept_records k),
        (select max(j.lease_id) from sharequeue.journal j), 0);
    -- It sets the sequences that a copy is behind with, before the audit log is written.
    v_raised := sharequeue.raise_state_epochs();
    -- Their files belong to the other database as well, which removes them.
    delete from sharequeue.kept_records;
    select * into v_here from sharequeue_internal.place();
    select * into v_before from sharequeue.state_identity for update;
    if not found then
        perform sharequeue_internal.refuse_copy();
        return v_raised;
    end if;
    insert into sharequeue.former_state_ids (state_id, last_lease_id, until)
    values (v_before.state_id, v_last_lease_id, sharequeue.clock());
    update sharequeue.state_identity
    set state_id = gen_random_uuid(), system_identifier = v_here.system_identifier, database_oid = v_here.database_oid,
        table_oid = v_here.table_oid, database_name = v_here.database_name, bound_at = sharequeue.clock();
    perform sharequeue_internal.audit('adopt', null,
        to_jsonb(sharequeue_internal.place_name(v_before.database_name, v_before.database_oid, v_before.system_identifier)),
        to_jsonb(sharequeue_internal.place_name(v_here.database_name, v_here.database_oid, v_here.system_identifier)));
    return v_raised;
end
$$;

-- Announces a mark that a run is about to set in the folder of a sink. p_seen are the marks that it has found there; older ones
-- that are gone from the folder are forgotten.
create or replace function sharequeue.mark_sink(
    p_group_id text, p_folder text, p_seen uuid[], out mark uuid, out marked_at timestamptz
)
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise(p_group_id, 'READ');
    perform sharequeue_internal.refuse_copy();
    perform sharequeue_internal.check_present('the group id', p_group_id), sharequeue_internal.check_text('the folder', p_folder, 4096),
        sharequeue_internal.check_present('the marks', p_seen);
    if array_position(p_seen, null) is not null then
        raise exception 'a mark is missing: expected the id of each mark that was found' using errcode = 'SQ042';
    end if;
    marked_at := sharequeue.clock();
    -- A younger one may be on its way into the folder.
    delete from sharequeue.sink_marks m
    where m.folder = p_folder and m.mark <> all (p_seen) and m.marked_at < mark_sink.marked_at - interval '1 hour';
    insert into sharequeue.sink_marks as m (folder, marked_at) values (p_folder, mark_sink.marked_at)
    returning m.mark into mark;
end
$$;

-- Returns those of these marks that this database has set.
create or replace function sharequeue.known_marks(p_marks uuid[]) returns setof uuid
language sql stable set search_path = pg_catalog as $$
    select m.mark from sharequeue.sink_marks m where m.mark = any (p_marks)
$$;
