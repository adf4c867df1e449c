"""The order by key of a group with `sharequeue.order=key`: a record waits for the earlier ones of its key.

`frames` marks the records that wait for a record outside their lease, before a handler gets the others. `cut` finds
those behind the first record of their key that was not accepted, after the handler, before anything counts.
"""
