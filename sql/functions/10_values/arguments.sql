-- Checks of arguments. Operations call them before they change anything. Each check returns the value, or raises
-- INVALID_REQUEST (SQ042; for a group id INVALID_GROUP_ID, SQ024) with the given and the expected value. The hot
-- operations have functions of their own, and return the error in their rows.

-- Requires a value.
create or replace function sharequeue_internal.check_present(p_what text, p_value anyelement) returns anyelement
language plpgsql immutable parallel safe as $$
begin
    if p_value is null then
        raise exception '% is missing: expected a value, not null', p_what using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- Requires a text of 1 to p_longest characters.
create or replace function sharequeue_internal.check_text(p_what text, p_value text, p_longest integer) returns text
language plpgsql immutable parallel safe as $$
begin
    if p_value is null or length(p_value) not between 1 and p_longest then
        raise exception '% has % characters: expected 1 to %', p_what, coalesce(length(p_value), 0), p_longest
            using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- Requires a name: 1 to 249 characters, as in Kafka's topic names, and no control characters, because they could forge
-- lines of a log.
create or replace function sharequeue_internal.check_name(p_what text, p_value text) returns text
language plpgsql immutable parallel safe as $$
begin
    perform sharequeue_internal.check_text(p_what, p_value, 249);
    if p_value ~ '[\x01-\x1f\x7f]' then
        raise exception '% has a control character: remove it', p_what using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- The same for the id of a new group, which must not be blank either. Kafka has an error of its own for it. A trigger of
-- share_groups calls this, so that it applies to every way to create a group.
create or replace function sharequeue_internal.check_group_id(p_group_id text) returns text
language plpgsql immutable parallel safe as $$
begin
    if p_group_id ~ '^ +$' then
        raise exception 'the group id is blank: expected 1 to 249 characters, not only blanks' using errcode = 'SQ042';
    end if;
    return sharequeue_internal.check_name('the group id', p_group_id);
exception when sqlstate 'SQ042' then
    raise exception '%', sqlerrm using errcode = 'SQ024';
end
$$;

-- Requires a whole number within bounds.
create or replace function sharequeue_internal.check_between(p_what text, p_value bigint, p_least bigint, p_most bigint)
returns bigint
language plpgsql immutable parallel safe as $$
begin
    if p_value is null or p_value not between p_least and p_most then
        raise exception '% is %: expected a number from % to %', p_what, coalesce(p_value::text, 'missing'), p_least,
            p_most using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- Requires a time span that is not negative, and short enough to be added to a time.
create or replace function sharequeue_internal.check_span(p_what text, p_value interval) returns interval
language plpgsql immutable parallel safe as $$
begin
    if p_value is null or p_value not between interval '0' and interval '100 years' then
        raise exception '% is %: expected a time span from 0 to 100 years', p_what, coalesce(p_value::text, 'missing')
            using errcode = 'SQ042';
    end if;
    return p_value;
end
$$;

-- Returns the reason why a value is not a set of offsets; null if it is one.
create or replace function sharequeue_internal.offsets_fault(p_offsets int8multirange) returns text
language plpgsql immutable parallel safe as $$
begin
    if p_offsets is null or lower_inf(p_offsets) or upper_inf(p_offsets) or lower(p_offsets) < 0
            or upper(p_offsets) > 9223372036854775807 then
        return 'a set of offsets must have both ends, and offsets from 0 to 2^63 - 2';
    end if;
    return null;
end
$$;

-- Requires a set of offsets.
create or replace function sharequeue_internal.check_offsets(p_offsets int8multirange) returns int8multirange
language plpgsql immutable parallel safe as $$
begin
    if sharequeue_internal.offsets_fault(p_offsets) is not null then
        raise exception '%', sharequeue_internal.offsets_fault(p_offsets) using errcode = 'SQ042';
    end if;
    return p_offsets;
end
$$;

-- Returns the reason why a time cannot be the one before which a released record is not delivered; null if it can. A time in
-- the past has no effect.
create or replace function sharequeue_internal.not_before_fault(p_not_before timestamptz) returns text
language plpgsql stable as $$
begin
    if p_not_before = 'infinity' or p_not_before > sharequeue.clock() + interval '100 years' then
        return 'records can wait for at most 100 years: to stop their delivery, reject them';
    end if;
    return null;
end
$$;
