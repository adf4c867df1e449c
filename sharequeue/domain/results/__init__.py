"""What pipelines have done, as values that need no Spark: `print` shows them, and Dagster gets them from elsewhere.

`runs` has the reports of rounds and runs, `replays` those of replays and their publication, `summaries` the result of
a merge. `table` prints them. `launches` has what Dagster and a process that it has launched say to each other.
"""
