"""Spark's JVM: what users set reaches it, and it ends with the process that started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

from sharequeue.local.preflight import find_java
from tests.fixtures.stack import jars_folder
from tests.waiting import wait_until

PROGRAM = """
import json, sys
from pyspark import SparkContext
from sharequeue.domain.settings import Settings
from sharequeue.spark.session import spark_session

conf = json.loads(sys.argv[1])
spark = spark_session(Settings.load(), "start", conf)
jvm = spark._jvm

def through(batches):
    import handed_over
    for batch in batches:
        yield batch

spark.range(10).mapInArrow(through, "id long").count()
system = jvm.java.lang.System
print(json.dumps({
    "pid": SparkContext._gateway.proc.pid,
    "default": spark.conf.get("spark.sql.session.timeZone"),
    "ansi": spark.conf.get("spark.sql.ansi.enabled"),
    "property": system.getProperty("x"),
    "class path": system.getProperty("java.class.path"),
    "options": list(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()),
    "home": system.getProperty("java.home"),
}), flush=True)
sys.stdin.read()
"""


def without_vector(home: Path) -> Path:
    """Make a Java as the wheel's is: it does not start with `--add-modules=jdk.incubator.vector`."""
    real = find_java()
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *jdk.incubator.vector*) exit 1;; esac\nexec {real.executable} "$@"\n'
    )
    program.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{real.version}"\n')
    return home


@pytest.mark.timeout(300)
@pytest.mark.parametrize("vector", [True, False], ids=["any Java", "one without a module of the launcher's"])
def test_what_users_set_reaches_the_jvm_and_it_ends_with_its_process(tmp_path: Path, vector: bool) -> None:
    conf_folder, home = tmp_path / "conf", tmp_path / "home"
    conf_folder.mkdir()
    (conf_folder / "spark-defaults.conf").write_text("spark.sql.ansi.enabled false\n")
    handed_over = tmp_path / "handed_over.zip"
    with zipfile.ZipFile(handed_over, "w") as archive:
        archive.writestr("handed_over.py", "VALUE = 1")
    conf = {
        "spark.submit.pyFiles": str(handed_over),
        "spark.driver.memory": "700m",
        "spark.driver.extraClassPath": "/extra.jar",
    }
    environment = {
        **os.environ,
        "SHAREQUEUE_HOME": str(home),
        "SHAREQUEUE_JARS": str(jars_folder()),
        "SHAREQUEUE_SPARK_MASTER": "local[1]",
        "SPARK_CONF_DIR": str(conf_folder),
        "JDK_JAVA_OPTIONS": "-Dx=1",
        **({} if vector else {"JAVA_HOME": str(without_vector(tmp_path / "java"))}),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(conf)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, (home / "logs" / "spark.log").read_text()
    found = json.loads(line)
    assert (found["default"], found["ansi"], found["property"]) == ("UTC", "false", "1")
    assert "-Xmx700m" in found["options"]
    assert found["class path"].split(":")[0] == "/extra.jar"
    assert f"{conf_folder}/" in found["class path"].split(":")
    jvm = psutil.Process(found["pid"])
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE, 60)
