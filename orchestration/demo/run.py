"""The process of one run of the demo's job: `python -m orchestration.demo.run BOUNDS TAGS`, both as JSON.

The run is one of the Dagster instance of DAGSTER_HOME, as every other run of the job.
"""

import json
import sys

import dagster as dg

from orchestration.definitions import defs
from orchestration.demo.queue import NAME


def job() -> dg.JobDefinition:
    """Return the job as the code location defines it."""
    return defs().resolve_job_def(NAME)


def main() -> int:
    """Execute one run; return 0 if it succeeds."""
    bounds, tags = map(json.loads, sys.argv[1:])
    with (
        dg.DagsterInstance.get() as instance,
        dg.execute_job(
            dg.reconstructable(job),
            instance,
            run_config={"ops": {f"{NAME}_accepted": {"config": bounds}}},
            tags=tags,
        ) as result,
    ):
        return 0 if result.success else 1


if __name__ == "__main__":
    # Not `main`: a reconstructable job is found again in its module by name.
    from orchestration.demo import run

    sys.exit(run.main())
