"""Where a `defs.yaml` has the driver started: its asset's resource, and what can be wrong with it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox
from pydantic import ValidationError

from sharequeue.dagster import ShareGroupComponent, share_group_resources
from sharequeue.dagster.launching import argument_problem, is_wrong_command
from tests.fixtures.dagster import share_group
from tools.pages import ROOT

TEMPLATES = """
import dagster as dg

class Task:
    name = "spark"

@dg.template_var
def spark_task():
    return Task()
"""
ARGUMENTS = {"task": "{{ spark_task }}", "command": ["run", "{{ 'a' + 'b' }}"]}


def test_arguments_may_be_objects_of_template_variables() -> None:
    """The clients of Databricks and Dataproc take objects; lists and texts in arguments are filled in, too."""
    attributes: dict[str, Any] = {
        "group": "orders",
        "topics": ["orders"],
        "pipeline": "pipelines.flights.pipeline:flight_delays",
        "run": {"launch": {"client": "databricks", "arguments": ARGUMENTS}},
    }
    kind = f"{ShareGroupComponent.__module__}.ShareGroupComponent"
    with create_defs_folder_sandbox() as sandbox:
        folder = Path(sandbox.defs_folder_path) / "orders"
        folder.mkdir()
        (folder / "templates.py").write_text(TEMPLATES)
        (folder / "defs.yaml").write_text(
            yaml.safe_dump({"type": kind, "template_vars_module": ".templates", "attributes": attributes})
        )
        with sandbox.load_component_and_build_defs(defs_path=folder) as (component, defs):
            assert isinstance(component, ShareGroupComponent)
            launch = component.run.launch
            assert launch is not None
            assert launch.arguments["task"].name == "spark"
            assert launch.arguments["command"] == ["run", "ab"]
            (accepted,) = [
                each
                for each in defs.assets or ()
                if isinstance(each, dg.AssetsDefinition) and each.op.name == "orders_accepted"
            ]
            assert "databricks" in accepted.required_resource_keys
            with pytest.raises(dg.DagsterInvalidDefinitionError, match="'databricks'"):
                dg.Definitions.validate_loadable(dg.Definitions.merge(defs, share_group_resources()))


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({"client": ""}, "client must not be empty"),
        ({"client": "a", "arguments": {"context": 1}}, "the run gives 'context' itself: leave it out"),
        ({"client": "a", "arguments": {"extras": {}}}, "the run gives 'extras' itself: leave it out"),
    ],
)
def test_what_no_client_takes_from_a_yaml_is_refused(launch: dict[str, Any], words: str) -> None:
    """It is found when the definitions are loaded; the names of the client's other arguments, in the run."""
    with pytest.raises(ValidationError, match=words):
        share_group("orders", run={"launch": launch})


class TakesAll(dg.PipesClient):
    """A client that takes whatever it gets."""

    def run(self, *, context: Any, extras: Any = None, **kwargs: Any) -> Any:
        """Do nothing."""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"command": ["a"], "cwd": "/"}, ""),
        ({}, "missing a required argument: 'command': "),
        ({"comand": ["a"]}, "there is no argument 'comand': "),
        ({"command": ["a"], "shell": True}, "there is no argument 'shell': "),
    ],
)
def test_a_wrong_argument_is_named_with_those_of_the_client(arguments: dict[str, Any], problem: str) -> None:
    """A client that takes any arguments gets them."""
    known = problem and "PipesSubprocessClient.run takes command, env, cwd"
    assert argument_problem(dg.PipesSubprocessClient(), arguments) == f"{problem}{known}"
    assert argument_problem(TakesAll(), arguments) == ""


@pytest.mark.parametrize(
    ("command", "is_wrong"),
    [
        (["no-such-program"], True),
        ("sh -c true", True),
        (["/"], True),
        ([1], True),
        (["sh", "-c", "exit 2"], True),
        (["sh", "-c", "no-such-program"], True),
        (["sh", "-c", "exit 1"], False),
        (["sh", "-c", "kill -9 $$"], False),
    ],
)
def test_a_command_that_can_never_start_is_known_by_its_error(command: Any, is_wrong: bool) -> None:
    """Such errors are not retried; others may pass."""

    @dg.op
    def launch(context: dg.OpExecutionContext) -> None:
        with pytest.raises(Exception) as raised:  # noqa: PT011 (each command has an error of its own)
            dg.PipesSubprocessClient().run(context=context, command=command)
        assert isinstance(raised.value, Exception)
        assert is_wrong_command(raised.value) == is_wrong

    with dg.DagsterInstance.ephemeral() as instance, dg.build_op_context(instance=instance) as given:
        launch(given)
    assert not is_wrong_command(ConnectionRefusedError(111, "refused"))


WITH_SPARK = {
    "assets/accepted.py": {"pipeline_of", "process"},
    "assets/published.py": {"_publish_here"},
    "assets/replayed.py": {"_replay_here"},
    "assets/summaries.py": {"_merge_here"},
    "io_manager.py": {"OutputIOManager._load", "_selected", "sink_of"},
    "resources.py": {"SparkResource.session", "SparkResource.teardown_after_execution"},
}
"""Work in Dagster's process, and inputs that are DataFrames of Spark. With `run.launch`, `sink_of` has none."""
OF_SPARK = ("pyspark.", "py4j.", "sharequeue.spark.")


def importers(node: ast.AST, names: tuple[str, ...] = ()) -> Iterator[str]:
    """The functions and classes that import something of Spark, which is not for types alone."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.ImportFrom(module=str(module)) if f"{module}.".startswith(OF_SPARK):
                yield ".".join(names)
            case ast.Import(names=found) if any(f"{each.name}.".startswith(OF_SPARK) for each in found):
                yield ".".join(names)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield from importers(child, (*names, name))
            case _:
                yield from importers(child, names)


def test_spark_is_imported_only_where_work_is_not_launched() -> None:
    """With `run.launch`, a queue needs no PySpark in Dagster's process: `tests/deep/deep_launch.py`."""
    folder = ROOT / "sharequeue" / "dagster"
    found = {
        str(file.relative_to(folder)): set(importers(ast.parse(file.read_text())))
        for file in folder.rglob("*.py")
    }
    assert {file: names for file, names in found.items() if names} == WITH_SPARK
