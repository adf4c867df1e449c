-- Checks the id of a new group.
create or replace function sharequeue_internal.share_group_named() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue_internal.check_group_id(new.group_id);
    return new;
end
$$;
create or replace trigger share_groups_named before insert on sharequeue.share_groups
    for each row execute function sharequeue_internal.share_group_named();
