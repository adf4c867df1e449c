"""A second code location beside the demo's: its handler's module reaches Spark's workers, wherever the run starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sharequeue.domain.settings import Settings
from sharequeue.local import dagster_ui
from sharequeue.local.home import Home
from sharequeue.state import State
from tests.fixtures.cluster import Cluster
from tests.fixtures.pipelines import Produce
from tests.fixtures.stack import MakeTopic

pytestmark = pytest.mark.slow

LOCATION = """
import dagster as dg
from sharequeue.dagster import ShareGroup, share_group_defs, share_group_resources

group = ShareGroup(
    group="{group}", topics=["{topic}"], pipeline="{module}:handle",
    configs={{"share.auto.offset.reset": "earliest"}},
)
records = dg.define_asset_job("records", selection=dg.AssetSelection.assets(dg.AssetKey([group.name, "accepted"])))
defs = dg.Definitions.merge(
    share_group_defs(group),
    # An executor that fits into a worker of the cluster.
    share_group_resources(conf={{"spark.executor.memory": "512m"}}),
    dg.Definitions(jobs=[records], executor=dg.multiprocess_executor),
)
"""
"""Its job has one step: each is a process more."""
HANDLER = '''
import pandas as pd

SUFFIX = "of a module that the workers import"


def long(outcomes: pd.Series) -> pd.Series:
    """What runs on the workers, by its name in this module."""
    return outcomes.map(lambda value: "accept" if SUFFIX else "reject")


def handle(records):
    from pyspark.sql import functions as fn

    chosen = fn.pandas_udf(long, "string")
    return records.select("topic", "partition", "offset", "lease_id").withColumn("outcome", chosen("topic"))
'''


LOCATIONS = pytest.mark.parametrize(
    ("module", "location", "how"),
    [
        ("shop_of_two.orders", "shop_of_two/location.py", ("-m", "shop_of_two.location")),
        pytest.param(
            "single_orders", "single_location.py", ("-f", "single_location.py"), marks=pytest.mark.deep
        ),
    ],
)
Execute = Callable[..., None]


@pytest.fixture
def execute(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    state: State,
    settings: Settings,
    service: str,
    tmp_path: Path,
) -> Execute:
    """Give a function that executes the job of a location of its own: the run's process starts in another folder."""
    topic = make_topic(1)
    produce(topic, 0, range(10))

    def run(module: str, location: str, how: tuple[str, str], **variables: str) -> None:
        project = tmp_path / "project"
        (project / location).parent.mkdir(parents=True)
        (project / location).write_text(LOCATION.format(group=group, topic=topic, module=module))
        (project / f"{module.replace('.', '/')}.py").write_text(HANDLER)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        flag, named = how
        target = str(project / named) if flag == "-f" else named
        job = ["-m", "dagster", "job", "execute", flag, target, "-d", str(project), "-j"]
        environment = {
            **os.environ,
            **dagster_ui.addresses(settings),
            "DAGSTER_HOME": str(dagster_ui.prepare(Home.at(settings.home))),
            "SHAREQUEUE_SERVICE_URL": service,
            "SHAREQUEUE_OUTPUT": str(tmp_path / "output"),
            "PYTHONPATH": "",
            **variables,
        }
        ran = subprocess.run(
            [sys.executable, "-P", *job, "records"],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr[-6000:]
        (figures,) = state.figures.describe(group)
        assert (figures.spso, figures.lag) == (10, 0)

    return run


@LOCATIONS
def test_a_handler_of_a_second_location_runs_on_sparks_workers(
    execute: Execute, module: str, location: str, how: tuple[str, str]
) -> None:
    """In a package, and in a file beside the location's."""
    execute(module, location, how)


@LOCATIONS
@pytest.mark.deep
def test_a_handler_of_a_second_location_runs_on_a_cluster(
    execute: Execute, cluster: Cluster, module: str, location: str, how: tuple[str, str]
) -> None:
    """The executors of a standalone master, whose Python has no path to the project, get the handler's module."""
    cluster_is = {"SHAREQUEUE_SPARK_MASTER": cluster.master, "SHAREQUEUE_OUTPUT_SHARED": "true"}
    execute(module, location, how, **cluster_is)
