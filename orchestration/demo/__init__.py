"""The main job, shown: `python -m orchestration.demo`, which is what `make demo` runs.

`position` says how far the group is, `runs` launches and watches, `waiting` waits for what dead runs still
hold, `summary` prints what happened, `__main__` is the way through all of it. Nothing here does the queue's
work: a run of the Dagster job does, in a process of its own.
"""
