"""Remove the files of leases that have ended without output that counts.

A killed run leaves folders whose lease was never acknowledged. Its records are delivered again in another lease, so
the folders are no longer needed. Raw records that were kept for their next delivery are removed when none of them can
be delivered again, or if the group no longer keeps any. What a sink has prepared outside the files is removed by its
next run.
"""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import chain

from pyspark.sql import SparkSession

from sharequeue.domain.results.table import Removed
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import GroupConfigs
from sharequeue.outputs.manifest import ELSEWHERE, PENDING
from sharequeue.spark.handler import LEASE
from sharequeue.spark.job import ShareGroupJob
from sharequeue.spark.kept_records import sweep_kept
from sharequeue.spark.output.compaction import sweep_compactions
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import SinkNames, is_kept, is_ours, lease_in, remove_lease, sink_root
from sharequeue.spark.output.owners import refuse_taken
from sharequeue.state import State

A_DAY = timedelta(days=1)
"""Longer than a compaction or a publication takes: every run sweeps, and would end those that take longer."""


def sweep_outputs(
    spark: SparkSession,
    settings: Settings,
    state: State,
    job: ShareGroupJob,
    *,
    grace: timedelta = A_DAY,
    dry_run: bool = False,
) -> Removed:
    """Remove the output of leases that are no longer held and whose files do not count. Return what was removed.

    These are folders of leases that were never acknowledged, folders of leases whose rows count elsewhere, and kept
    records that no lease reads any more. After the grace period, these are also the folders that compactions and
    publications have replaced, and the new folders of those that were killed before they counted. Folders of another
    state database are not touched. With `dry_run` nothing is removed. Raises SinkTaken if another group or state
    database owns the sink, and OutputNotReachable if the output cannot be reached.
    """
    files = Files(spark, settings.output)
    files.reach(settings.output)
    refuse_taken(files, settings, state, job.names)
    orphans = _orphans(files, settings, state, job.names)
    if not dry_run:
        for path in orphans:
            remove_lease(files, path)
    configs = GroupConfigs.load(state.database, job.group)
    kept = sweep_kept(spark, settings, state, configs, files=files, dry_run=dry_run)
    replaced = [
        sweep_compactions(spark, settings, state, job.group, sink, grace=grace, dry_run=dry_run)
        for sink in job.names.all
    ]
    return Removed([*orphans, *kept, *chain(*replaced)], dry_run=dry_run)


def _orphans(files: Files, settings: Settings, state: State, names: SinkNames) -> list[str]:
    found = {sink: _written(files, settings, state, sink) for sink in names.all}
    # Of any group: a folder may have files of another group, if both gave a sink the same name, or if they wrote the
    # address of the same output in different ways.
    written = (some for folders in found.values() for some in folders.values())
    held, counted, kept = state.outputs.needed(
        {lease_in(each) for ends, numbers in written for each in (*ends, *numbers)}
    )

    def needed(sink: str, number: int) -> bool:
        lease_id = lease_in(number)
        if is_kept(number):
            return lease_id in held or lease_id in kept
        return lease_id in held or (names.exceptions if number < 0 else sink, lease_id) in counted

    counting = {
        row.location.rpartition("/")[0].rpartition("/")[2]
        for sink in names.all
        for row in state.outputs.counted(names.group, sink)
        if row.location.startswith(PENDING) or not row.location.startswith(ELSEWHERE)
    }
    orphans: list[str] = []
    for sink, folders in found.items():
        for folder, (ends, numbers) in folders.items():
            left = [number for number in numbers if not needed(sink, number)]
            # A folder without files may count: they were removed, or were written and acknowledged after the listing.
            emptied = not numbers and folder.rpartition("/")[2] in counting
            if len(left) == len(numbers) and not ends & held and not emptied:
                orphans.append(folder)
            else:
                orphans += [f"{folder}/{LEASE}={number}" for number in left]
    return orphans


def _written(
    files: Files, settings: Settings, state: State, sink: str
) -> dict[str, tuple[set[int], list[int]]]:
    """Return the folders in a sink that this state has written, each with the first and last lease id in its name,
    and the numbers of the folders of leases that have files in it.
    """
    root = sink_root(settings, sink)
    ends = {name: is_ours(name, state) for name in files.names(root)}
    numbers: dict[str, set[int]] = {}
    # One listing of all files: an object store takes as long for the listing of a single folder.
    for name, number in re.findall(rf"/(leases=[^/]+)/{LEASE}=(-?\d+)/", files.listing(root)):
        numbers.setdefault(name, set()).add(int(number))
    return {
        f"{root}/{name}": (of_name, sorted(numbers.get(name, ())))
        for name, of_name in ends.items()
        if of_name is not None
    }
