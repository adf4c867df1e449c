-- Decides about the results of a sink that are held, because it is not known whether their target has them. With p_location, the
-- transfer counts as written there, and nothing more of it is sent. Without it the reason is removed, and the next run sends
-- what the caller allows. Returns the number of outputs that count as written, null if the transfer of this number is not held.
create or replace function sharequeue.resume_results(p_group_id text, p_sink text, p_number bigint, p_location text)
returns bigint
language plpgsql volatile set search_path = pg_catalog as $$
declare
    v_held sharequeue.transfers;
    v_counted bigint := 0;
begin
    perform sharequeue.require_read_committed();
    perform sharequeue_internal.authorise(p_group_id, 'ALTER');
    perform sharequeue_internal.check_name('the group id', p_group_id), sharequeue_internal.check_name('the sink', p_sink),
        sharequeue_internal.check_present('the number', p_number);
    if p_location is not null then
        perform sharequeue_internal.check_text('the location', p_location, 4096);
    end if;
    select * into v_held from sharequeue.transfers d where d.group_id = p_group_id and d.sink = p_sink for update;
    if v_held.number is distinct from p_number or v_held.held_reason is null then
        return null;
    end if;
    if p_location is null then
        perform sharequeue.hold_transfer(p_group_id, p_sink, p_number, null);
    else
        v_counted := sharequeue.end_transfer(p_group_id, p_sink, p_number, p_location);
    end if;
    perform sharequeue_internal.audit('resume_results', p_group_id,
        jsonb_build_object('sink', p_sink, 'number', p_number, 'rows', v_held.records, 'reason', v_held.held_reason),
        jsonb_build_object('decision', case when p_location is null then 'send again' else 'count as written' end,
            'location', p_location));
    return v_counted;
end
$$;
