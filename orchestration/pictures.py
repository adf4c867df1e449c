"""Take screenshots of Dagster's UI and of the report page, for the docs: `make pictures`.

They show a running stack (`sharequeue up --ui`) with data; nothing is started or launched here. Missing items
(a failing check, a backfill, a cancelled run) are reported, with the way to create them, and the other
pictures are taken. The browser is the distribution's Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from orchestration.demo.queue import GROUP, NAME
from sharequeue.local import ports
from sharequeue.local.dagster_ui import WEBSERVER
from sharequeue.local.home import Home
from sharequeue.words.settings import Settings

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 20_000
"""In the browser's virtual time: the UI loads its data after the page."""

_WORKSPACE = """query { workspaceOrError { ... on Workspace { locationEntries { name } } } }"""
_RUNS = """query($status: [RunStatus!]) { runsOrError(filter: {statuses: $status}, limit: 20) {
    ... on Runs { results { runId jobName } } } }"""
_BACKFILLS = (
    """query { partitionBackfillsOrError(limit: 1) { ... on PartitionBackfills { results { id } } } }"""
)
_FAILED_CHECKS = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
    assetChecksOrError { ... on AssetChecks { checks {
        name executionForLatestMaterialization { status } } } } } } }"""


class Missing(Exception):
    """Nothing to take a picture of; the message has what to do."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A page and its window size."""

    name: str
    url: str
    width: int = 1500
    height: int = 1000


class Dagster:
    """The webserver of the stack."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str, **variables: Any) -> Any:
        """Return the data of a GraphQL query."""
        reply = httpx.post(
            f"{self.url}/graphql", json={"query": query, "variables": variables}, timeout=60, trust_env=False
        )
        return reply.raise_for_status().json()["data"]

    def location(self) -> str:
        """Return the name of the first code location."""
        name: str = self.ask(_WORKSPACE)["workspaceOrError"]["locationEntries"][0]["name"]
        return name

    def cancelled_run(self) -> str:
        """Return the id of the queue's last cancelled run."""
        runs = self.ask(_RUNS, status=["CANCELED"])["runsOrError"]["results"]
        if not runs:
            raise Missing("no run was cancelled: launch one in the UI, and terminate it")
        run: str = runs[0]["runId"]
        return run

    def backfill(self) -> str:
        """Return the id of the last backfill."""
        found = self.ask(_BACKFILLS)["partitionBackfillsOrError"]["results"]
        if not found:
            raise Missing(f"no backfill: launch one of {NAME}/replayed in the UI")
        backfill: str = found[0]["id"]
        return backfill

    def failed_check(self) -> tuple[str, str]:
        """Return an asset and one of its failed checks."""
        for asset in ("dead_letters", "spso_and_lag", "accepted"):
            node = self.ask(_FAILED_CHECKS, key={"path": [NAME, asset]})["assetNodeOrError"]
            for check in node.get("assetChecksOrError", {}).get("checks", []):
                if (check["executionForLatestMaterialization"] or {}).get("status") == "FAILED":
                    return asset, check["name"]
        raise Missing(
            "no check fails: alter a dead letter, or set a limit that is exceeded, and run the checks"
        )


def pictures(dagster: Dagster, service: str | None) -> Iterator[Picture | Missing]:
    """Yield the pictures to take, in the order of the docs; for a missing one, the reason."""
    location = quote(dagster.location())
    yield Picture("graph", f"{dagster.url}/locations/{location}/asset-groups/{NAME}/lineage", height=1100)
    yield Picture("report-asset", f"{dagster.url}/assets/{NAME}/spso_and_lag", height=1350)
    if service is None:
        yield Missing("no report page: the stack runs without the service")
    else:
        yield Picture("report-page", f"{service}/v1/reports/{quote(GROUP)}", width=1150, height=1700)
    found: dict[str, Callable[[], str]] = {
        "failing-check": lambda: "/assets/{}/{}?view=checks&checkDetail={}".format(
            NAME, *dagster.failed_check()
        ),
        "backfill": lambda: f"/runs/b/{dagster.backfill()}",
        # One event: others show the stack trace of Dagster, with paths of this machine.
        "cancelled-run": lambda: f"/runs/{dagster.cancelled_run()}?logs=type%3ARUN_CANCELING",
    }
    heights = {"backfill": 320, "cancelled-run": 560}
    for name, path in found.items():
        try:
            yield Picture(name, f"{dagster.url}{path()}", height=heights.get(name, 1000))
        except Missing as missing:
            yield missing


def take(browser: str, picture: Picture, folder: Path) -> Path:
    """Take one picture. Raises Missing if the browser made none."""
    target = folder / f"{picture.name}.png"
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={profile}", f"--window-size={picture.width},{picture.height}"),
            *(f"--virtual-time-budget={PATIENCE_MS}", f"--screenshot={target}", picture.url),
        ]
        subprocess.run(command, capture_output=True, timeout=180, check=False)
    if not target.is_file():
        raise Missing(f"{browser} made no picture of {picture.url}")
    return target


def main() -> int:
    """Take all pictures that can be taken; return 1 if one is missing."""
    parser = argparse.ArgumentParser(prog="make pictures", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder: Path = parser.parse_args().folder
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("No browser: install Chromium (Debian: apt install chromium).", file=sys.stderr)
        return 1
    settings = Settings.load()
    port = ports.recorded(Home.at(settings.home)).get(WEBSERVER)
    dagster = Dagster(f"http://{ports.LOOPBACK}:{port}")
    folder.mkdir(parents=True, exist_ok=True)
    left = 0
    try:
        # The same as "Skip" in the dialog of a new instance.
        dagster.ask("mutation { setNuxSeen }")
        for each in pictures(dagster, settings.service_url if settings.knows("service_url") else None):
            try:
                if isinstance(each, Missing):
                    raise each
                print(take(browser, each, folder))
            except Missing as missing:
                left += 1
                print(f"Missing: {missing}", file=sys.stderr)
    except httpx.HTTPError as error:
        print(f"Dagster's UI does not answer ({error}): run `sharequeue up --ui`.", file=sys.stderr)
        return 1
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
