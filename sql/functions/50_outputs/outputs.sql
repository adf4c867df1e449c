-- Returns why a value is not a list of outputs; null if it is one: [{"sink": …, "location": …, "records": …}, …], each sink
-- once.
create or replace function sharequeue_internal.outputs_fault(p_outputs jsonb) returns text
language plpgsql immutable parallel safe as $$
declare
    v_output jsonb;
    v_sinks text[] := '{}';
begin
    if p_outputs = '[]' then
        return null;
    elsif p_outputs is null or jsonb_typeof(p_outputs) <> 'array' then
        return 'the outputs are not valid: expected a list of objects with sink, location and records';
    end if;
    for v_output in select * from jsonb_array_elements(p_outputs) loop
        if jsonb_typeof(v_output) <> 'object' or jsonb_typeof(v_output->'sink') is distinct from 'string'
                or jsonb_typeof(v_output->'location') is distinct from 'string'
                or jsonb_typeof(v_output->'records') is distinct from 'number' then
            return 'an output is not valid: expected a sink and a location as texts, and records as a number';
        elsif length(v_output->>'sink') not between 1 and 249 or length(v_output->>'location') not between 1 and 4096 then
            return 'an output is not valid: expected a sink of 1 to 249 characters, and a location of 1 to 4,096';
        elsif (v_output->>'records')::numeric not between 0 and 9223372036854775807
                or (v_output->>'records')::numeric <> trunc((v_output->>'records')::numeric) then
            return 'the records of an output must be a whole number, 0 or more';
        elsif v_output->>'sink' = any (v_sinks) then
            return format('sink %s is named twice: give one output for each sink', v_output->>'sink');
        end if;
        v_sinks := v_sinks || (v_output->>'sink');
    end loop;
    return null;
end
$$;

-- Returns the lease of the outputs of an acknowledgement, or why they cannot count. Lapsed locks have been ended before.
create or replace function sharequeue_internal.check_outputs(
    p_id bigint, p_member_id text, p_token uuid, p_acknowledgements sharequeue.acknowledgements, p_outputs jsonb,
    out error_code smallint, out error_message text, out lease_id bigint
)
language plpgsql stable as $$
#variable_conflict use_column
declare
    v_span int8multirange := sharequeue_internal.span(p_acknowledgements);
    v_outside bigint;
    v_sink text;
begin
    error_code := 0;
    select min(l.lease_id) into lease_id from sharequeue.leases l
    where l.share_partition_id = p_id and l.token = p_token and l.member_id = p_member_id;
    if lease_id is not null and not isempty(v_span) then
        v_outside := sharequeue_internal.first_outside(p_acknowledgements,
            sharequeue_internal.held(p_id, lower(v_span), upper(v_span) - 1, p_member_id, p_token));
    end if;
    if lease_id is null or v_outside is not null then
        error_code := 121;
        error_message := case when lease_id is null then 'an output needs the token of a lease that is still held'
            else format('an output needs a lease that holds every offset acknowledged with it, but offset %s is not held', v_outside)
            end || ': its lock lapsed, it was acknowledged already, or another member holds it';
        return;
    end if;
    select c.sink into v_sink from sharequeue.lease_outputs c
    where c.lease_id = check_outputs.lease_id and c.sink in (select o->>'sink' from jsonb_array_elements(p_outputs) as o)
    limit 1;
    if found then
        error_code := 42;
        error_message := format('sink %s already has an output of lease %s: give the output only in the acknowledgement '
            'that ends the lease', v_sink, lease_id);
    end if;
end
$$;

-- Returns the folder of the sink of a location: the part before the folder of a write. Null if the location is not such a
-- folder.
create or replace function sharequeue_internal.sink_folder(p_location text) returns text
language sql immutable parallel safe as $$
    select substring(p_location from '^(?:sink:pending:)?(.+)/(?:leases?|compacted)=[^/]+(?:/[^/]*)?$')
$$;

-- Claims the sink folders of outputs for this group: a folder belongs to the first group with an output in it. Returns an error
-- if another group has one of them, for example because two functions have the same name. A path that is too long for an index
-- entry is not claimed.
create or replace function sharequeue_internal.claim_folders(p_group_id text, p_outputs jsonb) returns text
language plpgsql volatile as $$
declare
    v_folders text[];
    v_taken record;
begin
    select array_agg(distinct f.folder) into v_folders
    from (select sharequeue_internal.sink_folder(o->>'location') as folder from jsonb_array_elements(p_outputs) as o) as f
    where octet_length(f.folder) <= 2000 and not exists (
        select from sharequeue.sink_folders s where s.folder = f.folder and s.group_id = p_group_id);
    if v_folders is null then
        return null;
    end if;
    -- In one order. It waits for another transaction that claims the same one.
    insert into sharequeue.sink_folders (folder, group_id)
    select folder, p_group_id from unnest(v_folders) as folder order by folder
    on conflict on constraint sink_folders_pkey do nothing;
    select s.folder, s.group_id into v_taken
    from sharequeue.sink_folders s where s.folder = any (v_folders) and s.group_id <> p_group_id order by s.folder limit 1;
    if found then
        return format('%s has the output of group %s, not of %s: nothing was acknowledged. Give the pipeline of each group '
            'a sink of its own', v_taken.folder, v_taken.group_id, p_group_id);
    end if;
    return null;
end
$$;

-- Returns the groups to which these folders belong; no row for a folder without an output that counts.
create or replace function sharequeue.sink_owners(p_folders text[]) returns table (folder text, group_id text)
language sql stable set search_path = pg_catalog as $$
    select s.folder, s.group_id from sharequeue.sink_folders s where s.folder = any (p_folders) order by s.folder
$$;

-- Returns those of these leases, of any group, whose files may still be needed: `held` ones, and those with outputs
-- that count in files (`sink`), or have kept records (`kept`). The files of other leases are not needed.
create or replace function sharequeue.needed_outputs(p_lease_ids bigint[])
returns table (lease_id bigint, held boolean, sink text, kept boolean)
language sql stable set search_path = pg_catalog as $$
    -- In one statement: a lease that is acknowledged meanwhile is held or counts.
    select l.lease_id, true, null, false from sharequeue.leases l where l.lease_id = any (p_lease_ids)
    union all
    select k.lease_id, false, null, true from sharequeue.kept_records k where k.lease_id = any (p_lease_ids)
    union all
    select o.lease_id, false, o.sink, false from sharequeue.lease_outputs o
    where o.lease_id = any (p_lease_ids) and (starts_with(o.location, 'sink:pending:') or not starts_with(o.location, 'sink:'))
$$;
