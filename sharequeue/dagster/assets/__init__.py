"""The assets of a share group, each made of its spec and its group: what a run does, from top to bottom.

`accepted` leases, handles, writes and acknowledges. `summaries` merges the figures kept beside the output.
`dead_letters` writes what was given up. `reports` records where the group stands.
"""
