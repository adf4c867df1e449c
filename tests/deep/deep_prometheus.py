"""A real Prometheus beside two replicas: each alert fires in its fault and ends after it, once, and every panel has
data. The times of the alerts, undivided, are those of `promtool test rules`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType
from sharequeue.groups.tokens import Tokens
from sharequeue.local.stack import status, up
from tests.deep.monitored import FACTOR, FOLDER, LONG, Prometheus, has_data, panels, program, rules
from tests.deep.monitored_queues import RECORDS, STEADY, Queues, queues_at_work
from tests.deep.monitored_times import CASES, Case
from tests.fixtures.stack import jars_folder, say

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]


@pytest.fixture(scope="module")
def queues(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queues]:
    """Give the groups, at work."""
    up(module_home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})
    with queues_at_work(Settings.load(module_home), tmp_path_factory.mktemp("replicas")) as made:
        yield made


@pytest.fixture(scope="module")
def prometheus(queues: Queues, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Give a Prometheus that scrapes them with a token."""
    _, secret = Tokens(queues.database).create("User:prometheus", scopes=["metrics"])
    made = Prometheus(tmp_path_factory.mktemp("prometheus"), [each.port for each in queues.replicas])
    try:
        made.start(secret)
        yield made
    finally:
        made.stop()


def pid(queues: Queues, server: str) -> int:
    (found,) = (each.pid for each in status(queues.settings.home) if each.name == server)
    assert found is not None
    return found


OF_GROUPS = [
    ("RecordsTooOld", "old"),
    ("RetentionNear", "near"),
    ("RetentionNear", "lost"),
    ("RecordsLost", "lost"),
    ("StuckLease", "locked"),
    ("LocksLapse", "lapsing"),
    ("GroupStandsStill", "paused"),
    ("DeadLettersHeld", "held"),
    ("ManyDeadLetters", "poison"),
    ("ResultsHeld", "results"),
    ("ResultsTooOld", "late"),
    ("GroupRebalancesOften", "restless"),
]
"""What fires within a minute of its fault."""
SHORT = [(f"{name}Short", of) for name, of in OF_GROUPS if f"Sharequeue{name}" in LONG]
LASTING = [(name, of) for name, of in OF_GROUPS if f"Sharequeue{name}" in LONG]
HEARTBEATS = [("HeartbeatsRefused", "15"), ("HeartbeatsSlow", "")]
KAFKA = [("KafkaUnreachable", ""), ("WorkLate", "watch_late")]
LATE = {("WorkLate", kind) for kind in ("watch_late", "sweep_late", "journal_late", "dead_letters_late")}
"""What may be late for a moment after the database was away: only the alert's own time is divided."""
WITHOUT_KAFKA = ("DeadLettersHeld", STEADY)
"""What may fire while there is no broker: a group that rejects records all the time has letters that wait for it."""
AGE = [("RecordsTooOld", "old"), ("ResultsTooOld", "late")]


def test_every_alert_fires_and_ends(
    queues: Queues, prometheus: Prometheus, told: list[str], tmp_path: Path
) -> None:
    """While a queue runs, fails, stands still and recovers."""
    began = time.time()
    prometheus.fires(*AGE, within=90)
    time.sleep(15)
    assert prometheus.firing() == set(AGE)

    assert queues.keep("locked") == 100
    # Its heartbeats would go on, as they need not the group's row while nothing changes in the group.
    queues.members["locked"].abandon()
    with queues.lock("locked"):
        locked = time.time()
        with queues.heartbeats("locked"):
            groups_fail(queues)
            prometheus.fires(*OF_GROUPS, *HEARTBEATS, within=150)
        told.append(f"all alerts of a group and of heartbeats fire within {time.time() - locked:.0f} s")

        broker = pid(queues, "kafka")
        os.kill(broker, signal.SIGSTOP)
        try:
            prometheus.fires(*KAFKA, within=180)
        finally:
            os.kill(broker, signal.SIGCONT)
        prometheus.ends(*KAFKA, WITHOUT_KAFKA, within=180)
        prometheus.fires(("FaultStays", "group"), ("DrainsTooSlowly", "slow"), within=420)
    groups_recover(queues)
    prometheus.ends(
        *(set(OF_GROUPS) - set(LASTING)),
        ("FaultStays", "group"),
        ("DrainsTooSlowly", "slow"),
        within=240,
    )
    told.append(f"and end when their causes do, {time.time() - locked:.0f} s after the first fault")

    os.kill(pid(queues, "postgres"), signal.SIGKILL)
    prometheus.fires(("DatabaseDown", ""), within=60)
    time.sleep(15)  # longer than Kafka's alert would wait
    up(queues.settings.home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})
    prometheus.ends(("DatabaseDown", ""), within=90)

    gone = ("ServiceDown", f"127.0.0.1:{queues.replicas[1].port}")
    queues.replicas[1].send(signal.SIGKILL)
    prometheus.fires(gone, within=60)
    queues.replicas[1].start()
    prometheus.ends(gone, within=90)
    prometheus.ends(*HEARTBEATS, *SHORT, within=420)

    every_panel_has_data(prometheus, began, tmp_path)
    no_figure_is_doubled(prometheus)
    queues.members.pop("lost").leave()
    assert queues.state.administration.delete_group("lost")
    time.sleep(20)
    # Beside what is about the last hour, or about the last quarter of one.
    assert prometheus.firing() <= set(LASTING)
    seen = prometheus.episodes(began)
    expected = {*OF_GROUPS, *SHORT, *HEARTBEATS, *KAFKA, gone}
    expected |= {("FaultStays", "group"), ("DrainsTooSlowly", "slow"), ("DatabaseDown", "")}
    assert set(seen) - expected <= LATE | {WITHOUT_KAFKA}
    assert expected <= set(seen)
    assert {f"Sharequeue{name}" for name, _ in seen} >= {rule["alert"] for rule in rules()}
    again = {each for each, times in seen.items() if times > 1}
    told.append(f"{len(expected)} alerts fired, each once but {sorted(again)}; times divided by {FACTOR}")
    assert again <= set(HEARTBEATS)


def groups_fail(queues: Queues) -> None:
    """Bring each group into its trouble."""
    queues.settle("slow", AcknowledgeType.ACCEPT, 5)
    queues.settle("near", AcknowledgeType.ACCEPT, 100)
    queues.remove_before("near", 60)
    queues.remove_before("lost", 30)
    assert queues.keep("lapsing") == RECORDS["lapsing"]
    queues.state.administration.pause("paused", "the ledger is down")
    queues.settle("held", AcknowledgeType.REJECT, 5)
    assert queues.settle("poison", AcknowledgeType.REJECT, 10_000) == RECORDS["poison"]
    queues.accept_results("results")
    queues.hold_results("results")
    queues.rebalance(70)


def groups_recover(queues: Queues) -> None:
    """Do what the runbooks say."""
    queues.drain("old")
    queues.drain("slow")
    queues.drain("near")
    queues.drain("lost")
    queues.state.administration.pause("paused", None)
    queues.open_to_letters("dlq.held")
    queues.write_results("results")
    queues.write_results("late")


def every_panel_has_data(prometheus: Prometheus, began: float, folder: Path) -> None:
    """Each query returns numbers; they are left in a file, from which the dashboard can be drawn."""
    found = {
        title: [prometheus.since(query, began, 5) for query in queries] for title, queries in panels().items()
    }
    (folder / "panels.json").write_text(json.dumps(found))
    say(f"the panels' data: {folder / 'panels.json'}")
    empty = [title for title, series in found.items() if not all(map(has_data, series))]
    assert empty == []


def no_figure_is_doubled(prometheus: Prometheus) -> None:
    """What both replicas export counts once."""

    def shown(title: str, group: str) -> float:
        (series,) = prometheus.now(panels()[title][0].replace(".*", group))
        return float(series["value"][1])

    for title in ("Lag", "In-flight window"):
        assert shown(title, "lapsing") == RECORDS["lapsing"]
    assert RECORDS["poison"] <= shown("Dead letters written per hour", "poison") < 1.5 * RECORDS["poison"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_times_of_an_alert(case: Case, tmp_path: Path) -> None:
    """As the rules are written, promtool computes when each begins and ends."""
    (tmp_path / "times.yaml").write_text(yaml.safe_dump(case.written(FOLDER / "alerts.yaml")))
    ran = subprocess.run(
        [program("promtool"), "test", "rules", "times.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_alert_has_its_times() -> None:
    """No alert is left out."""
    assert {case.alert for case in CASES} == {rule["alert"].removeprefix("Sharequeue") for rule in rules()}


@pytest.mark.parametrize("kind", ["rules", "config"])
def test_promtool_finds_nothing_wrong(kind: str) -> None:
    """Of the rules as they are written, and of the example, whose token is not there."""
    given = {"rules": ["rules", "alerts.yaml"], "config": ["config", "--syntax-only", "prometheus.yaml"]}[
        kind
    ]
    ran = subprocess.run(
        [program("promtool"), "check", *given], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
