"""The pages of Dagster's UI in a real browser; `make pictures` keeps some of them in docs/pictures.

They are those of the demo and of another queue. The stack is one for the module, and each test takes up what the one
before it left.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from orchestration.demo.queue import NAME
from pipelines.flights.producer import extra
from sharequeue.kafka.clients import client_config
from sharequeue.state import State
from tests.deep.browser import Browser, browser
from tests.fixtures.demo import DEAD_LETTER_TOPIC, GROUP, DemoStack, dead_letter_records
from tests.fixtures.stack import REPOSITORY
from tests.servers.webserver import LOCATION, Webserver
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.timeout(1800)
until = partial(wait_until, seconds=2 * PATIENCE_S)

FOLDER = "PICTURES_FOLDER"
"""Where the pictures of the docs go; without it, all pictures go into the test's own folder."""
MOST_BYTES = 200_000
"""The largest picture of the docs."""
WIDE, NARROW = 1440, 420
FLIGHTS, MORE = 3_000, 20_000
"""Three days and a little more; and as many that a run can be cancelled before it has done them."""
DAYS = ["2013-01-01", "2013-01-02", "2013-01-03"]

_WORKSPACE = """
load_from:
  - python_module:
      module_name: orchestration.definitions
      working_directory: {checkout}
      location_name: sharequeue
  - python_file: {{relative_path: shop.py, working_directory: {folder}, location_name: shop}}
"""
_SHOP = """
import dagster as dg
from sharequeue.dagster import ShareGroup, share_group_defs, share_group_resources


def handle(records):
    from pyspark.sql import functions as fn

    is_bad = fn.col("value").cast("string").startswith("bad")
    return records.withColumn("outcome", fn.when(is_bad, "reject").otherwise("accept")).withColumn(
        "error", fn.when(is_bad, "ValueError: the order has no amount")
    )


orders = ShareGroup(
    group="orders", topics=["orders"], pipeline="shop:handle",
    configs={{"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.orders"}},
    checks={{"max_lag": 10, "max_age": "1h"}},
    freshness={{"warn_window": "1h", "fail_window": "2h"}},
    backfill={{"start": "{start}", "one_run": False}},
    automation={{
        "sensor": {{"interval_seconds": 5}},
        "observe": {{"interval_seconds": 5}},
        "schedule": {{"cron": "* * * * *"}},
    }},
)
defs = dg.Definitions.merge(
    share_group_defs(orders), share_group_resources(), dg.Definitions(executor=dg.in_process_executor)
)
"""
_PREFERENCES = """try {
    localStorage.setItem("dagster-nav-collapsed", innerWidth < 500)
    localStorage.setItem("collapsible-section-Columns", location.pathname.endsWith("spso_and_lag"))
} catch {}"""
"""A narrow window has no room for the navigation; the plots of a report are below its forty columns."""
_BACKFILL = """mutation ($wanted: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $wanted) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_BACKFILL_STATUS = """query ($id: String!) { partitionBackfillOrError(backfillId: $id) {
    ... on PartitionBackfill { status } ... on PythonError { message } } }"""
_SWITCH = {
    "sensor": """mutation ($of: SensorSelector!) { startSensor(sensorSelector: $of) {
        __typename ... on PythonError { message } } }""",
    "schedule": """mutation ($of: ScheduleSelector!) { startSchedule(scheduleSelector: $of) {
        __typename ... on PythonError { message } } }""",
}
_OFF = {
    "sensor": "mutation ($of: SensorSelector!) { resetSensor(sensorSelector: $of) { __typename } }",
    "schedule": "mutation ($of: ScheduleSelector!) { resetSchedule(scheduleSelector: $of) { __typename } }",
}
_TICKS = {
    "sensor": """query ($of: SensorSelector!) { sensorOrError(sensorSelector: $of) { ... on Sensor {
        sensorState { ticks(limit: 50) { status skipReason runIds } } } } }""",
    "schedule": """query ($of: ScheduleSelector!) { scheduleOrError(scheduleSelector: $of) { ... on Schedule {
        scheduleState { ticks(limit: 50) { status skipReason runIds } } } } }""",
}


@dataclass(frozen=True)
class Automation:
    """A sensor or a schedule of a code location."""

    ui: Webserver
    location: str
    kind: str
    name: str

    @property
    def path(self) -> str:
        """Its page."""
        return f"/locations/{self.location}/{self.kind}s/{self.name}"

    def switch(self, queries: dict[str, str]) -> None:
        """Switch it on, or off again."""
        assert "Error" not in self._ask(queries)["__typename"]

    def ticks(self) -> list[Any]:
        """Its ticks that have ended."""
        found = self._ask(_TICKS)[f"{self.kind}State"]["ticks"]
        return [each for each in found if each["status"] != "STARTED"]

    def _ask(self, queries: dict[str, str]) -> Any:
        selector = {**LOCATION, "repositoryLocationName": self.location, f"{self.kind}Name": self.name}
        return self.ui.ask(queries[self.kind], of=selector)


@dataclass(frozen=True)
class Served:
    """A stack with webserver and daemon, and a browser."""

    demo: DemoStack
    ui: Webserver
    page: Browser

    def automation(self, kind: str, name: str, location: str = "shop") -> Automation:
        """One of a code location's sensors or schedules."""
        return Automation(self.ui, location, kind, name)

    def backfill(self, prefix: str, days: list[str]) -> str:
        """Backfill days of `replayed`; return the backfill's id when all are done."""
        wanted = {"assetSelection": [{"path": [prefix, "replayed"]}], "partitionNames": days}
        launched = self.ui.ask(_BACKFILL, wanted=wanted)
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        backfill = str(launched["backfillId"])
        until(
            lambda: self.ui.ask(_BACKFILL_STATUS, id=backfill)["status"] == "COMPLETED_SUCCESS",
            otherwise=self.ui.runs,
        )
        return backfill

    def produce(self, topic: str, values: list[str]) -> None:
        """Produce records."""
        producer = Producer(client_config(self.demo.settings))
        for value in values:
            producer.produce(topic, value.encode(), key=value.encode())
        assert producer.flush(30) == 0


@dataclass(frozen=True)
class Looks:
    """Looks at pages, and keeps a picture of each."""

    page: Browser
    url: str
    folder: Path

    def at(
        self, name: str, path: str, *texts: str, height: int = 1000, docs: str = "", width: int = WIDE
    ) -> None:
        """Open a page, wide and narrow, and wait for texts on it. `docs` is its picture in the docs."""
        for look, size in (("", width), ("-narrow", NARROW)):
            keep = (
                f"{docs}.png" if docs and not look else "" if os.environ.get(FOLDER) else f"{name}{look}.png"
            )
            if not keep:
                continue
            self.page.window(size, height)
            self.page.go(self.url + path if path.startswith("/") else path)
            self.page.shows(*texts, failing=("An unexpected error", "GraphQL error", "Page not found"))
            self.page.picture(self.folder / keep)
            if docs and not look:
                assert (self.folder / keep).stat().st_size < MOST_BYTES, f"{keep} is too large"


@pytest.fixture(scope="module")
def served(demo_stack: DemoStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Give a stack whose UI has the demo and another queue."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "workspace.yaml").write_text(_WORKSPACE.format(checkout=REPOSITORY, folder=folder))
    (folder / "shop.py").write_text(_SHOP.format(start=(datetime.now(UTC) - timedelta(days=3)).date()))
    command = [sys.executable, "-m", "sharequeue.cli", "up", "--ui", "-o", "json", "--home"]
    up = subprocess.run(
        [*command, str(demo_stack.home)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert up.returncode == 0, up.stdout + up.stderr
    ui = Webserver(json.loads(up.stdout)["dagster"])
    # The same as "Skip" in the dialog of a new instance.
    ui.ask("mutation { setNuxSeen }")
    admin = AdminClient(client_config(demo_stack.settings))
    opted_in = {"errors.deadletterqueue.group.enable": "true"}
    for future in admin.create_topics(
        [NewTopic("orders", 2, 1), NewTopic("dlq.orders", 2, 1, config=opted_in)]
    ).values():
        future.result(30)
    with browser() as page:
        page.ask("Page.addScriptToEvaluateOnNewDocument", source=_PREFERENCES)
        yield Served(demo_stack, ui, page)


@pytest.fixture
def looks(served: Served, tmp_path: Path) -> Looks:
    """Give a browser at the UI."""
    return Looks(served.page, served.ui.url, Path(os.environ.get(FOLDER) or tmp_path))


def test_the_pages_of_a_queue_that_works(served: Served, looks: Looks) -> None:
    """Its graph, assets, checks and runs; a backfill as one range; a run that was cancelled."""
    demo, ui = served.demo, served.ui
    demo.run("--records", str(FLIGHTS))
    backfill = served.backfill(NAME, DAYS)
    extra(demo.settings, MORE)
    cancelled = ui.launch(NAME)
    with demo.database() as database:
        state = State(database)
        until(lambda: bool(state.figures.leases(GROUP)), otherwise=lambda: ui.run(cancelled))
    ui.terminate(cancelled)
    assert ui.ends(cancelled) == "CANCELED"
    demo.run("--records", str(FLIGHTS + MORE))
    run = next(each["runId"] for each in ui.runs() if each["status"] == "SUCCESS")

    group = f"/locations/sharequeue/asset-groups/{NAME}"
    looks.at("graph", f"{group}/lineage", "spso_and_lag", height=900, docs="graph")
    looks.at("group-list", f"{group}/list", "spso_and_lag")
    looks.at("global-graph", "/asset-groups", NAME)
    looks.at("location", "/locations/sharequeue/assets", NAME)
    assets = (
        "accepted",
        "delays",
        "dead_letters",
        "delivery_counts",
        "replayed",
        "published",
        "redriven",
        "history",
    )
    for asset in assets:
        looks.at(f"asset-{asset}", f"/assets/{NAME}/{asset}", "Description", height=2200)
    looks.at("asset-topic", "/assets/kafka/flights", "Description", height=1500)
    looks.at("report", f"/assets/{NAME}/spso_and_lag", "lag_over_time", height=1200, docs="report-asset")
    looks.at("partitions", f"/assets/{NAME}/replayed?view=partitions&partition={DAYS[0]}", DAYS[0])
    looks.at("events", f"/assets/{NAME}/spso_and_lag?view=events", "spso_and_lag", height=1500)
    checks = f"/assets/{NAME}/dead_letters?view=checks&checkDetail="
    looks.at("check-passed", f"{checks}reconciled_with_state", "Passed")
    looks.at("state-check", f"/assets/{NAME}/spso_and_lag?view=checks&checkDetail=state_verified", "Passed")
    looks.at("job", f"/locations/sharequeue/jobs/{NAME}", NAME)
    looks.at("run", f"/runs/{run}", "Success")
    looks.at("backfill-range", f"/runs/b/{backfill}", "Succeeded", "replayed", height=420, docs="backfill")
    looks.at("backfill-runs", f"/runs/b/{backfill}?tab=runs", "Success", height=420)
    looks.at("cancelled", f"/runs/{cancelled}", "Canceled")
    # One event: others show the stack trace of Dagster, with paths of this machine.
    one = f"/runs/{cancelled}?logs=type%3ARUN_CANCELING"
    looks.at("cancelled-event", one, "Sending run termination request", height=560, docs="cancelled-run")
    looks.at(
        "report-page",
        f"{demo.settings.service_url}/v1/reports/{GROUP}",
        "Dead letters by day and cause",
        height=1500,
        width=1150,
        docs="report-page",
    )


def test_the_pages_of_a_check_that_fails(served: Served, looks: Looks) -> None:
    """Letters that somebody has written again, one of them with another value."""
    letters = dead_letter_records(served.demo.settings)[:3]
    letters[0] = dataclasses.replace(letters[0], value=b'{"carrier": "UA", "flight": 1545}')
    producer = Producer(client_config(served.demo.settings))
    for each in letters:
        producer.produce(
            DEAD_LETTER_TOPIC, each.value, each.key, partition=each.partition, headers=list(each.headers)
        )
    assert producer.flush(30) == 0
    assert served.ui.ends(served.ui.launch(f"{NAME}_checks")) == "SUCCESS"
    checks = f"/assets/{NAME}/dead_letters?view=checks&checkDetail="
    looks.at("check-failed", f"{checks}reconciled_with_state", "doubled", "Failed", docs="failing-check")
    looks.at("check-failed-value", f"{checks}value_as_source", "Failed")
    looks.at("check-list", f"/assets/{NAME}/dead_letters?view=checks", "reconciled_with_state")


def test_the_pages_of_automation(served: Served, looks: Looks) -> None:
    """Sensors and a schedule with ticks: each has its reason in words; a backfill with a run for each day."""
    lag, observe = (served.automation("sensor", f"orders_{name}") for name in ("lag", "observe"))
    schedule, history = (
        served.automation("schedule", "orders_schedule"),
        served.automation("sensor", "orders_history"),
    )
    served.produce("orders", [f"{'bad' if number % 50 == 7 else 'order'} {number}" for number in range(400)])
    for each in (observe, history, lag):
        each.switch(_SWITCH)
    until(lambda: any(tick["runIds"] for tick in lag.ticks()), otherwise=lag.ticks)
    until(
        lambda: any("nothing to do" in str(tick["skipReason"]) for tick in lag.ticks()), otherwise=lag.ticks
    )
    lag.switch(_OFF)
    schedule.switch(_SWITCH)
    until(lambda: any(tick["runIds"] for tick in schedule.ticks()), otherwise=schedule.ticks)
    schedule.switch(_OFF)
    until(lambda: all(run["status"] == "SUCCESS" for run in served.ui.runs()[:1]), otherwise=served.ui.runs)
    for each in (lag, observe, schedule, history):
        for tick in each.ticks():
            assert tick["runIds"] or "empty result" not in tick["skipReason"], tick
        looks.at(each.name, each.path, each.name, height=1400)
    days = [f"{datetime.now(UTC) - timedelta(days=ago):%Y-%m-%d}" for ago in (2, 1)]
    backfill = served.backfill("orders", days)
    looks.at("backfill-days", f"/runs/b/{backfill}", "Succeeded", "replayed", height=420)
    looks.at("backfill-days-runs", f"/runs/b/{backfill}?tab=runs", "Success")
    looks.at("queue-graph", "/locations/shop/asset-groups/orders/lineage", "spso_and_lag")
    for asset in ("accepted", "spso_and_lag", "dead_letters"):
        looks.at(f"queue-{asset}", f"/assets/orders/{asset}", "Description", height=2200)
    looks.at("queue-check", "/assets/orders/spso_and_lag?view=checks&checkDetail=lag_bounded", "lag_bounded")
    looks.at("automation", "/automation", "orders_lag")
    looks.at("runs", "/runs", NAME)
