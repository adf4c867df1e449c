"""A queue whose drivers are elsewhere, in a process of Dagster: `launched` runs its jobs where PySpark is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa

from sharequeue.dagster import ShareGroup, share_group_defs, share_group_resources

_START = (
    "import runpy, sys; sys.modules.update(dict.fromkeys(('pyspark', 'py4j')));"
    f"runpy.run_module({__name__!r}, run_name='__main__')"
)
"""The import of a module that is None fails."""


def launched(
    queue: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
    *,
    folder: str,
    environment: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Run jobs of a queue, which launches its drivers by a command, in a new process that cannot import PySpark.

    A job has a `name`, and may have a `config`, a `partition`, `tags`, and a `selection` of assets, with which it is
    a job of its own. Return what each has done.
    """
    given = {"queue": queue, "jobs": jobs, "folder": folder}
    done = subprocess.run(
        [sys.executable, "-c", _START, json.dumps(given)],
        env={**environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _definitions(queue: ShareGroup, folder: str, jobs: Sequence[Mapping[str, Any]]) -> dg.Definitions:
    """The queue, an asset downstream for each of its outputs, and jobs of selections."""

    @dg.asset(ins={"rows": dg.AssetIn(key=[*queue.prefix, "accepted"])})
    def downstream(rows: pa.Table) -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata={"rows": rows.num_rows})

    below = [downstream]
    for name in queue.summaries:

        @dg.asset(name=f"downstream_{name}", ins={"rows": dg.AssetIn(key=[*queue.prefix, name])})
        def of_summary(rows: pd.DataFrame) -> dg.MaterializeResult[None]:
            return dg.MaterializeResult(metadata={"rows": json.dumps(rows.to_dict("records"))})

        below.append(of_summary)
    return dg.Definitions.merge(
        share_group_defs(queue),
        share_group_resources(),
        dg.Definitions(
            assets=below,
            jobs=[dg.define_asset_job(job["name"], job["selection"]) for job in jobs if "selection" in job],
            resources={"elsewhere": dg.PipesSubprocessClient(cwd=folder)},
        ),
    )


def _done(result: dg.ExecuteInProcessResult, instance: dg.DagsterInstance) -> dict[str, Any]:
    """What a job has done, as JSON has it."""
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    made = [
        (event.asset_key, materialization)
        for event in result.all_events
        if event.event_type_value == "ASSET_MATERIALIZATION" and event.asset_key
        for materialization in [event.step_materialization_data.materialization]
    ]
    return {
        "success": result.success,
        "tags": dict(run.tags),
        "lines": [entry.user_message for entry in instance.all_logs(result.run_id)],
        "metadata": {
            "/".join([key.path[-1], *([each.partition] if each.partition else [])]): {
                name: _plain(value.value) for name, value in each.metadata.items()
            }
            for key, each in made
        },
        "checks": {each.check_name: each.passed for each in result.get_asset_check_evaluations()},
    }


def _plain(value: Any) -> Any:
    """A value of metadata as JSON has it, as far as tests look at it."""
    if isinstance(value, dg.TableSchema):
        return {column.name: column.description for column in value.columns}
    if isinstance(value, dg.TableColumnLineage):
        return {
            name: [[dep.asset_key.path[-1], dep.column_name] for dep in deps]
            for name, deps in value.deps_by_column.items()
        }
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def main() -> None:
    """Run the jobs of the first argument, and print what they have done as the last line."""
    given = json.loads(sys.argv[1])
    definitions = _definitions(ShareGroup(**given["queue"]), given["folder"], given["jobs"])
    dg.Definitions.validate_loadable(definitions)
    found = []
    with dg.DagsterInstance.ephemeral() as instance:
        for job in given["jobs"]:
            result = definitions.resolve_job_def(job["name"]).execute_in_process(
                instance=instance,
                raise_on_error=False,
                run_config=job.get("config"),
                partition_key=job.get("partition"),
                tags=job.get("tags"),
            )
            found.append(_done(result, instance))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
