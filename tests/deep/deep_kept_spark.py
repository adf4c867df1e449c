"""Spark's JVM kept between runs: each run finds it as new, and none can hold up or break another."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharequeue.database import Database
from sharequeue.groups.configs import alter_group_configs
from sharequeue.jvm.kept_spark import NAME, Address, NoKeeper, address_file, ask, log_file
from sharequeue.local import processes
from sharequeue.local.home import Home
from sharequeue.local.stack import StackInfo
from sharequeue.state import State
from tests.fixtures.pipelines import Produce
from tests.fixtures.stack import MakeTopic, jars_folder
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

LOOP = """
import json, logging, os, sys
logging.basicConfig(format="%(message)s")
from sharequeue.settings import Settings
from sharequeue.spark.session import spark_session

conf = json.loads(sys.argv[1])
spark = spark_session(Settings.load(), "guest", conf)
context = spark.sparkContext
jvm = spark._jvm
names = dict(globals())
for line in sys.stdin:
    exec(json.loads(line), names)
    print("answer", json.dumps(names.pop("answer", None)), flush=True)
"""
JVM = "answer = jvm.java.lang.ProcessHandle.current().pid()"
FOREVER = """
import threading, time
def slow(batches):
    for batch in batches:
        time.sleep(600)
        yield batch
threading.Thread(target=lambda: spark.range(2).mapInArrow(slow, "id long").collect(), daemon=True).start()
"""
AGAIN = """
deadline = time.monotonic() + 60
answer = [0, 0, 0]
while answer[0] == 0 and time.monotonic() < deadline:
    answer = run()
"""
WORKERS = """
import os
def pids(batches):
    import pyarrow as pa
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"pid": [os.getppid()], "seen": [os.environ.get("SEEN", "")]})
row = spark.range(1).mapInArrow(pids, "pid long, seen string").collect()[0]
answer = [row.pid, row.seen]
"""


class Run:
    """A process with a session, to which code is given."""

    def __init__(self, home: Path, conf: dict[str, str] | None = None, **variables: str) -> None:
        environment = {
            **os.environ,
            "SHAREQUEUE_HOME": str(home),
            "SHAREQUEUE_JARS": str(jars_folder()),
            "SHAREQUEUE_SPARK_MASTER": "local[2]",
            "SHAREQUEUE_KEEP_SPARK_SECONDS": "300",
            **variables,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOOP, json.dumps(conf or {})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __call__(self, code: str) -> Any:
        """Run this code there, and return its `answer`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise AssertionError(f"it ended: {self.said()}")

    def end(self) -> str:
        """End it; return what it has said."""
        self("spark.stop()")
        return self.said()

    def said(self) -> str:
        _, said = self.process.communicate(timeout=60)
        return said

    def kill(self) -> str:
        """Kill it; return what it has said."""
        self.process.kill()
        return self.said()


Begin = Callable[..., Run]


def down_keeper(home: Path) -> None:
    """End the keeper of a data folder, as `down` does."""
    running = processes.find(Home.at(home), NAME)
    if running is not None:
        processes.stop(Home.at(home), running)
    assert not address_file(home).exists()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a data folder, whose keeper is ended afterwards."""
    folder = tmp_path_factory.mktemp("kept")
    yield folder
    down_keeper(folder)


@pytest.fixture
def begin(home: Path) -> Iterator[Begin]:
    """Give a function that begins a run; all of them are ended."""
    runs: list[Run] = []

    def began(conf: dict[str, str] | None = None, **variables: str) -> Run:
        runs.append(Run(home, conf, **variables))
        return runs[-1]

    yield began
    for run in runs:
        if run.process.poll() is None:
            run.kill()
    wait_until(lambda: nobody_is_attached(home))


def nobody_is_attached(home: Path) -> bool:
    try:
        return bool(ask(home)["attached"] == 0)
    except NoKeeper:
        return True


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_run_leaves_nothing_but_the_jvm(home: Path, begin: Begin, tmp_path: Path) -> None:
    code = tmp_path / "handler_of_kept.py"
    code.write_text("VALUE = 1")
    handler = (
        "def through(batches):\n"
        "    import handler_of_kept, pyarrow as pa\n"
        "    for batch in batches:\n"
        "        yield pa.RecordBatch.from_pydict({'value': [handler_of_kept.VALUE]})\n"
        "answer = spark.range(1).mapInArrow(through, 'value long').collect()[0].value\n"
    )
    first = begin(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}", SEEN="first")
    jvm = first(JVM)
    assert first(handler) == 1
    worker, seen = first(WORKERS)
    assert seen == "first"
    first(
        "frame = spark.range(1000).cache(); frame.count()\n"
        "frame.createOrReplaceTempView('view'); frame.createOrReplaceGlobalTempView('everywhere')\n"
        f"frame.write.option('path', {str(tmp_path / 'table')!r}).saveAsTable('kept_table')\n"
        "spark.conf.set('spark.sql.shuffle.partitions', '77'); context.setJobDescription('the first run')\n"
        "spark.udf.register('mine', lambda x: x)\n"
        "total = context.accumulator(0)\n"
        "context.parallelize(range(10)).foreach(lambda x: total.add(x)); answer = total.value"
    )
    first.end()
    wait_until(lambda: gone(worker))
    wait_until(lambda: nobody_is_attached(home))
    code.write_text("VALUE = 2")
    second = begin(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert second(JVM) == jvm, second.end()
    assert second(handler) == 2, "a worker of the last run had the old code"
    assert second(WORKERS)[1] == ""
    tables = (
        "answer = [t.name for t in [*spark.catalog.listTables(), *spark.catalog.listTables('global_temp')]]"
    )
    assert second(tables) == []
    assert second("answer = spark.conf.get('spark.sql.shuffle.partitions')") == "2"
    assert second("answer = spark.catalog.functionExists('mine')") is False
    assert second("answer = context._jsc.sc().getPersistentRDDs().size()") == 0
    assert second("answer = context.getLocalProperty('spark.job.description')") is None
    assert second("answer = len(context.getJobTags())") == 1, "its own"
    count = "answer = context._jsc.sc().listenerBus().listeners().size()"
    listeners = second(count)
    second.end()
    third = begin()
    assert third(JVM) == jvm
    assert third(count) <= listeners + 1
    third.end()


def test_a_killed_run_is_cleared_away_and_another_at_the_same_time_goes_on(home: Path, begin: Begin) -> None:
    killed, other = begin(), begin()
    jvm = killed(JVM)
    assert other(JVM) == jvm
    worker, _ = killed(WORKERS)
    killed(FOREVER)
    active = "answer = len(context.statusTracker().getActiveJobsIds())"
    wait_until(lambda: other(active) == 1)
    slow = "answer = spark.range(2).mapInArrow(lambda bs: (b for b in bs), 'id long').count()"
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.communicate()
    wait_until(lambda: other(active) == 0)
    wait_until(lambda: gone(worker))
    wait_until(lambda: ask(home)["attached"] == 1)
    assert other(slow) == 2
    assert other(JVM) == jvm
    other.end()
    again = begin()
    assert again(JVM) == jvm
    again.end()


def test_a_stopped_run_may_begin_again(begin: Begin) -> None:
    run = begin()
    jvm = run(JVM)
    run("spark.stop()")
    again = (
        "spark = spark_session(Settings.load(), 'again'); jvm = spark._jvm; context = spark.sparkContext\n"
    )
    assert run(again + JVM) == jvm
    assert run("answer = spark.range(5).count()") == 5
    run.end()


def test_other_settings_get_a_jvm_of_their_own_while_one_is_in_use_and_replace_it_when_not(
    begin: Begin,
) -> None:
    other = {"spark.driver.memory": "600m"}
    first = begin()
    jvm = first(JVM)
    second = begin(other)
    assert second(JVM) != jvm
    assert "it is in use with other settings: spark.driver.memory" in second.end()
    assert first("answer = spark.range(3).count()") == 3
    first.end()
    third = begin(other)
    replaced = third(JVM)
    assert replaced != jvm
    wait_until(lambda: gone(jvm))
    assert "Spark's kept JVM is replaced: a run has other settings (spark.driver.memory)" in third.end()
    fourth = begin(other)
    assert fourth(JVM) == replaced
    fourth.end()
    begin().end()  # as the other tests have it


def test_a_run_that_changed_the_whole_context_is_its_jvms_last(
    home: Path, begin: Begin, tmp_path: Path
) -> None:
    module = tmp_path / "added.py"
    module.write_text("VALUE = 1")
    first = begin()
    jvm = first(JVM)
    first(f"context.addPyFile({str(module)!r})")
    first.end()
    second = begin()
    assert second(JVM) != jvm
    second.end()
    assert "Hadoop's configuration of the whole context" in log_file(home).read_text()


def test_a_silent_keeper_and_a_dead_one_cost_a_jvm_of_ones_own_or_a_new_one(home: Path, begin: Begin) -> None:
    begin().end()
    keeper = psutil.Process(ask(home)["pid"])
    keeper.suspend()
    try:
        first = begin()
        assert first("answer = spark.range(3).count()") == 3
        assert "its keeper said nothing within" in first.end()
    finally:
        keeper.resume()
    keeper.kill()
    second = begin()
    assert second("answer = spark.range(3).count()") == 3
    assert ask(home)["pid"] != keeper.pid
    second.end()


def test_the_secret_is_in_a_file_of_its_users_alone(home: Path, begin: Begin) -> None:
    run = begin()
    run(JVM)
    file = address_file(home)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = Address(**json.loads(file.read_text())).secret
    keeper = psutil.Process(ask(home)["pid"])
    for process in (keeper, *keeper.children(recursive=True), psutil.Process(run.process.pid)):
        assert secret not in str(process.cmdline()) + str(process.environ())
    assert secret not in log_file(home).read_text()
    file.write_text(json.dumps({"port": json.loads(file.read_text())["port"], "secret": "another"}))
    with pytest.raises(NoKeeper):
        ask(home)
    file.write_text(json.dumps({"port": json.loads(file.read_text())["port"], "secret": secret}))
    run.end()


JOB = """
import threading, time
from sharequeue.spark import pipeline
@pipeline(group=GROUP, topics=[TOPIC], sink=GROUP, lock_duration_ms=3000)
def handled(records):
    def through(batches):
        for batch in batches:
            time.sleep(SLEEP)
            yield batch
    return records.mapInArrow(through, records.schema).selectExpr("*", "'accept' as outcome")
def run():
    report = handled.run(progress=False)
    return [report.leased, report.accepted, handled.output().count()]
"""


def test_a_killed_runs_records_are_delivered_again_in_the_same_jvm(
    stack: StackInfo,
    service: str,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    database: Database,
    state: State,
    tmp_path: Path,
) -> None:
    topic = make_topic(1)
    produce(topic, 0, range(100))
    alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
    job = JOB.replace("GROUP", repr(group)).replace("TOPIC", repr(topic))
    begun: list[Run] = []

    def begin() -> Run:
        variables = {"SHAREQUEUE_SERVICE_URL": service, "SHAREQUEUE_OUTPUT": str(tmp_path / "output")}
        begun.append(Run(stack.home, None, **variables))
        return begun[-1]

    try:
        killed, other = begin(), begin()
        jvm = killed(JVM)
        killed(job.replace("SLEEP", "600") + "threading.Thread(target=run, daemon=True).start()")
        wait_until(lambda: state.figures.leases(group) != [], 60, lambda: killed.kill())
        wait_until(lambda: other("answer = len(context.statusTracker().getActiveJobsIds())") > 0)
        killed.kill()
        wait_until(lambda: other("answer = len(context.statusTracker().getActiveJobsIds())") == 0)
        again = other("import time\n" + job.replace("SLEEP", "0") + AGAIN)
        assert (again, other(JVM)) == ([100, 100, 100], jvm)
        other.end()
    finally:
        for run in begun:
            if run.process.poll() is None:
                run.kill()
        down_keeper(stack.home)


def test_after_the_idle_limit_the_jvm_goes(tmp_path: Path) -> None:
    run = Run(tmp_path, SHAREQUEUE_KEEP_SPARK_SECONDS="1")
    jvm = run(JVM)
    keeper = ask(tmp_path)["pid"]
    run.end()
    wait_until(lambda: gone(keeper) and gone(jvm))
    assert not address_file(tmp_path).exists()
    assert "no run for 1 s" in log_file(tmp_path).read_text()


ENDS_ITS_JVM = """
import os, signal
from sharequeue.spark import SparkNotReady, pipeline
jvm_pid = jvm.java.lang.ProcessHandle.current().pid()
@pipeline(group=GROUP, topics=[TOPIC], sink=GROUP)
def handled(records):
    def through(batches):
        for batch in batches:
            os.kill(jvm_pid, signal.SIGKILL)
            yield batch
    return records.mapInArrow(through, records.schema).selectExpr("*", "'accept' as outcome")
try:
    handled.run(progress=False)
except SparkNotReady as error:
    answer = str(error)
"""


def test_a_kept_jvm_that_is_killed_under_a_run_is_named(
    stack: StackInfo,
    service: str,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    database: Database,
    state: State,
    tmp_path: Path,
) -> None:
    """The run says what happened, and not that a connection was refused; it holds nothing."""
    topic = make_topic(1)
    produce(topic, 0, range(10))
    alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
    run = Run(stack.home, SHAREQUEUE_SERVICE_URL=service, SHAREQUEUE_OUTPUT=str(tmp_path / "output"))
    try:
        said = run(ENDS_ITS_JVM.replace("GROUP", repr(group)).replace("TOPIC", repr(topic)))
        assert f"the Spark session of group {group} has ended under its work" in said
        assert state.figures.leases(group) == []
        assert run.process.poll() is None
    finally:
        run.kill()
        down_keeper(stack.home)
