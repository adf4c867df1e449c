"""The same handler once more on records of the past, beside the live group.

`wanted` says which records are meant. `choosing` finds their offsets in the log. `replay` runs the handler on them
and keeps what it made in a folder of its own. `report` has the figures.
`publishing` puts a replay into the live output, `table` into a table of Postgres.
"""
