"""Sets of jars that only some need: each is exact, fits PySpark, and is asked for by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.local import jars
from sharequeue.local.optional_jars import MEGABYTES, jar_set
from sharequeue.spark.session import SparkNotReady, optional_jars
from sharequeue.words.settings import SettingInvalid, Settings
from sharequeue.words.settings.jar_sets import DESCRIPTIONS, folder_of


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_the_list_of_a_set_is_exact(name: str) -> None:
    """Each module is one file with a checksum, of PySpark's own versions; the stack and PySpark have none of it."""
    text = (Path(jars.__file__).parent / f"{name}.xml").read_text()
    modules = re.findall(rf'name="([^"]+)" rev="([^"]+)" conf="{name}->default" transitive="false"', text)
    assert {f"{name}/{module}-{version}.jar" for module, version in modules} == set(
        jars.expected(jar_set(name))
    )
    assert len(modules) == text.count("<dependency ")
    files = {path.name for path in (jars.pyspark_home() / "jars").iterdir()}
    taken = files | {path.partition("/")[2] for path in jars.expected()}
    assert not taken & {f"{module}-{version}.jar" for module, version in modules}
    versions = {re.sub(r"-\d.*", "", file): file.rpartition("-")[2].removesuffix(".jar") for file in files}
    same = {"s3a": ("hadoop-aws", "hadoop-client-api"), "avro": ("spark-avro_2.13", "spark-core_2.13")}
    if name in same:
        ours, theirs = same[name]
        assert dict(modules)[ours] == versions[theirs]
    else:
        assert versions["spark-core_2.13"].startswith("4.0.")  # what Delta 4.0 and this Iceberg are made for
    assert name in MEGABYTES


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
