create or replace function sharequeue.share_group_named() returns trigger
language plpgsql volatile set search_path = pg_catalog as $$
begin
    perform sharequeue.check_group_id(new.group_id);
    return new;
end
$$;
create or replace trigger share_groups_named before insert on sharequeue.share_groups
    for each row execute function sharequeue.share_group_named();
