"""The demo of the main job: `python -m orchestration.demo`, which `make demo` runs.

`position` reads the progress of the group, `run` is the process of a run, `runs` launches and watches them, `waiting`
waits for the locks of dead runs, `summary` prints the results, `__main__` combines them. The demo does not do the
queue's work: a run of the Dagster job does, in a process of its own.
"""
