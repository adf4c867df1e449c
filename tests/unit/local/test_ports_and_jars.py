"""Ports stay the same while they can; jars are what they should be."""

from __future__ import annotations

import hashlib
import re
import socket
from pathlib import Path

import pytest

from sharequeue.local import jars, ports
from sharequeue.local.home import Home, write_json
from sharequeue.local.preflight import StackError, find_java


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home.at(tmp_path)
    home.create()
    return home


def test_a_chosen_port_is_kept_over_restarts(home: Home) -> None:
    """Addresses written down elsewhere keep working."""
    said: list[str] = []
    first = ports.choose(home, "kafka", said.append)
    assert ports.choose(home, "kafka", said.append) == first
    assert said == []


def test_a_port_in_use_is_replaced_by_another_and_shown(home: Home) -> None:
    """Somebody else's server stays where it is."""
    with socket.socket() as other:
        other.bind((ports.LOOPBACK, 0))
        other.listen()
        taken = other.getsockname()[1]
        write_json(home.ports_file, {"kafka": taken})
        said: list[str] = []
        chosen = ports.choose(home, "kafka", said.append)
    assert chosen != taken
    assert ports.recorded(home) == {"kafka": chosen}
    assert said == [f"kafka: port {taken} is in use by another program: using {chosen} instead"]


def test_two_components_never_share_a_port(home: Home) -> None:
    """Not even while neither of them runs."""
    write_json(home.ports_file, {"kafka": ports.PREFERRED["postgres"]})
    assert ports.choose(home, "postgres", lambda line: None) != ports.PREFERRED["postgres"]


def test_every_defect_of_a_set_of_jars_is_named(tmp_path: Path) -> None:
    """Missing, altered and stray files: each would make a broker or a Spark fail later and elsewhere."""
    manifest = {f"broker/{name}.jar": hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b", "c")}
    (tmp_path / "broker").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "broker" / f"{name}.jar").write_text(name)
    assert jars.defects(tmp_path, manifest) == []
    (tmp_path / "broker" / "a.jar").unlink()
    (tmp_path / "broker" / "b.jar").write_text("B")
    (tmp_path / "broker" / "d.jar").write_text("d")
    assert jars.defects(tmp_path, manifest) == [
        "broker/a.jar is missing",
        "broker/b.jar has the wrong checksum",
        "broker/d.jar is not part of the set",
    ]


def test_jars_that_cannot_be_had_leave_nothing_behind(tmp_path: Path) -> None:
    """A mirror that does not answer: one message with what to set, and no half-done set."""
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="mirror"/><resolvers>'
        f'<ibiblio name="mirror" m2compatible="true" root="{(tmp_path / "nothing").as_uri()}/"/>'
        "</resolvers></ivysettings>"
    )
    with pytest.raises(StackError, match=r"could not be resolved.*SHAREQUEUE_IVY_SETTINGS"):
        jars.ensure(tmp_path / "jars", find_java(), settings, lambda line: None)
    assert not (tmp_path / "jars").exists()
    assert not list(tmp_path.glob("jars.resolving*"))


def test_the_connector_is_of_the_installed_sparks_version() -> None:
    """`jars.xml`, the manifest and pyproject's pin of PySpark move together."""
    wanted = re.search(
        r'spark-sql-kafka-0-10_2.13" rev="([^"]+)"', (Path(jars.__file__).parent / "jars.xml").read_text()
    )
    assert wanted is not None
    version = next(iter(jars.pyspark_home().glob("jars/spark-core_2.13-*.jar"))).stem.rpartition("-")[2]
    assert wanted.group(1) == version
    assert f"spark/spark-sql-kafka-0-10_2.13-{version}.jar" in jars.expected()


def test_the_list_of_jars_is_exact() -> None:
    """Each module that `jars.xml` names is one file of the manifest, and nothing beyond them is looked up."""
    text = (Path(jars.__file__).parent / "jars.xml").read_text()
    listed = re.findall(r'name="([^"]+)" rev="([^"]+)" conf="(\w+)->default" transitive="false"', text)
    files = {f"{part}/{name}-{version}.jar" for name, version, part in listed}
    assert files == set(jars.expected())
    assert len(listed) == text.count("<dependency ")
