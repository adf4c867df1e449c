"""Dagster's own Pipes clients: what their `run` takes, read in their source of 0.29.27, and what they do with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from sharequeue.dagster.assets.drivers import Driver
from sharequeue.dagster.launching import Launch
from sharequeue.domain.results.launches import EXTRA, LaunchedSummary


def _called(add: Callable[..., None]) -> dg.PipesClientCompletedInvocation:
    """What a client returns. It changes its arguments first, as Dagster's do: the context is put into them."""
    add()
    done: Any = SimpleNamespace(get_results=lambda **kwargs: [], metadata={"place": "there"})
    found: dg.PipesClientCompletedInvocation = done
    return found


class OfKubernetes(dg.PipesClient):
    """Takes what `PipesK8sClient.run` of dagster-k8s 0.29.27 takes."""

    def run(  # type: ignore[override]
        self,
        *,
        context: Any,
        extras: Mapping[str, Any] | None = None,
        image: str | None = None,
        command: Any = None,
        namespace: str | None = None,
        env: Mapping[str, str] | None = None,
        base_pod_meta: Any = None,
        base_pod_spec: Any = None,
        ignore_containers: set[str] | None = None,
        enable_multi_container_logs: bool = False,
        pod_wait_timeout: float = 86400.0,
        delete_pod_on_completion: bool = True,
    ) -> dg.PipesClientCompletedInvocation:
        """Do nothing."""
        assert extras
        assert EXTRA in extras
        return _called(lambda: None)


class OfEmr(dg.PipesClient):
    """Takes what `PipesEMRClient.run` of dagster-aws takes."""

    def run(  # type: ignore[override]
        self, *, context: Any, run_job_flow_params: dict[str, Any], extras: dict[str, Any] | None = None
    ) -> dg.PipesClientCompletedInvocation:
        """Add tags and configurations."""
        assert extras
        return _called(lambda: run_job_flow_params.update(Tags=[1], Configurations=[2]))


class OfGlue(dg.PipesClient):
    """Takes what `PipesGlueClient.run` of dagster-aws takes."""

    def run(  # type: ignore[override]
        self, *, context: Any, start_job_run_params: dict[str, Any], extras: dict[str, Any] | None = None
    ) -> dg.PipesClientCompletedInvocation:
        """Add arguments."""
        assert extras
        return _called(lambda: start_job_run_params["Arguments"].update({"--dagster-pipes-context": "..."}))


class OfDataproc(dg.PipesClient):
    """Takes what `PipesDataprocJobClient.run` of dagster-gcp takes: `job` is an object."""

    def run(  # type: ignore[override]
        self, *, context: Any, submit_job_params: Any, extras: dict[str, Any] | None = None
    ) -> dg.PipesClientCompletedInvocation:
        """Add arguments to the object."""
        assert extras
        return _called(lambda: submit_job_params["job"].args.append("--dagster-pipes-context"))


class OfDatabricks(dg.PipesClient):
    """Takes what `PipesDatabricksClient.run` of dagster-databricks takes: `task` is an object."""

    def run(  # type: ignore[override]
        self,
        *,
        context: Any,
        extras: Mapping[str, Any] | None = None,
        task: Any,
        submit_args: Mapping[str, Any] | None = None,
    ) -> dg.PipesClientCompletedInvocation:
        """Add parameters to the object."""
        assert extras
        return _called(lambda: task.parameters.append("--dagster-pipes-context"))


@pytest.mark.parametrize(
    ("client", "arguments"),
    [
        (OfKubernetes(), {"image": "queues", "command": ["sharequeue", "run"], "base_pod_spec": {}}),
        (OfEmr(), {"run_job_flow_params": {"Name": "queue", "Steps": [{"Name": "run"}]}}),
        (OfGlue(), {"start_job_run_params": {"JobName": "queue", "Arguments": {"--name": "queue"}}}),
        (OfDataproc(), {"submit_job_params": {"job": SimpleNamespace(args=["run"])}}),
        (OfDatabricks(), {"task": SimpleNamespace(parameters=["run"]), "submit_args": {"run_name": "queue"}}),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, dg.PipesClient) else "",
)
def test_dagsters_clients_get_arguments_and_order(client: dg.PipesClient, arguments: dict[str, Any]) -> None:
    """What a client adds to its arguments is not there when the next step of the same run calls it."""
    run = SimpleNamespace(run_id="r")
    context: Any = SimpleNamespace(
        resources=SimpleNamespace(elsewhere=client),
        log=dg.get_dagster_logger("launching"),
        instance=SimpleNamespace(get_run_by_id=lambda run_id: None),
        run=run,
    )
    before = repr(arguments)
    order = LaunchedSummary(pipeline={}, summary="totals", merge="queues:total")
    ended = Driver(context, Launch(client="elsewhere", arguments=arguments)).do(order)
    assert (ended.error, ended.metadata, repr(arguments)) == (None, {"place": "there"}, before)
