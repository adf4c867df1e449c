-- What has happened to a topic that was deleted, and perhaps made again, since a group began on it, and what to do. Here, and
-- nowhere else, are the words for it.
create or replace function sharequeue_internal.lost_topic(p_group_id text, p_topic text, p_made_again boolean)
returns text
language sql immutable parallel safe as $$
    select format(case when p_made_again
        then 'topic %1$s was deleted and made again. What group %2$s has done is of the old topic, and nothing of the new one '
            'is leased. To begin with the new one, stop the members of the group and run `sharequeue offsets reset --group '
            '%2$s --topic %1$s --to-earliest --execute`'
        else 'topic %1$s was deleted: nothing of it is left for group %2$s. Create it again, or subscribe to it no more' end,
        p_topic, p_group_id)
$$;
