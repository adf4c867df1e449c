"""The wheel, installed where a user works who has folders of his own called `pipelines` and `orchestration`."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from sharequeue.domain.settings import Settings
from tests.fixtures.pipelines import Produce
from tests.fixtures.stack import REPOSITORY, MakeTopic
from tests.waiting import PATIENCE_S

USER = textwrap.dedent(
    """
    import sys
    from pathlib import Path

    import pipelines, orchestration
    import sharequeue
    from pyspark.sql import functions as fn
    from sharequeue.database import Database
    from sharequeue.groups.configs import alter_group_configs
    from sharequeue.domain.settings import Settings
    from sharequeue.spark import lease

    group, topic = sys.argv[1:]
    assert (pipelines.OWNER, orchestration.OWNER) == ("user", "user")
    assert Path(sharequeue.__file__).is_relative_to(Path.cwd()), sharequeue.__file__
    with Database.open(Settings.load()) as database:
        alter_group_configs(database, group, {"share.auto.offset.reset": "earliest"})
    with lease(group, [topic]) as leased:
        leased.records.withColumn("outcome", fn.lit("accept")).write.parquet("orders.parquet")
        print("accepted", leased.acknowledge("orders.parquet").accepted)
    """
)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Give the wheel, built from the sdist: what a release is."""
    built, unpacked = tmp_path / "built", tmp_path / "unpacked"
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(built), "--target"]
    subprocess.run([*build, "sdist"], cwd=REPOSITORY, check=True, capture_output=True)
    (sdist,) = built.glob("*.tar.gz")
    unpacked.mkdir()
    # By tar: the first Pythons 3.11 unpack without a filter, the later ones warn about that.
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(unpacked)], check=True)
    (source,) = unpacked.iterdir()
    subprocess.run([*build, "wheel"], cwd=source, check=True, capture_output=True)
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture
def installed(wheel: Path, settings: Settings, service: str, tmp_path: Path) -> Callable[..., str]:
    """Give a function that runs Python in a user's folder, with the wheel and the packages it stands on."""
    folder = tmp_path / "user"
    for name in ("pipelines", "orchestration"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text('OWNER = "user"\n')
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(wheel)], check=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SHAREQUEUE_")},
        # Named here, the environment's folder is a plain one: the checkout's own link in it does not count.
        "PYTHONPATH": os.pathsep.join(
            [str(folder), str(folder / "site"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        ),
        "SHAREQUEUE_HOME": str(settings.home),
        "SHAREQUEUE_JARS": str(settings.jars),
        "SHAREQUEUE_SERVICE_URL": service,
        "SHAREQUEUE_OUTPUT": str(folder / "output"),
    }

    def run(*arguments: str) -> str:
        # -S: without the links of site-packages, one of which is to this checkout.
        ran = subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


def test_a_wheel_works_beside_a_users_own_pipelines(
    installed: Callable[..., str], group: str, make_topic: MakeTopic, produce: Produce
) -> None:
    """The wheel holds `sharequeue` alone, with its SQL files; the first example of the docs runs with it."""
    topic = make_topic(1)
    produce(topic, 0, range(50))
    assert "is up to date" in installed("-m", "sharequeue.cli", "migrate")
    assert installed("-c", USER, group, topic).split() == ["accepted", "50"]
