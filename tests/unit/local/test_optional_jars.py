"""Sets of jars that only some need: each is exact, fits PySpark, and is asked for by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.domain.settings import SettingInvalid, Settings, jar_sets
from sharequeue.domain.settings.jar_sets import CONNECTOR, DESCRIPTIONS, SERIES, folder_of
from sharequeue.local import jars
from sharequeue.local.optional_jars import MEGABYTES, ensure, jar_set, state
from sharequeue.local.preflight import StackError
from sharequeue.spark.session import SparkNotReady, optional_jars

LISTS = Path(jars.__file__).parent / "jar_lists"
OF_SETS = [f"{name}-{series}" for name, all_series in SERIES.items() for series in all_series]


def test_there_is_a_list_for_each_set_and_series() -> None:
    """The folder has the lists that the names promise, and no other."""
    assert sorted(path.stem for path in LISTS.glob("*")) == sorted([*OF_SETS, "broker"])
    assert MEGABYTES.keys() == DESCRIPTIONS.keys() == SERIES.keys() - {CONNECTOR}


@pytest.mark.parametrize("name", [*OF_SETS, "broker"])
def test_each_line_of_a_list_is_a_checksum_and_a_module(name: str) -> None:
    """No module is listed twice, and what is Spark's own is of the set's series."""
    modules = jars.JarSet(name, "", 0).modules
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest, _, _, _ in modules)
    assert len({(organisation, module) for _, organisation, module, _ in modules}) == len(modules)
    for _, organisation, module, version in modules:
        if organisation == "org.apache.spark":
            assert f"{version.rpartition('.')[0]}" == name.rpartition("-")[2], module


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_set_has_nothing_that_the_stack_or_pyspark_has(name: str) -> None:
    """Its Hadoop is PySpark's own."""
    files = {path.name for path in (jars.pyspark_home() / "jars").iterdir()}
    taken = files | {file for each in jars.stack_sets() for file in jars.expected(each)}
    assert not taken & jars.expected(jar_set(name)).keys()
    versions = {re.sub(r"-\d.*", "", file): file.rpartition("-")[2].removesuffix(".jar") for file in files}
    for _, _, module, version in jar_set(name).modules:
        if module == "hadoop-aws":
            assert version == versions["hadoop-client-api"]


def test_a_set_that_is_not_for_this_spark_is_refused_with_those_that_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a session, by the command that fetches, and in the list of the sets."""
    monkeypatch.setattr(jar_sets, "version", lambda _: "4.2.1")
    said = r"set delta for Spark 4\.2\.1, only for 4\.0 and 4\.1: pip install 'pyspark\[sql\]==4\.1\.\*'"
    settings = Settings.load(tmp_path, spark_jars="delta", jars=tmp_path / "jars")
    with pytest.raises(SparkNotReady, match=said):
        optional_jars(settings)
    with pytest.raises(StackError, match=said):
        ensure(settings, ["avro", "delta"], print)
    assert not settings.jars.exists()
    assert (state(settings, "delta"), state(settings, "avro")) == ("not for this Spark", "not fetched")
    assert optional_jars(settings.replace(spark_jars=(), output="s3a://bucket/out")) == {}


def test_sets_are_named_by_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment, kept by a copy; a set that there is not is refused with those that there are."""
    monkeypatch.setenv("SHAREQUEUE_SPARK_JARS", "delta, avro,delta")
    settings = Settings.load(tmp_path)
    assert settings.spark_jars == ("delta", "avro")
    assert settings.replace(output="/elsewhere").spark_jars == ("delta", "avro")
    with pytest.raises(
        SettingInvalid, match="'hudi' is not a known set of jars: expected any of s3a, delta, iceberg, avro"
    ):
        Settings.load(tmp_path, spark_jars="hudi")


def test_a_session_gets_what_is_named_and_there(tmp_path: Path) -> None:
    """What is missing is an error with the command; the client of S3 comes with such an output, where it is there."""
    settings = Settings.load(tmp_path, spark_jars="delta,avro", jars=tmp_path / "jars")
    assert optional_jars(settings.replace(spark_jars=())) == {}
    jar = folder_of(settings.jars, "delta") / "a.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    with pytest.raises(SparkNotReady, match=r"names avro, .*run `sharequeue jars fetch avro`"):
        optional_jars(settings)
    on_s3 = settings.replace(spark_jars="delta", output="s3a://bucket/out")
    assert optional_jars(on_s3) == {"delta": [jar], "s3a": []}


@pytest.mark.usefixtures("no_environment")
def test_the_command_lists_the_sets(tmp_path: Path) -> None:
    """With what is fetched; an unknown set is a mistake on the command line."""
    result = CliRunner().invoke(command, ["jars", "list", "--home", str(tmp_path), "-o", "json"])
    assert {row["name"]: row["state"] for row in json.loads(result.stdout)} == dict.fromkeys(
        DESCRIPTIONS, "not fetched"
    )
    assert CliRunner().invoke(command, ["jars", "fetch", "hudi"]).exit_code == 2
