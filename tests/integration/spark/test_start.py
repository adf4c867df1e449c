"""Spark's JVM is started directly: as Spark's launcher would, and by the launcher where only that knows how."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pyspark import SparkConf

from sharequeue.local.preflight import find_java
from sharequeue.spark import gateway
from sharequeue.spark.gateway import NotStarted, java_command, java_environment, needs_launcher, start_gateway

SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    "spark.driver.extraClassPath": "/a:/b/*",
    "spark.driver.extraJavaOptions": '-Dx=y "-Dz=b c" \'-Dq="\'',
    "spark.jars": "/c.jar,/d.jar",
}


def conf(**more: str) -> SparkConf:
    made = SparkConf(loadDefaults=False)
    for name, value in {
        **SETTINGS,
        **{name.replace("_", "."): value for name, value in more.items()},
    }.items():
        made.set(name, value)
    return made


def test_the_command_is_the_one_of_sparks_launcher(tmp_path: Path) -> None:
    given = {
        **os.environ,
        "SPARK_CONF_DIR": str(tmp_path),
        "HADOOP_CONF_DIR": "/e",
        "SPARK_DIST_CLASSPATH": "/f/*",
    }
    environment = java_environment(
        {**given, "PYSPARK_SUBMIT_ARGS": "--name n --py-files g.zip pyspark-shell"}
    )
    java = find_java().executable.resolve()
    ours = java_command(java, conf(), environment)
    at = ours.index("org.apache.spark.deploy.SparkSubmit")
    launcher = [str(java), "-cp", f"{environment['SPARK_HOME']}/jars/*", "org.apache.spark.launcher.Main"]
    said = subprocess.run(
        [*launcher, *ours[at:]], capture_output=True, text=True, env=environment, check=True
    )
    theirs = [word.removeprefix("\n") for word in said.stdout.split("\0") if word.strip()]
    theirs = theirs[theirs.index(str(java)) :]
    cut = theirs.index("org.apache.spark.deploy.SparkSubmit")
    assert ours[:at] == theirs[:cut]
    assert sorted(ours[at:]) == sorted(theirs[cut:])


@pytest.mark.parametrize(
    ("more", "environment", "expected"),
    [
        ({"spark_master": "yarn"}, {}, "spark.master=yarn"),
        ({"spark_master": "local-cluster[2,1,512]"}, {}, "spark.master=local-cluster[2,1,512]"),
        ({"spark_driver_extraLibraryPath": "/n"}, {}, "spark.driver.extraLibraryPath"),
        ({"spark_driver_extraJavaOptions": "-Xmx1g"}, {}, "-Xmx in spark.driver.extraJavaOptions"),
        ({}, {"SPARK_SUBMIT_OPTS": "-Dx=1"}, "SPARK_SUBMIT_OPTS"),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--driver-memory 2g pyspark-shell"}, "PYSPARK_SUBMIT_ARGS"),
        (
            {},
            {"PYSPARK_SUBMIT_ARGS": "--conf spark.driver.extraClassPath=/x pyspark-shell"},
            "PYSPARK_SUBMIT_ARGS",
        ),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--jars /x.jar pyspark-shell"}, None),
        ({"spark_master": "local"}, {}, None),
        ({"spark_master": "spark://one:7077,two:7077"}, {"JDK_JAVA_OPTIONS": "-Dx=1"}, None),
    ],
)
def test_what_only_the_launcher_reads_is_left_to_it(
    more: dict[str, str], environment: dict[str, str], expected: str | None
) -> None:
    assert needs_launcher(conf(**more), environment) == expected


def test_files_that_only_the_launcher_reads_are_left_to_it(tmp_path: Path) -> None:
    environment, defaults = {"SPARK_CONF_DIR": str(tmp_path)}, tmp_path / "spark-defaults.conf"
    defaults.write_text(
        "# spark.driver.extraLibraryPath /x\nspark.driver.memory 3g\nspark.sql.ansi.enabled false\n"
    )
    assert needs_launcher(conf(), environment) is None, "our own memory wins either way"
    defaults.write_text("spark.driver.extraLibraryPath /x\n")
    assert needs_launcher(conf(), environment) == f"spark.driver.extraLibraryPath in {defaults}"
    defaults.unlink()
    (tmp_path / "spark-env.sh").touch()
    assert needs_launcher(conf(), environment) == str(tmp_path / "spark-env.sh")


def test_a_jvm_that_does_not_start_is_an_error_and_its_words_are_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "launch_gateway", lambda *_, **__: pytest.fail("the launcher was asked"))
    log = tmp_path / "spark.log"
    with log.open("ab") as output, pytest.raises(NotStarted, match="exit code 1"):
        start_gateway(conf(spark_driver_memory="1"), output)
    assert "Too small maximum heap" in log.read_text()
