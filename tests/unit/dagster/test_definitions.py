"""The code location: it loads quickly and without a warning, and says what the files around it say."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import dagster as dg
import pytest
import yaml

from orchestration.definitions import defs
from orchestration.demo.queue import QUEUE
from sharequeue.dagster.assets.dead_letters import checks_in_one_process
from sharequeue.dagster.resources import SETTINGS, SPARK, STATE

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def repository() -> dg.RepositoryDefinition:
    """Give everything that the code location defines."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return defs().get_repository_def()


def test_one_job_makes_the_assets_in_the_order_of_the_life_of_a_record(
    repository: dg.RepositoryDefinition,
) -> None:
    """Accept, dead-letter and summarise, report, check: the job's steps in the order of their execution."""
    steps = repository.get_job("flight_delays").nodes_in_topological_order
    assert [step.name for step in steps] == [
        "flight_delays_accepted",
        "flight_delays_dead_letters",
        "flight_delays_delays",
        "flight_delays_delivery_counts",
        "flight_delays_spso_and_lag",
        "flight_delays_dead_letter_suite",
        "flight_delays_state_invariants",
    ]


def test_the_job_runs_in_one_process(repository: dg.RepositoryDefinition) -> None:
    """A run is one process with one JVM, so that a signal to it ends all of it."""
    assert repository.get_job("flight_delays").executor_def.name == "in_process"


def test_who_writes_letters_knows_whether_its_process_checks_them(
    repository: dg.RepositoryDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Great Expectations is imported meanwhile, but only for a process that needs it."""
    job = repository.get_job("flight_delays")
    assert checks_in_one_process(job, "flight_delays")
    assert checks_in_one_process(repository.get_job("flight_delays_checks"), "flight_delays")
    assert not checks_in_one_process(repository.get_job("flight_delays_replay"), "flight_delays")
    assert not checks_in_one_process(job.with_executor_def(dg.multiprocess_executor), "flight_delays")


def test_the_launchpad_says_what_each_field_means(repository: dg.RepositoryDefinition) -> None:
    """Every field of the config of our steps and resources has a description."""
    silent = []
    for job in repository.get_all_jobs():
        resources = {
            name: job.resource_defs[name] for name in (SETTINGS, STATE, SPARK) if name in job.resource_defs
        }
        for name, each in [*((node.name, node.definition) for node in job.nodes), *resources.items()]:
            schema = each.config_schema
            fields = getattr(schema.as_field().config_type, "fields", {}) if schema else {}
            silent += [f"{name}.{field}" for field, given in fields.items() if not given.description]
    assert silent == []


def test_automation_is_off_until_switched_on(repository: dg.RepositoryDefinition) -> None:
    """Neither the sensor nor the schedule runs by itself in a fresh instance."""
    assert repository.get_sensor_def("flight_delays_lag").default_status == dg.DefaultSensorStatus.STOPPED
    schedule = repository.get_schedule_def("flight_delays_schedule")
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED


def test_loading_imports_neither_spark_nor_great_expectations() -> None:
    """Dagster loads definitions often; what takes seconds to import is imported by the run that needs it."""
    code = (
        "import sys; from orchestration.definitions import defs; defs();"
        "print([m for m in ('pyspark', 'great_expectations', 'pandas') if m in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "[]"


def test_the_workspace_loads_without_a_warning(tmp_path: Path) -> None:
    """`workspace.yaml` leads to the code location, and loading it warns of nothing."""
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path)}
    validated = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
    )
    said = validated.stdout + validated.stderr
    assert validated.returncode == 0, said
    assert "Validation successful for code location sharequeue" in said
    # The command itself is called superseded by another of Dagster's, which is no matter of the location's.
    assert [
        line for line in said.splitlines() if "Warning" in line and "SupersessionWarning" not in line
    ] == []


def test_workspace_and_project_name_the_same_location() -> None:
    """`workspace.yaml` and `[tool.dg]` agree on the module and the location's name."""
    import tomllib

    (location,) = yaml.safe_load((REPOSITORY / "workspace.yaml").read_text())["load_from"]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["dg"]["project"]
    module = location["python_module"]
    assert module["module_name"] == project["code_location_target_module"]
    assert module["location_name"] == project["code_location_name"]


def test_dagster_accepts_the_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dagster.yaml` is valid, keeps its storage where the environment says, and sends no telemetry."""
    # The only function of Dagster that reads a dagster.yaml without opening its storage.
    from dagster._core.instance.config import dagster_instance_config

    monkeypatch.setenv("SHAREQUEUE_DAGSTER_URL", "postgresql+psycopg2://u:p@localhost/dagster")
    (tmp_path / "dagster.yaml").write_text((REPOSITORY / "dagster.yaml").read_text())
    config, _ = dagster_instance_config(str(tmp_path))
    assert config["storage"]["postgres"]["postgres_url"] == {"env": "SHAREQUEUE_DAGSTER_URL"}
    assert config["telemetry"] == {"enabled": False}
    assert config["run_monitoring"]["enabled"] is True
    assert config["concurrency"]["pools"] == {"default_limit": 2, "granularity": "run"}


def test_the_definitions_have_the_names_of_the_pipeline() -> None:
    """The names that definitions repeat, so as not to import Spark, are those of the pipeline."""
    from pipelines.flights.pipeline import flight_delays

    assert flight_delays.group == QUEUE.group
    assert list(flight_delays.topics) == list(QUEUE.topics)
