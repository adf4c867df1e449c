"""Reports on share groups: their figures, and the pages and pictures of them.

Figures are named in `sharequeue.domain.figures`. They are read in `read` (a whole group, now and over the last day)
and `waiting_work` (the work for a run); `history` takes the snapshots. What the state does not have is read from the
broker: `ages` (by the timestamps of records), `first_run` (before a group has state).
`parts` formats figures as HTML, `page` makes the page of a report from the parts, and `files` stores it. `drawing`
draws the pictures of pages, `inline_pictures` those that are short enough for a line of metadata.
"""
