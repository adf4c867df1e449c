"""Half of a run's workers take the files that need a session of Spark, and the other half all others.

A session and what it loads for its first job take 25 s of CPU time. So a worker of the other half makes one only when
no other files are left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
FOLDER = "tests/integration/spark/"
ASKS_FOR_SPARK = re.compile(r"\bspark: SparkSession|: RunJob")


@cache
def needs_spark(file: str) -> bool:
    """Whether tests of a file, as pytest names it, need the session."""
    return file.startswith(FOLDER) or ASKS_FOR_SPARK.search((ROOT / file).read_text()) is not None


def next_file(files: Iterable[str], worker: str, workers: int) -> str:
    """The first of these files of the kind that a worker takes, or the first of all."""
    waiting = list(files)
    with_spark = int(worker.removeprefix("gw")) < (workers + 1) // 2
    return next((file for file in waiting if needs_spark(file) is with_spark), waiting[0])


class SparkInHalf(LoadFileScheduling):  # type: ignore[misc]
    """Gives each worker its next file."""

    def _assign_work_unit(self, node: Any) -> None:
        wanted = next_file(self.workqueue, node.gateway.id, self.numnodes)
        self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)
