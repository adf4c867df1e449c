-- The checks that every operation on a share-partition makes before it changes anything, and the lock of one.

-- Locks a share-partition. Returns the locked row with the group's settings, and the error of share_partition_fault.
create or replace function sharequeue_internal.lock_share_partition(
    p_group_id text, p_topic text, p_partition integer, p_state_epoch integer, p_operation text default 'READ',
    out error_code smallint, out error_message text, out sp sharequeue.share_partitions,
    out settings sharequeue.group_settings
)
language plpgsql volatile as $$
begin
    perform sharequeue.require_read_committed();
    select s.* into sp from sharequeue.share_partitions s
    where s.group_id = p_group_id and s.topic = p_topic and s.partition = p_partition for update;
    if found then
        select g.* into settings from sharequeue.group_settings g where g.group_id = p_group_id;
    end if;
    select f.error_code, f.error_message into error_code, error_message
    from sharequeue_internal.share_partition_fault(sp, settings, p_group_id, p_topic, p_partition, p_state_epoch, p_operation) as f;
end
$$;

-- Returns the error of an operation on a locked share-partition, in this order: the caller may do p_operation on the group, and
-- read the topic; the share-partition exists (p_sp is not null), and has the given state epoch (null: any). Error code 0 if all
-- checks pass. ACLs are checked after the lock, because a boolean of the settings, which are read anyway, shows if none apply.
create or replace function sharequeue_internal.share_partition_fault(
    p_sp sharequeue.share_partitions, p_settings sharequeue.group_settings, p_group_id text, p_topic text,
    p_partition integer, p_state_epoch integer, p_operation text, out error_code smallint, out error_message text
)
language plpgsql stable as $$
begin
    error_code := 0;
    if p_settings.acls_apply is distinct from false or p_sp.share_partition_id is null then
        if not sharequeue_internal.authorised(p_group_id, p_operation) then
            error_code := 30;
            error_message := format('%s may not %s group %s', sharequeue.principal(), p_operation, p_group_id);
            return;
        elsif not sharequeue_internal.topic_authorised(p_topic, 'READ') then
            error_code := 29;
            error_message := format('%s may not READ topic %s', sharequeue.principal(), p_topic);
            return;
        end if;
    end if;
    if p_sp.share_partition_id is not null then
        if p_state_epoch is not null and p_state_epoch <> p_sp.state_epoch then
            error_code := 124;
            error_message := format('state epoch %s is not the current one, %s: the offsets were reset since',
                p_state_epoch, p_sp.state_epoch);
        end if;
    elsif exists (select from sharequeue.share_groups where group_id = p_group_id) then
        error_code := 3;
        error_message := format('share-partition %s-%s of group %s is not initialised', p_topic, p_partition, p_group_id);
    else
        error_code := 69;
        error_message := format('there is no share group %s', p_group_id);
    end if;
end
$$;

-- Checks that a member may act: the group has it, and its epoch is the current or the previous one (a lost heartbeat response).
-- Without a member epoch any member id may, as on a broker.
create or replace function sharequeue_internal.check_member(
    p_group_id text, p_member_id text, p_member_epoch integer, out error_code smallint, out error_message text
)
language plpgsql stable as $$
declare
    v_member record;
begin
    error_code := 0;
    if p_member_id is null or length(p_member_id) not between 1 and 36 then
        error_code := 42;
        error_message := 'the member id is not valid: expected 1 to 36 characters';
        return;
    end if;
    if p_member_epoch is null then
        return;
    end if;
    select member_epoch, previous_member_epoch into v_member
    from sharequeue.members where group_id = p_group_id and member_id = p_member_id;
    if not found then
        error_code := 25;
        error_message := format('%s is not a member of group %s: it left, or its session expired', p_member_id, p_group_id);
    elsif p_member_epoch not in (v_member.member_epoch, v_member.previous_member_epoch) then
        error_code := 110;
        error_message := format('member epoch %s is not the current one, %s', p_member_epoch, v_member.member_epoch);
    end if;
end
$$;
