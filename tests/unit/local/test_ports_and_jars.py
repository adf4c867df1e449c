"""Ports stay the same while they can; jars are what they should be."""

from __future__ import annotations

import hashlib
import socket
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharequeue.domain.settings import jar_sets
from sharequeue.domain.settings.jar_sets import CONNECTOR, SERIES
from sharequeue.local import jars, ports
from sharequeue.local.home import Home, write_json
from sharequeue.local.preflight import StackError, find_java
from tests.fixtures.stack import REPOSITORY


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


def test_components_that_start_at_the_same_time_record_all_ports(home: Home) -> None:
    """Postgres and the broker start in two threads: each keeps the other's entry."""
    for _ in range(20):
        home.ports_file.unlink(missing_ok=True)
        with ThreadPoolExecutor(len(ports.PREFERRED)) as pool:
            chosen = [
                *pool.map(lambda name: (name, ports.choose(home, name, lambda line: None)), ports.PREFERRED)
            ]
        assert ports.recorded(home) == dict(chosen)


def test_every_defect_of_a_set_of_jars_is_named(tmp_path: Path) -> None:
    """Missing, altered and stray files: each would make a broker or a Spark fail later and elsewhere."""
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b", "c")}
    lines = [f"{digest} org.example:{name}:1.0" for name, digest in digests.items()]
    (tmp_path / "few.txt").write_text("# Three jars.\n" + "\n".join(lines))
    few = jars.JarSet("few", "three jars", 1, tmp_path)
    folder = tmp_path / "jars" / "few"
    folder.mkdir(parents=True)
    for name in digests:
        (folder / f"{name}-1.0.jar").write_text(name)
    assert jars.defects(tmp_path / "jars", few) == []
    (folder / "a-1.0.jar").unlink()
    (folder / "b-1.0.jar").write_text("B")
    (folder / "d-1.0.jar").write_text("d")
    assert jars.defects(tmp_path / "jars", few) == [
        "few/a-1.0.jar is missing",
        "few/b-1.0.jar has the wrong checksum",
        "few/d-1.0.jar is not part of the set",
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
        jars.ensure_stack(tmp_path / "jars", find_java(), settings, lambda line: None)
    assert not (tmp_path / "jars").exists()
    assert not list(tmp_path.glob("jars.resolving*"))


def test_the_stack_has_the_connector_of_the_installed_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each series there is a list with a connector of that series; another Spark is refused, with what to do."""
    for series in SERIES[CONNECTOR]:
        monkeypatch.setattr(jar_sets, "version", lambda _, series=series: f"{series}.7")
        broker, connector = jars.stack_sets()
        assert (broker.name, connector.name) == ("broker", f"connector-{series}")
        [ours] = [version for _, _, name, version in connector.modules if name.startswith("spark-sql-kafka")]
        assert ours.startswith(f"{series}.")
    monkeypatch.setattr(jar_sets, "version", lambda _: "4.9.0")
    with pytest.raises(StackError, match=r"set connector for Spark 4.9.0, only for 4.0 and .*pip install"):
        jars.stack_sets()


def test_pyproject_has_the_bounds_of_the_lists() -> None:
    """The first and the last series with a connector are the bounds of PySpark."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    [bounds] = [each for each in project["optional-dependencies"]["spark"] if each.startswith("pyspark")]
    first, last = SERIES[CONNECTOR][0], SERIES[CONNECTOR][-1]
    after = f"4.{int(last.partition('.')[2]) + 1}"
    assert bounds == f"pyspark[sql]>={first},<{after}"
