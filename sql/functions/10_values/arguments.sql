-- What the operations ask of their arguments before they touch anything. Each check raises INVALID_REQUEST (SQ042; a group
-- id INVALID_GROUP_ID, SQ024) with what was given and what is expected, and otherwise gives the value back. The hot
-- operations return the same in their rows, by functions of their own.

-- Something has to be given.
create or replace function sharequeue_internal.check_present(p_what text, p_value anyelement) returns anyelement
language plpgsql immutable parallel safe as $$
begin
    if p_value is null then
        raise exception '% is missing: give one', p_what using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- Text for people to read: of some length, not of any.
create or replace function sharequeue_internal.check_text(p_what text, p_value text, p_longest integer) returns text
language plpgsql immutable parallel safe as $$
begin
    if p_value is null or length(p_value) not between 1 and p_longest then
        raise exception '% has % characters: give 1 to %', p_what, coalesce(length(p_value), 0), p_longest
            using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- A name: 1 to 249 characters, Kafka's longest for a topic, none of them a control character, which would forge lines of a
-- log.
create or replace function sharequeue_internal.check_name(p_what text, p_value text) returns text
language plpgsql immutable parallel safe as $$
begin
    perform sharequeue_internal.check_text(p_what, p_value, 249);
    if p_value ~ '[\x01-\x1f\x7f]' then
        raise exception '% has a control character in it: leave it out', p_what using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- The same for the id of a group that is to be made, which is not blank either; Kafka's word for it is another. Asked by a
-- trigger of share_groups, so by every way to make one.
create or replace function sharequeue_internal.check_group_id(p_group_id text) returns text
language plpgsql immutable parallel safe as $$
begin
    if p_group_id ~ '^ +$' then
        raise exception 'the group id is blank: give 1 to 249 characters, one of them no blank' using errcode = 'SQ042';
    end if;
    return sharequeue_internal.check_name('the group id', p_group_id);
exception when sqlstate 'SQ042' then
    raise exception '%', sqlerrm using errcode = 'SQ024';
end
$$;

-- A whole number within bounds.
create or replace function sharequeue_internal.check_between(p_what text, p_value bigint, p_least bigint, p_most bigint)
returns bigint
language plpgsql immutable parallel safe as $$
begin
    if p_value is null or p_value not between p_least and p_most then
        raise exception '% is %: give a number between % and %', p_what, coalesce(p_value::text, 'missing'), p_least,
            p_most using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- A time span that is not negative, and short enough to be added to a time.
create or replace function sharequeue_internal.check_span(p_what text, p_value interval) returns interval
language plpgsql immutable parallel safe as $$
begin
    if p_value is null or p_value not between interval '0' and interval '100 years' then
        raise exception '% is %: give a time span between 0 and 100 years', p_what, coalesce(p_value::text, 'missing')
            using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- Why something cannot be a set of offsets; null where it can.
create or replace function sharequeue_internal.offsets_fault(p_offsets int8multirange) returns text
language plpgsql immutable parallel safe as $$
begin
    if p_offsets is null or lower_inf(p_offsets) or upper_inf(p_offsets) or lower(p_offsets) < 0
            or upper(p_offsets) > 9223372036854775807 then
        return 'a set of offsets lies between 0 and 2^63 - 2 and has both ends';
    end if;
    return null;
end
$$;

create or replace function sharequeue_internal.check_offsets(p_offsets int8multirange) returns int8multirange
language plpgsql immutable parallel safe as $$
begin
    if sharequeue_internal.offsets_fault(p_offsets) is not null then
        raise exception '%', sharequeue_internal.offsets_fault(p_offsets) using errcode = 'SQ042';
    end if;
    return p_offsets;
end
$$;

-- Why something cannot be the time before which a released record is not delivered; null where it can. A time that has
-- passed is as good as none.
create or replace function sharequeue_internal.not_before_fault(p_not_before timestamptz) returns text
language plpgsql stable as $$
begin
    if p_not_before = 'infinity' or p_not_before > sharequeue.clock() + interval '100 years' then
        return 'records wait for 100 years at most: to keep them for good, reject them';
    end if;
    return null;
end
$$;
