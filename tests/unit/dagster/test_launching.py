"""Where a `defs.yaml` has the driver started: the resource that its asset then needs, and objects among arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox

from sharequeue.dagster import ShareGroupComponent, share_group_resources

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
