"""A run in a process that kills itself so long after a step: `python -m tests.deep.killed_run <a Death as JSON>`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import SharePartition
from sharequeue.kafka.topics import Topics
from sharequeue.spark import ParquetByLease, lease_results, spark_session
from sharequeue.spark.outcomes.acknowledging import acknowledge_all
from sharequeue.spark.run import run_rounds
from sharequeue.state import State
from tests.fixtures.lakes import lake_sink
from tests.fixtures.pipelines import Holder, job_of
from tests.fixtures.stack import REPOSITORY

MOST = 30
"""Records by round: a drain takes several."""


@dataclass(frozen=True, slots=True)
class Death:
    """When a run ends, and what it works on."""

    home: str
    database_url: str
    output: str
    group: str
    topic: str
    kind: str
    name: str
    conf: Mapping[str, str]
    at: str
    """`handling`, `acknowledging`, `acknowledged`, or a step of a transfer."""
    nth: int
    """Counted from 1."""
    delay_ms: int


def killed(death: Death) -> bool:
    """Run in a process of its own; return whether it was killed, False if it had ended before."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.deep.killed_run", json.dumps(asdict(death))],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode != 0


def with_values(records: DataFrame) -> DataFrame:
    """Accept everything, with the value, except every tenth, which is rejected."""
    values = records.select(
        "topic", "partition", "offset", "lease_id", fn.col("value").cast("string").alias("uid")
    )
    return values.withColumn("outcome", fn.when(fn.col("offset") % 10 == 7, "reject").otherwise("accept"))


def main() -> None:
    """Run until the step comes."""
    death = Death(**json.loads(sys.argv[1]))
    left = death.nth

    def reached(step: str) -> None:
        nonlocal left
        if step != death.at:
            return
        left -= 1
        if left == 0:
            threading.Timer(death.delay_ms / 1000, partial(os.kill, os.getpid(), signal.SIGKILL)).start()

    def handler(records: DataFrame) -> DataFrame:
        reached("handling")
        return with_values(records)

    def acknowledge(*given: Any) -> Any:
        reached("acknowledging")
        done = acknowledge_all(*given)
        reached("acknowledged")
        return done

    lease_results.acknowledge_all = acknowledge  # type: ignore[attr-defined, assignment]
    jars = [] if death.kind == "parquet" else [death.kind]
    jars += ["s3a"] if death.output.startswith("s3a:") else []
    given = {"database_url": death.database_url, "output": death.output, "spark_jars": ",".join(jars)}
    settings = Settings.load(death.home, **given)
    # A lake's own step `acknowledged` also comes when it is opened: the one above does not.
    on_step = lambda step: reached(step) if step != "acknowledged" else None  # noqa: E731
    sink = ParquetByLease() if death.kind == "parquet" else lake_sink(death.kind, death.name, on_step)
    job = job_of(death.group, death.topic, handler, destination=sink)
    holder = Holder([SharePartition(death.group, death.topic, partition) for partition in range(2)], "killed")
    run_rounds(
        settings,
        job,
        membership=holder,
        state=State(Database.open(settings)),
        topics=Topics(settings),
        spark=spark_session(settings, "killed", death.conf),
        max_records=MOST,
    )


if __name__ == "__main__":
    main()
