"""What a project says of Spark reaches Spark, and the modules of its pipelines reach Spark's workers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from sharequeue.dagster import references, share_group_resources
from sharequeue.dagster.references import Reference
from sharequeue.dagster.resources import SETTINGS, SPARK, SettingsResource, SparkResource, StateResource
from sharequeue.domain.modules import own_path
from sharequeue.domain.settings import Settings
from sharequeue.spark import session


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            {"master": "local[1]", "conf": {"spark.driver.memory": "3g"}},
            ("local[1]", {"spark.driver.memory": "3g"}),
        ),
        ({}, (Settings.load().spark_master, {})),
    ],
)
def test_sparks_master_and_conf_are_fields_of_the_resource(
    given: dict[str, Any], wanted: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them it is as the settings say."""
    made: list[tuple[str, dict[str, str]]] = []

    def spark_session(settings: Settings, app_name: str, conf: dict[str, str]) -> SimpleNamespace:
        path = conf.pop("spark.executorEnv.PYTHONPATH").split(":")
        assert str(Path.cwd()) in path
        assert not [folder for folder in path if "site-packages" in folder]
        made.append((settings.spark_master, conf))
        return SimpleNamespace()

    monkeypatch.setattr(session, "spark_session", spark_session)
    located: Any = (share_group_resources(**given).resources or {})[SPARK]
    spark = SparkResource(settings=SettingsResource(), master=located.master, conf=located.conf)
    assert spark.session("orders") is spark.session("once")
    assert made == [wanted]


@pytest.mark.parametrize("launched", [None, "of the run"])
def test_all_resources_have_the_home_of_the_launch_config(launched: str | None, tmp_path: Path) -> None:
    """Otherwise half of a run would work on another state."""
    seen = []

    @dg.op
    def look(
        sharequeue_settings: SettingsResource,
        sharequeue_state: StateResource,
        sharequeue_spark: SparkResource,
    ) -> None:
        for settings in (sharequeue_settings, sharequeue_state.settings, sharequeue_spark.settings):
            seen.append(Path(settings.load().home).name)

    resources = dict(share_group_resources(home=str(tmp_path / "of the location")).resources or {})
    job = dg.GraphDefinition("job", node_defs=[look]).to_job(resource_defs=resources)
    home = {} if launched is None else {"home": str(tmp_path / launched)}
    assert job.execute_in_process({"resources": {SETTINGS: {"config": home}}}).success
    assert seen == 3 * [launched or "of the location"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with a package and a single module, which is on Python's path only while they are checked."""
    package = tmp_path / "project" / "shop_of_a_test"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "orders.py").write_text("from shop_of_a_test.rates import rate as handle\n")
    (package / "rates.py").write_text("def rate(): return 7\n")
    (package.parent / "single_of_a_test.py").write_text("def handle(): return 8\n")
    monkeypatch.setattr(references, "_found", {})
    for name in ("shop_of_a_test", "shop_of_a_test.orders", "shop_of_a_test.rates", "single_of_a_test"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with monkeypatch.context() as loading:
        loading.syspath_prepend(str(package.parent))
        for module in ("shop_of_a_test.orders", "single_of_a_test", "pytest"):
            Reference.parse(f"{module}:{'fixture' if module == 'pytest' else 'handle'}").check()
    monkeypatch.setattr(sys, "path", [*sys.path])
    return package.parent


def test_a_module_that_was_found_at_load_is_found_by_the_run(project: Path) -> None:
    """Dagster takes the working directory of a code location off Python's path after it has loaded it."""
    assert str(project) not in sys.path
    assert Reference.parse("single_of_a_test:handle").load()() == 8
    assert Reference.parse("shop_of_a_test.orders:handle").load()() == 7
    assert str(project) in own_path()


def test_a_cluster_gets_the_python_files_of_the_modules(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of the packages and modules that references name, and no installed ones; the zip is removed with the
    session."""
    (project / "shop_of_a_test" / "orders.parquet").write_bytes(b"1" * 1000)
    sent: list[str] = []
    fake = SimpleNamespace(sparkContext=SimpleNamespace(addPyFile=sent.append), stop=lambda: None)
    monkeypatch.setattr(session, "spark_session", lambda settings, app_name, conf: fake)
    spark: Any = SparkResource(settings=SettingsResource(), master="spark://there:7077")
    spark.session("orders")
    single, archive = sent
    assert single == str(project / "single_of_a_test.py")
    assert zipfile.ZipFile(archive).namelist() == [
        f"shop_of_a_test/{name}" for name in ("", "__init__.py", "orders.py", "rates.py")
    ]
    worker = tmp_path / "worker"
    worker.mkdir()
    shutil.copy(single, worker)
    code = "import shop_of_a_test.orders, single_of_a_test as s; print(shop_of_a_test.orders.handle(), s.handle())"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{archive}:{worker}"},
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "7 8\n", ran.stderr
    assert {*references.own_modules()} == {"shop_of_a_test", "single_of_a_test"}
    spark.teardown_after_execution(None)
    assert not Path(archive).exists()
