"""Run a job's handler on records outside the group's leases: on past records, or on the next ones for a trial.

`selection` has the kinds of selection, `offsets` finds the selected records in the log. `replay` runs the handler on
it and keeps the result in a folder of its own; `report` has the figures. `publishing` merges a replay into the live
output. `trial` runs the handler on the next records and keeps nothing.
"""
