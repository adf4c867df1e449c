"""Debian's Prometheus on the rules of `docker/monitoring`, with their waiting times divided, and what it knows.

`for`, `keep_firing_for` and the intervals are divided by `FACTOR`; expressions stay as they are. Alerts about the
last quarter of an hour or hour cannot end in minutes, so each has a copy, whose name ends with `Short`, in which the
range is divided, too. Their exact times, undivided, are shown by `promtool test rules`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers.ports import free_port
from tests.waiting import wait_until
from tools.pages import ROOT

FOLDER = ROOT / "docker" / "monitoring"
FACTOR = 20
SCRAPE_S = 3
LONG = (
    "SharequeueRecordsLost",
    "SharequeueLocksLapse",
    "SharequeueManyDeadLetters",
    "SharequeueGroupRebalancesOften",
)
"""Alerts that last as long as their range after their cause: a quarter of an hour or longer."""
_UNITS = {"s": 1, "m": 60, "h": 3600}


def program(name: str) -> str:
    """Return the path of a program of Debian's package; fail with what to install."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(
            f"{name} is not there: `apt-get install --no-install-recommends prometheus`; its daemon is not needed"
        )
    return found


def rules() -> list[dict[str, Any]]:
    """Return the alerts as they are written."""
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return list(group["rules"])


def divided(duration: str) -> str:
    """Return a duration divided by the factor."""
    return f"{int(duration[:-1]) * _UNITS[duration[-1]] * 1000 // FACTOR}ms"


def _quick(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {**rule, **{name: divided(rule[name]) for name in ("for", "keep_firing_for") if name in rule}}


def _short(rule: Mapping[str, Any]) -> dict[str, Any]:
    expression = re.sub(r"\[(\w+)(:?)\]", lambda found: f"[{divided(found[1])}{found[2]}]", rule["expr"])
    return {**_quick(rule), "alert": f"{rule['alert']}Short", "expr": expression}


def panels() -> dict[str, list[str]]:
    """Return the queries of the dashboard by panel, with its variables filled in."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    return {
        panel["title"]: [
            each["expr"].replace("$__rate_interval", f"{4 * SCRAPE_S}s").replace("$group", ".*")
            for each in panel["targets"]
        ]
        for panel in dashboard["panels"]
        if panel["type"] != "row"
    }


@dataclass
class Prometheus:
    """A Prometheus of a test's, which scrapes replicas at these ports of the loopback."""

    folder: Path
    ports: Sequence[int]
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self, token: str) -> None:
        """Write its files, have promtool check them, and start it."""
        (self.folder / "token").write_text(token)
        written = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
        every = f"{SCRAPE_S}s"
        (job,) = written["scrape_configs"]
        written["global"] = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
        # The database is waited for, up to four seconds.
        job["scrape_interval"], job["scrape_timeout"] = "5s", "5s"
        job["authorization"] = {"credentials_file": str(self.folder / "token")}
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in self.ports]}]
        (self.folder / "prometheus.yaml").write_text(yaml.safe_dump(written))
        groups = [
            {"name": "sharequeue", "rules": [_quick(rule) for rule in rules()]},
            {"name": "short", "rules": [_short(rule) for rule in rules() if rule["alert"] in LONG]},
        ]
        (self.folder / "alerts.yaml").write_text(yaml.safe_dump({"groups": groups}))
        checked = subprocess.run(
            [program("promtool"), "check", "config", "prometheus.yaml"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program("prometheus"),
                    "--config.file=prometheus.yaml",
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, 60, (self.folder / "log").read_text)

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()

    def _answers(self) -> bool:
        with suppress(OSError):
            return bool(self.now("up"))
        return False

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)["data"]

    def now(self, query: str) -> list[dict[str, Any]]:
        """Return the series of a query now."""
        return list(self._get("query", query=query)["result"])

    def since(self, query: str, began: float, step: int = SCRAPE_S) -> list[dict[str, Any]]:
        """Return the series of a query from a Unix time to now."""
        times = {"start": str(began), "end": str(time.time()), "step": str(step)}
        return list(self._get("query_range", query=query, **times)["result"])

    def firing(self) -> set[tuple[str, str]]:
        """Return what fires: each alert with its group, kind or replica, if it has one."""
        return {_named(each["metric"]) for each in self.now('ALERTS{alertstate="firing"}')}

    def fires(self, *wanted: tuple[str, str], within: float) -> None:
        """Wait until all of these fire."""
        wait_until(
            lambda: set(wanted) <= self.firing(),
            within,
            lambda: f"does not fire: {sorted(set(wanted) - self.firing())}; pending: {self._pending()}",
        )

    def ends(self, *wanted: tuple[str, str], within: float) -> None:
        """Wait until none of these fires."""
        wait_until(
            lambda: not set(wanted) & self.firing(),
            within,
            lambda: f"does not end: {sorted(set(wanted) & self.firing())}",
        )

    def _pending(self) -> list[tuple[str, str]]:
        return sorted(_named(each["metric"]) for each in self.now('ALERTS{alertstate="pending"}'))

    def episodes(self, began: float) -> dict[tuple[str, str], int]:
        """Return how many times each alert has begun to fire."""
        counted: dict[tuple[str, str], int] = {}
        for series in self.since('ALERTS{alertstate="firing"}', began):
            times = [at for at, _ in series["values"]]
            pauses = sum(later - at > 2 * SCRAPE_S for at, later in pairwise(times))
            name = _named(series["metric"])
            counted[name] = counted.get(name, 0) + 1 + pauses
        return counted


def _named(labels: Mapping[str, str]) -> tuple[str, str]:
    of = (labels.get(each) for each in ("group", "kind", "instance", "error_code"))
    return labels["alertname"].removeprefix("Sharequeue"), next((each for each in of if each), "")


def has_data(series: Collection[Mapping[str, Any]]) -> bool:
    """Return whether a range has a number."""
    return any(value != "NaN" for each in series for _, value in each["values"])
