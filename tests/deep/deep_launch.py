"""Drivers that `spark-submit` starts on a standalone cluster, for Dagster and by hand: as clients of the cluster, and
inside of it. They are killed and cancelled, their messages are lost, and Dagster dies before them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from confluent_kafka import Producer
from dagster_pipes import DAGSTER_PIPES_MESSAGES_ENV_VAR, encode_param

from sharequeue.dagster.names import LEASES_TAG, MEMBER_TAG
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.spark.session import connector_jars
from sharequeue.state import State
from tests import archive
from tests.fixtures.cluster import RECORDS, Cluster
from tests.fixtures.dagster import code_location, created_run
from tests.fixtures.stack import REPOSITORY
from tests.waiting import PATIENCE_S, wait_until
from tests.without_spark import launched

pytestmark = pytest.mark.timeout(900)

ALL = 2 * RECORDS
OF_YESTERDAY = 100
SHORT_LOCK_MS = 5000
PIPELINE = """
import time
from pathlib import Path

from pyspark.sql import functions as fn

from sharequeue.spark import Summary, pipeline

SIGNALS = Path({signals!r})
COLUMNS = "topic string, partition int, offset long, lease_id long, outcome string"


def accepted(batches):
    import pyarrow as pa

    for batch in batches:
        (SIGNALS / "working").touch()
        while not (SIGNALS / "go").exists():
            time.sleep(0.05)
        outcome = pa.array(["accept"] * batch.num_rows, pa.string())
        yield pa.RecordBatch.from_arrays([*batch.columns, outcome], names=[*batch.schema.names, "outcome"])


def by_lease(rows):
    return rows.groupBy("lease_id").agg(fn.count("*").alias("records"))


def total(parts):
    return parts.agg(fn.sum("records").alias("records"))


summaries = [Summary("totals", by_lease)]


@pipeline(group={group!r}, topics=[{topic!r}], sink="launched", summaries=summaries, try_empty=False)
def job(records):
    return records.select("topic", "partition", "offset", "lease_id").mapInArrow(accepted, COLUMNS)
"""
SUBMIT = "from sharequeue.cli import main\n\nmain()\n"
LOCATION = """
import dagster as dg

from sharequeue.dagster import ShareGroup, share_group_defs, share_group_resources

queue = ShareGroup(
    group={group!r},
    topics=[{topic!r}],
    name="launched",
    pipeline="launched_queue:job",
    run={{"launch": {{"client": "elsewhere", "arguments": {{"command": {command!r}}}}}}},
)
client = dg.PipesSubprocessClient(termination_timeout_seconds=60)
defs = dg.Definitions.merge(
    share_group_defs(queue), share_group_resources(), dg.Definitions(resources={{"elsewhere": client}})
)
"""


@dataclass
class Launches:
    """A queue on a cluster, and Dagster's runs of it, each in a process of its own."""

    group: str
    topic: str
    folder: Path
    environment: dict[str, str]
    state: State
    submit: list[str]
    runs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def begin(self, command: list[str] | None = None) -> subprocess.Popen[bytes]:
        """Let Dagster run the asset `accepted`; its driver waits with its first records for `go`."""
        location = self.folder / "location.py"
        command = command or [*self.submit, str(self.folder / "submit.py"), "run"]
        materialize = [sys.executable, "-m", "dagster", "asset", "materialize"]
        location.write_text(LOCATION.format(group=self.group, topic=self.topic, command=command))
        with (self.folder / f"dagster-{len(self.runs)}.log").open("wb") as log:
            run = subprocess.Popen(
                [*materialize, "-f", str(location), "--select", "key:launched/accepted"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.runs.append(run)
        return run

    def go(self) -> None:
        """Let tasks go on."""
        (self.folder / "go").touch()

    def works(self) -> None:
        """Wait until a task is at work."""
        working = self.folder / "working"
        wait_until(working.exists, PATIENCE_S, otherwise=self.log)
        working.unlink()

    def ends(self, run: subprocess.Popen[bytes]) -> int:
        """Wait for the end of Dagster's process; return its exit code."""
        return run.wait(PATIENCE_S)

    def log(self) -> str:
        """What the last process of Dagster has said."""
        return (self.folder / f"dagster-{len(self.runs) - 1}.log").read_text(errors="replace")[-6000:]

    def of_dagster(self) -> tuple[dg.DagsterRun, list[str], dict[str, Any]]:
        """The last run as Dagster has it, its log, and the metadata of its materialization."""
        with dg.DagsterInstance.from_config(self.environment["DAGSTER_HOME"]) as instance:
            (run,) = instance.get_runs(limit=1)
            entries = instance.all_logs(run.run_id)
        events = [entry.dagster_event for entry in entries if entry.dagster_event]
        made = [each.materialization for each in events if each.event_type_value == "ASSET_MATERIALIZATION"]
        values = {key: value.value for each in made for key, value in each.metadata.items()}
        return run, [entry.user_message for entry in entries], values

    def processes(self) -> list[psutil.Process]:
        """The processes of drivers: `spark-submit`'s JVM and its Python process."""
        found = []
        for each in psutil.process_iter(["cmdline"]):
            words = " ".join(each.info["cmdline"] or [])
            if str(self.folder / "submit.py") in words and "dagster" not in words:
                found.append(each)
        return found

    def on_the_cluster(self, waits: bool) -> list[str]:
        """The command whose driver a worker starts."""
        (core,) = Path(self.submit[0]).parents[1].glob("jars/spark-core_*.jar")
        place = ["--deploy-mode", "cluster", "--class", "org.apache.spark.deploy.PythonRunner"]
        module = str(self.folder / "launched_queue.py")
        place += ["--files", module, "--conf", f"spark.submit.pyFiles={module}"]
        place += ["--conf", f"spark.standalone.submit.waitAppCompletion={str(waits).lower()}"]
        return [*self.submit, *place, str(core), str(self.folder / "submit.py"), str(self.folder), "run"]

    def held(self) -> tuple[int, int]:
        """Records that are leased, and those that are suspects."""
        statuses = self.state.figures.describe(self.group)
        return sum(each.acquired for each in statuses), sum(each.suspects for each in statuses)

    def finishes(self) -> None:
        """Let runs do what is left, when no lock is in their way."""
        self.go()
        wait_until(lambda: bool(self.state.sweep()) and self.held()[0] == 0, PATIENCE_S, otherwise=self.held)
        # A killed member keeps its partitions until its session expires.
        wait_until(
            lambda: self.ends(self.begin()) == 0 and self.accepted() == ALL, PATIENCE_S, otherwise=self.log
        )

    def accepted(self) -> int:
        """Records that count as accepted."""
        return sum(row.records for row in self.state.outputs.counted(self.group, "launched"))


@pytest.fixture
def launches(
    cluster: Cluster, group: str, filled: str, settings: Settings, service: str, state: State
) -> Iterator[Launches]:
    """Give a queue with records, and the means to launch its drivers on the cluster."""
    alter_group_configs(state.database, group, {"share.record.lock.duration.ms": SHORT_LOCK_MS})
    folder = cluster.folder / group
    folder.mkdir()
    (folder / "dagster").mkdir()
    (folder / "submit.py").write_text(SUBMIT)
    (folder / "launched_queue.py").write_text(PIPELINE.format(group=group, topic=filled, signals=str(folder)))
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": archive.OF_SPARK,
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
    }
    submit = [str(Path(spec.origin).parent / "bin" / "spark-submit"), "--master", cluster.master]
    submit += ["--jars", ",".join(map(str, connector_jars(settings)))]
    submit += ["--py-files", str(folder / "launched_queue.py")]
    submit += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(folder / "dagster"),
        "SHAREQUEUE_HOME": str(settings.home),
        "SHAREQUEUE_SERVICE_URL": service,
        "SHAREQUEUE_OUTPUT": str(folder / "output"),
        "SHAREQUEUE_OUTPUT_SHARED": "true",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(REPOSITORY),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    given = Launches(group, filled, folder, environment, state, submit)
    yield given
    given.go()
    for process in [
        *(psutil.Process(run.pid) for run in given.runs if run.poll() is None),
        *given.processes(),
    ]:
        process.kill()
    for run in given.runs:
        run.wait(PATIENCE_S)


def test_a_driver_of_spark_submit_does_the_run_of_dagster(launches: Launches) -> None:
    """`--deploy-mode client`: figures, member and leases as of a run in Dagster's process."""
    launches.go()
    begun = time.monotonic()
    assert launches.ends(launches.begin()) == 0, launches.log()
    run, lines, shown = launches.of_dagster()
    print(f"by Dagster: {time.monotonic() - begun:.1f} s, of which the run {shown['run_seconds']} s")
    assert run.status == dg.DagsterRunStatus.SUCCESS
    assert (shown["accepted_records"], shown["lag_records"], launches.accepted()) == (ALL, 0, ALL)
    assert (shown["member"], bool(run.tags[LEASES_TAG])) == (run.tags[MEMBER_TAG], True)
    assert any(line.startswith("round 1: 800 records done") for line in lines)


def test_dagster_needs_no_spark(launches: Launches, settings: Settings) -> None:
    """A whole run with its summary, dead letters, reports and checks, inputs of assets downstream, a replay, and its
    publication: each by `spark-submit`, and Dagster in a process that cannot import PySpark."""
    yesterday = datetime.now(UTC) - timedelta(days=1)
    producer = Producer(client_config(settings))
    for _ in range(OF_YESTERDAY):
        producer.produce(launches.topic, b"1", partition=0, timestamp=int(yesterday.timestamp() * 1000))
    assert producer.flush(PATIENCE_S) == 0
    launches.go()
    command = [*launches.submit, str(launches.folder / "submit.py"), "run"]
    day = f"{yesterday:%Y-%m-%d}"
    queue = {
        "group": launches.group,
        "topics": [launches.topic],
        "name": "launched",
        "pipeline": "launched_queue:job",
        "columns": [{"name": "outcome", "accepted_values": ["accept"]}],
        "summaries": {"totals": "launched_queue:total"},
        "backfill": {"start": day},
        "run": {"launch": {"client": "elsewhere", "arguments": {"command": command}}},
    }
    publication = {"ops": {"launched_published": {"config": {"first": day, "execute": True}}}}
    jobs: list[dict[str, Any]] = [
        {"name": "launched"},
        {"name": "read", "selection": ["downstream", "downstream_totals"]},
        {"name": "launched_replay", "partition": day},
        {"name": "launched_publish", "config": publication},
    ]
    begun = time.monotonic()
    environment = {**launches.environment, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{launches.folder}"}
    done = launched(queue, jobs, folder=str(launches.folder), environment=environment)
    print(f"four jobs, five drivers: {time.monotonic() - begun:.1f} s")
    assert [each["success"] for each in done] == [True] * 4, [each["lines"][-20:] for each in done]
    run, read, replayed, published = done
    made = run["metadata"]
    assert made.keys() == {"accepted", "totals", "dead_letters", "spso_and_lag", "delivery_counts"}
    assert made["accepted"]["accepted_records"] == ALL + OF_YESTERDAY
    assert (made["totals"]["dagster/row_count"], made["totals"]["dagster/storage_kind"]) == (1, "parquet")
    assert run["checks"]["outcome_accepted_values"]
    assert len(run["checks"]) > 5
    assert read["metadata"]["downstream"] == {"rows": ALL + OF_YESTERDAY}
    (total,) = json.loads(read["metadata"]["downstream_totals"]["rows"])
    assert total == {"records": ALL + OF_YESTERDAY}
    assert replayed["metadata"][f"replayed/{day}"]["accepted_records"] == OF_YESTERDAY
    of_publication = published["metadata"]
    assert of_publication[f"published/{day}"]["rows_in"] == OF_YESTERDAY
    assert of_publication["totals"]["dagster/row_count"] == 1
    assert launches.accepted() == ALL + OF_YESTERDAY


def test_a_driver_without_dagster(launches: Launches) -> None:
    """The same by hand: one line of figures. A signal to the JVM ends the run as cancelled, and Spark Connect is
    refused: it has no driver."""
    command = [
        *launches.submit,
        str(launches.folder / "submit.py"),
        "run",
        "launched_queue:job",
        "-o",
        "json",
    ]
    by_hand = {"cwd": launches.folder, "env": launches.environment, "stderr": subprocess.DEVNULL}
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, **by_hand)  # type: ignore[call-overload]
    launches.works()
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(PATIENCE_S) == 143
    assert launches.held() == (0, 0)
    launches.go()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, **by_hand)  # type: ignore[call-overload]
    assert done.returncode == 0
    # Spark writes what its Python process says on stderr to stdout, too.
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["accepted"] == launches.accepted() == ALL
    remote = {**launches.environment, "SPARK_REMOTE": "sc://127.0.0.1:1"}
    refused = subprocess.run(
        [sys.executable, "-m", "sharequeue.cli", "run", "launched_queue:job"],
        cwd=launches.folder,
        env=remote,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "SPARK_REMOTE selects Spark Connect" in refused.stderr


def test_a_cancelled_run_stops_its_driver(launches: Launches) -> None:
    """SIGINT of Dagster's process, as "terminate" sends it: the driver gives back what it holds, and no record is at
    fault; another run does the rest."""
    run = launches.begin()
    launches.works()
    begun = time.monotonic()
    run.send_signal(signal.SIGINT)
    assert launches.ends(run) == 1
    print(f"cancelled after {time.monotonic() - begun:.1f} s")
    assert launches.held() == (0, 0)
    assert not launches.processes()
    launches.finishes()


def test_a_run_that_is_terminated_in_the_ui_is_canceled(
    launches: Launches, stack_instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster's own launcher starts the run's process, and ends it as the button does: all is given back."""
    for name, value in launches.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(launches.folder)
    command = [*launches.submit, str(launches.folder / "submit.py"), "run"]
    source = LOCATION.format(group=launches.group, topic=launches.topic, command=command)
    with code_location(stack_instance, launches.folder, source) as workspace:
        context = workspace.create_request_context()
        run = created_run(stack_instance, context, "launched", step="launched_accepted")
        stack_instance.launch_run(run.run_id, context)
        working = launches.folder / "working"
        wait_until(working.exists, PATIENCE_S, otherwise=lambda: stack_instance.all_logs(run.run_id)[-3:])
        begun = time.monotonic()
        assert stack_instance.run_launcher.terminate(run.run_id)

        def status() -> dg.DagsterRunStatus:
            found = stack_instance.get_run_by_id(run.run_id)
            assert found is not None
            return found.status

        wait_until(lambda: status() == dg.DagsterRunStatus.CANCELED, PATIENCE_S, otherwise=status)
        print(f"canceled after {time.monotonic() - begun:.1f} s")
    assert launches.held() == (0, 0)
    wait_until(lambda: not launches.processes(), PATIENCE_S)
    working.unlink()
    launches.finishes()


def test_a_killed_driver_fails_its_run(launches: Launches) -> None:
    """SIGKILL of its JVM and its Python process: the run says what it had leased, and the locks lapse."""
    run = launches.begin()
    launches.works()
    for process in launches.processes():
        process.kill()
    assert launches.ends(run) == 1
    failed, lines, _ = launches.of_dagster()
    assert failed.status == dg.DagsterRunStatus.FAILURE
    assert any("the driver ended without an answer" in line for line in launches.log().splitlines()), lines
    assert failed.tags[LEASES_TAG]
    held, suspects = launches.held()
    assert (held, suspects) == (ALL, 0)
    launches.finishes()


def test_lost_messages_lose_figures_alone(launches: Launches) -> None:
    """The messages go nowhere: the run succeeds, with a warning."""
    nowhere = f"{DAGSTER_PIPES_MESSAGES_ENV_VAR}={encode_param({'path': os.devnull})}"
    launches.go()
    run = launches.begin(["env", nowhere, *launches.submit, str(launches.folder / "submit.py"), "run"])
    assert launches.ends(run) == 0, launches.log()
    done, lines, shown = launches.of_dagster()
    assert any("only what the state has is shown" in line for line in lines)
    assert (shown["accepted_records"], shown["lag_records"]) == (ALL, 0)
    assert shown["member"] == done.tags[MEMBER_TAG]
    assert launches.accepted() == ALL


def test_a_driver_survives_dagster(launches: Launches) -> None:
    """SIGKILL of Dagster's processes: the driver is not at fault, and does all the work."""
    run = launches.begin()
    launches.works()
    of_dagster = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    doomed = [each for each in of_dagster if each not in launches.processes() and each.name() != "java"]
    for process in doomed:
        process.kill()
    run.wait(PATIENCE_S)
    launches.go()
    wait_until(lambda: launches.accepted() == ALL, PATIENCE_S, otherwise=launches.log)
    wait_until(lambda: not launches.processes(), PATIENCE_S, otherwise=launches.log)


def test_a_driver_on_the_cluster(launches: Launches) -> None:
    """`--deploy-mode cluster`, which Spark refuses for Python on such a cluster: `PythonRunner` is the application.
    The driver has the environment of the submission, whose address of the messages is a file of this machine."""
    launches.go()
    run = launches.begin(launches.on_the_cluster(waits=True))
    assert launches.ends(run) == 0, launches.log()
    _, _, shown = launches.of_dagster()
    assert (shown["accepted_records"], shown["lag_records"], launches.accepted()) == (ALL, 0, ALL)


def test_a_client_that_does_not_wait_is_a_failure(launches: Launches) -> None:
    """`spark-submit` ends before its driver has joined the group: Dagster's run fails, and its order may be gone when
    the driver looks for it. Whether that works or not, nothing is lost."""
    launches.go()
    run = launches.begin(launches.on_the_cluster(waits=False))
    assert launches.ends(run) == 1
    assert "it has leased nothing" in launches.log()
    wait_until(
        lambda: launches.ends(launches.begin()) == 0 and launches.accepted() == ALL,
        PATIENCE_S,
        otherwise=launches.log,
    )


def test_a_cancelled_run_takes_the_records_from_its_driver_on_the_cluster(launches: Launches) -> None:
    """`spark-submit` ends, and its driver does not: Dagster gives its records back, and it ends without them."""
    run = launches.begin(launches.on_the_cluster(waits=True))
    launches.works()
    begun = time.monotonic()
    run.send_signal(signal.SIGINT)
    assert launches.ends(run) == 1
    print(f"cancelled after {time.monotonic() - begun:.1f} s")
    assert launches.held() == (0, 0)
    wait_until(lambda: not launches.processes(), PATIENCE_S, otherwise=launches.log)
    assert launches.held() == (0, 0)
    launches.finishes()
