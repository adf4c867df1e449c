"""The assets of a share group, each built from its spec and its group, in the order of a run.

`accepted` leases, handles, writes and acknowledges. `summaries` merges the figures stored with the output.
`dead_letters` writes the dead letters. `reports` records the position of the group. With backfills, `replayed`
replays past records, `published` puts them into the live output, and `history` counts past days.
"""
