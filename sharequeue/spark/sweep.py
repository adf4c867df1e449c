"""Remove the files and tables of leases that have ended without counting.

A killed run leaves folders whose lease was never acknowledged. Its records come again under another lease, so the
folders are of no use to anybody. The job's sink removes what it has prepared outside the files.
"""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from sharequeue.spark.handler import LEASE
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import (
    SinkNames,
    is_ours,
    refuse_taken,
    remove_lease,
    sink_root,
)
from sharequeue.spark.output.manifest import ELSEWHERE, PENDING
from sharequeue.spark.table import Removed
from sharequeue.state import State
from sharequeue.words.settings import Settings


def sweep_outputs(
    spark: SparkSession, settings: Settings, state: State, job: ShareGroupJob, *, dry_run: bool = False
) -> Removed:
    """Remove the output of leases that are not held any more and do not count in files; return what was removed.

    That is: folders of leases that were never acknowledged, folders of leases whose rows count elsewhere, and what
    the job's sink has prepared for such leases. Folders of another state database are left alone. With `dry_run`
    nothing is removed. Raises SinkTaken when the sink is another's, OutputNotReachable when the output is not there.
    """
    files = Files(spark, settings.output)
    files.reach(settings.output)
    refuse_taken(files, settings, state, job.names)
    orphans = _orphans(files, settings, state, job.names)
    if not dry_run:
        for path in orphans:
            remove_lease(files, path)
    if job.destination is not None:
        orphans += job.destination.sweep(state, job.names, dry_run=dry_run)
    return Removed(orphans, dry_run=dry_run)


def _orphans(files: Files, settings: Settings, state: State, names: SinkNames) -> list[str]:
    found = {sink: _written(files, settings, state, sink) for sink in names.all}
    # Of any group: a folder may have another one's files, where both named a sink alike, or one output in two ways.
    written = (some for folders in found.values() for some in folders.values())
    held, counted = state.outputs.needed(
        {abs(each) for ends, numbers in written for each in (*ends, *numbers)}
    )
    counting = {
        row.location.rpartition("/")[0].rpartition("/")[2]
        for sink in names.all
        for row in state.outputs.counted(names.group, sink)
        if row.location.startswith(PENDING) or not row.location.startswith(ELSEWHERE)
    }
    orphans: list[str] = []
    for sink, folders in found.items():
        for folder, (ends, numbers) in folders.items():
            left = [
                number
                for number in numbers
                if abs(number) not in held
                and (names.exceptions if number < 0 else sink, abs(number)) not in counted
            ]
            # One that counts and has no file any more was emptied by somebody: it is left, as a place to restore to.
            emptied = not numbers and folder.rpartition("/")[2] in counting
            if len(left) == len(numbers) and not ends & held and not emptied:
                orphans.append(folder)
            else:
                orphans += [f"{folder}/{LEASE}={number}" for number in left]
    return orphans


def _written(
    files: Files, settings: Settings, state: State, sink: str
) -> dict[str, tuple[set[int], list[int]]]:
    """Return the folders of this state's writes in a sink, with the ends of their leases, and what each of them has:
    ids of leases, negative for what was not accepted.
    """
    root = sink_root(settings, sink)
    ends = {name: is_ours(name, state) for name in files.names(root)}
    numbers: dict[str, set[int]] = {}
    # One listing of all files: an object store takes as long for a question about each folder.
    for name, number in re.findall(rf"/(leases=[^/]+)/{LEASE}=(-?\d+)/", files.listing(root)):
        numbers.setdefault(name, set()).add(int(number))
    return {
        f"{root}/{name}": (of_name, sorted(numbers.get(name, ())))
        for name, of_name in ends.items()
        if of_name is not None
    }
