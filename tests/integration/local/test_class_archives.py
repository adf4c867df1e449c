"""Class-data archives: the JVMs take their classes from them, and say nothing of one that does not fit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pyspark import SparkConf

from sharequeue.jvm.class_archive import (
    QUIET,
    archive_options,
    broker_archive,
    folder_of,
    length_of,
    spark_archive,
)
from sharequeue.local.class_archives import keep_whole
from sharequeue.local.preflight import find_java
from sharequeue.settings import Settings
from sharequeue.spark.gateway import java_command, java_environment
from sharequeue.spark.session import configuration
from tests.fixtures.stack import jars_folder

OTHERS = ["nothing of the kind", "empty", "for another class path"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Give settings whose jars have small archives of their own, in a folder with a space in its path."""
    folder = tmp_path_factory.mktemp("a b") / "jars"
    folder.symlink_to(jars_folder())
    folder_of(folder).mkdir()
    spark, broker = spark_archive(folder), broker_archive(folder, find_java().executable)
    assert spark is not None
    assert broker is not None
    keep_whole(spark, lambda staged: print(_spark(f'"-XX:ArchiveClassesAtExit={staged}" {QUIET}')))
    keep_whole(
        broker, lambda staged: print(_broker_tool(folder, [f"-XX:ArchiveClassesAtExit={staged}", QUIET]))
    )
    return Settings.load(folder.parent).replace(jars=folder)


def test_sparks_jvm_takes_its_classes_from_the_archive(settings: Settings) -> None:
    options = configuration(settings, "archive")["spark.driver.extraJavaOptions"]
    said = _spark(f"{options} -Xlog:class+load")
    assert _from_archive("org.apache.spark.deploy.SparkSubmit", said)


def test_the_broker_takes_its_classes_from_the_archive(settings: Settings) -> None:
    options = archive_options(broker_archive(settings.jars, find_java().executable))
    done = _broker_tool(settings.jars, [*options, "-Xlog:class+load"])
    assert _from_archive("kafka.tools.StorageTool", done.stdout)


@pytest.mark.parametrize("kind", OTHERS)
def test_an_archive_that_does_not_fit_is_ignored_without_a_word(
    kind: str, settings: Settings, tmp_path: Path
) -> None:
    archive, own = tmp_path / "other.jsa", broker_archive(settings.jars, find_java().executable)
    assert own is not None
    if kind == "for another class path":
        archive = own  # the path of the jars is another
    else:
        archive.write_bytes(b"" if kind == "empty" else b"nothing of the kind" * 1000)
        length_of(archive).write_text(str(archive.stat().st_size))
    done = _broker_tool(jars_folder(), archive_options(archive, {}))
    assert (done.returncode, done.stderr) == (0, _broker_tool(jars_folder(), []).stderr)
    assert len(done.stdout.split()) == 1, done.stdout


def _from_archive(name: str, said: str) -> bool:
    line = next(line for line in said.splitlines() if f" {name} source:" in line)
    return "shared objects file (top)" in line


def _spark(options: str) -> str:
    environment = java_environment({**os.environ, "PYSPARK_SUBMIT_ARGS": "--version"})
    conf = SparkConf(loadDefaults=False).set("spark.driver.extraJavaOptions", options)
    command = java_command(find_java().executable, conf, environment)
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout


def _broker_tool(folder: Path, options: list[str]) -> subprocess.CompletedProcess[str]:
    java = find_java()
    command = [str(java.executable), *options, "-cp", str(folder / "broker" / "*")]
    return subprocess.run(
        [*command, "kafka.tools.StorageTool", "random-uuid"],
        capture_output=True,
        text=True,
        env=java.environment(),
        check=False,
    )
