"""A backfill as the UI launches it, on a real webserver and daemon: cancelled midway, resumed, executed again."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from orchestration.demo.queue import NAME, QUEUE
from pipelines.flights.producer import produce
from sharequeue.dagster.names import GROUP_TAG, REPLAY_TAG
from sharequeue.state import State
from tests.fixtures.demo import GROUP, DemoStack
from tests.fixtures.stack import REPOSITORY
from tests.servers.webserver import Webserver
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FLIGHTS = 3000
"""Three days and a little more."""
DAYS = ["2013-01-01", "2013-01-02", "2013-01-03"]
REPLAYED = {"path": [NAME, "replayed"]}
until = partial(wait_until, seconds=2 * PATIENCE_S)

_LAUNCH = """mutation ($wanted: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $wanted) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_AGAIN = """mutation ($of: ReexecutionParams!) { reexecutePartitionBackfill(reexecutionParams: $of) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_CANCEL = """mutation ($id: String!) { cancelPartitionBackfill(backfillId: $id) {
    __typename ... on PythonError { message } } }"""
_STATUS = """query ($id: String!) { partitionBackfillOrError(backfillId: $id) {
    ... on PartitionBackfill { status } ... on PythonError { message } } }"""


@pytest.fixture(scope="module")
def demo(demo_stack: DemoStack) -> tuple[DemoStack, Webserver]:
    """Give a stack with webserver and daemon, with three days of flights of which the group has done some."""
    command = [sys.executable, "-m", "sharequeue.cli", "up", "--ui", "-o", "json", "--home"]
    up = subprocess.run(
        [*command, str(demo_stack.home)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert up.returncode == 0, up.stdout + up.stderr
    produce(demo_stack.settings, limit=FLIGHTS)
    with demo_stack.database() as database:
        QUEUE.configure(database)
    ui = Webserver(json.loads(up.stdout)["dagster"])
    config: dict[str, Any] = {"max_records": 1000, "max_rounds": 1}
    run = ui.launch(NAME, {"ops": {f"{NAME}_accepted": {"config": config}}})
    assert ui.ends(run) == "SUCCESS"
    return demo_stack, ui


def figures(demo: DemoStack) -> list[Any]:
    """What a backfill must not change. The service goes on looking at the logs, so when it last did is left out."""
    journal = (
        "select max(journal_id) as last from sharequeue.journal join sharequeue.share_partitions sp"
        " using (share_partition_id) where sp.group_id = :group_id"
    )
    with demo.database() as database:
        state = State(database)
        return [
            [
                (each.partition, each.spso, each.speo, each.lag, each.delivery_complete_count, each.archiving)
                for each in state.figures.describe(GROUP)
            ],
            state.figures.delivery_counts(GROUP),
            state.figures.leases(GROUP),
            state.dead_letters.written(GROUP),
            state.outputs.counted(GROUP, "flights"),
            database.rows(sa.text(journal), group_id=GROUP),
        ]


def files(demo: DemoStack) -> dict[str, list[str]]:
    """The rows of each day, in order; stand-ins of leases are left out."""
    root = demo.settings.local_output / "replays" / GROUP / "flights"
    found = {}
    for day in DAYS:
        for kind in ("accepted", "exceptions"):
            if (root / day / kind).is_dir():
                table = pq.ParquetDataset(root / day / kind).read()
                found[f"{day}/{kind}"] = sorted(map(str, table.drop_columns("lease_id").to_pylist()))
    return found


def backfill(ui: Webserver, days: list[str]) -> str:
    wanted = {"assetSelection": [REPLAYED], "partitionNames": days, "title": "a test"}
    launched = ui.ask(_LAUNCH, wanted=wanted)
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    return str(launched["backfillId"])


def again(ui: Webserver, backfill_id: str, strategy: str) -> str:
    launched = ui.ask(_AGAIN, of={"parentRunId": backfill_id, "strategy": strategy})
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    return str(launched["backfillId"])


def ends(ui: Webserver, backfill_id: str) -> str:
    def status() -> str:
        return str(ui.ask(_STATUS, id=backfill_id)["status"])

    done = ("COMPLETED_SUCCESS", "COMPLETED_FAILED", "COMPLETED", "FAILED", "CANCELED")
    until(lambda: status() in done, otherwise=ui.runs)
    return status()


def test_resumed_and_repeated_backfills_equal_a_clean_one(
    demo: tuple[DemoStack, Webserver], told: list[str]
) -> None:
    """What a clean backfill made, one that was cancelled and resumed makes too, and one executed again; the
    live group's figures are the same before and after."""
    stack, ui = demo
    before, first = figures(stack), {each["runId"] for each in ui.runs()}
    cancelled = backfill(ui, DAYS)
    until(lambda: any(e["status"] == "STARTED" for e in ui.runs() if e["runId"] not in first))
    assert ui.ask(_CANCEL, id=cancelled)["__typename"] == "CancelBackfillSuccess"
    assert ends(ui, cancelled) == "CANCELED"
    left = files(stack)
    resumed = again(ui, cancelled, "FROM_FAILURE")
    assert ends(ui, resumed) == "COMPLETED_SUCCESS"
    found = files(stack)
    assert len(found) == 2 * len(DAYS)
    assert all(found[name] == rows for name, rows in left.items())
    assert figures(stack) == before

    output = stack.settings.local_output / "replays"
    output.rename(output.with_name("resumed"))
    known = {each["runId"] for each in ui.runs()}
    clean = again(ui, cancelled, "ALL_STEPS")
    assert ends(ui, clean) == "COMPLETED_SUCCESS"
    assert files(stack) == found
    assert figures(stack) == before
    tags = [ui.run(each["runId"])["tags"] for each in ui.runs() if each["runId"] not in known]
    assert len(tags) == len(DAYS)
    assert {each[REPLAY_TAG] for each in tags} == {GROUP}
    assert not any(GROUP_TAG in each for each in tags)
    told.append(
        f"backfill of {len(DAYS)} days: cancelled with {len(left) // 2} done, resumed, executed again"
    )
