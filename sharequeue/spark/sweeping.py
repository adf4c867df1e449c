"""Which files and tables of a job belong to leases that have ended without counting, and can be removed?

A killed run leaves folders whose lease was never acknowledged. Its records come again under another lease, so the
folders are of no use to anybody. The job's sink removes what it has prepared outside the files.
"""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from sharequeue.settings import Settings
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import STAGING, SinkNames, refuse_taken, sink_root
from sharequeue.spark.output.manifest import ELSEWHERE
from sharequeue.spark.showing import Removed
from sharequeue.state import State


def sweep_outputs(
    spark: SparkSession, settings: Settings, state: State, job: ShareGroupJob, *, dry_run: bool = False
) -> Removed:
    """Remove the output of leases that are not held any more and do not count in files; return what was removed.

    That is: folders of leases that were never acknowledged, folders of leases whose rows count elsewhere, and what
    the job's sink has prepared for such leases. Folders of another state database are left alone. With `dry_run`
    nothing is removed. Raises SinkTaken when the sink is another's.
    """
    files = Files(spark, settings.output)
    refuse_taken(files, settings, state, job.names)
    orphans = _orphans(files, settings, state, job.names)
    if not dry_run:
        for path in orphans:
            files.remove(path)
    if job.destination is not None:
        orphans += job.destination.sweep(state, job.names, dry_run=dry_run)
    return Removed(orphans, dry_run=dry_run)


def _orphans(files: Files, settings: Settings, state: State, names: SinkNames) -> list[str]:
    found = [
        (sink, path, leases) for sink in names.all for path, leases in _folders(files, settings, state, sink)
    ]
    # In this order: a lease that is acknowledged between the two questions is in the second result.
    held = {row.lease_id for row in state.figures.leases(names.group)}
    counted = {
        (sink, row.lease_id)
        for sink in names.all
        for row in state.outputs.counted(names.group, sink)
        if not row.location.startswith(ELSEWHERE)
    }
    return [
        path
        for sink, path, leases in found
        if not leases & held
        and (
            path.rpartition("/")[2].startswith("leases=")
            or not any((sink, lease_id) in counted for lease_id in leases)
        )
    ]


def _folders(files: Files, settings: Settings, state: State, sink: str) -> list[tuple[str, set[int]]]:
    root, ours = sink_root(settings, sink), state.outputs.state_id()
    found: list[tuple[str, set[int]]] = []
    for name in files.names(root):
        if match := re.match(rf"^lease={ours}-(\d+)$", name):
            found.append((f"{root}/{name}", {int(match[1])}))
    for name in files.names(f"{root}/{STAGING}"):
        if match := re.match(rf"^leases={ours}-(\d+(?:,\d+)*)", name):
            found.append((f"{root}/{STAGING}/{name}", {int(i) for i in match[1].split(",")}))
    return found
