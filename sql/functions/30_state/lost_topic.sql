-- Returns the message for a topic that was deleted, and perhaps created again, since a group began to process it: the cause and
-- what to do. This text is only here.
create or replace function sharequeue_internal.lost_topic(p_group_id text, p_topic text, p_made_again boolean)
returns text
language sql immutable parallel safe as $$
    select format(case when p_made_again
        then 'topic %1$s was deleted and created again. The state of group %2$s belongs to the old topic, and nothing of the new '
            'one is leased. To start with the new one, stop the members of the group and run `sharequeue offsets reset --group '
            '%2$s --topic %1$s --to-earliest --execute`'
        else 'topic %1$s was deleted: group %2$s has no records of it left. Create it again, or unsubscribe from it' end,
        p_topic, p_group_id)
$$;
