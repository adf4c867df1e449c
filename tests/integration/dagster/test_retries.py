"""Retries of failed runs, by Dagster's own daemon: not of errors that stay, and without another run's tags."""

from __future__ import annotations

import logging
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

# Backfills as Dagster stores them, a run that is there already, and the daemon's retries: they have no public names.
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon.auto_run_reexecution.auto_run_reexecution import (
    consume_new_runs_for_automatic_reexecution,
)

from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.dagster.assets.processing import Processing
from sharequeue.dagster.names import LEASES_TAG, MEMBER_TAG
from sharequeue.dagster.retries import NOT_RETRIED_TAG
from sharequeue.domain.errors import BrokerNotAvailable, InvalidConfig
from sharequeue.domain.settings import SettingMissing
from sharequeue.spark.handler import MostFailed
from sharequeue.spark.leasing.renewal import LockLost
from sharequeue.spark.sinks.interface import SinkRefused
from tests.fixtures.dagster import code_location, created_run, share_group


def caused_by(cause: BaseException) -> Exception:
    """An error that another one has caused."""
    error = RuntimeError("a step of the run")
    error.__cause__ = cause
    return error


STAYS = {
    "most failed": lambda: MostFailed("100 of 100 records failed"),
    "refused by the sink": lambda: SinkRefused("no column `amount`"),
    "a misspelt config": lambda: InvalidConfig("there is no config `share.lock`"),
    "a missing setting": lambda: SettingMissing("SHAREQUEUE_DATABASE_URL"),
    "a failure that says so": lambda: dg.Failure("no such pipeline", allow_retries=False),
    "the cause of another error": lambda: caused_by(ModuleNotFoundError("No module named 'shop'")),
}
PASSES = {
    "a broker that is away": lambda: BrokerNotAvailable(),
    "a lock that was lost": lambda: LockLost("another member may have the records"),
    "any other error": lambda: RuntimeError("the output is away"),
    "a failure": lambda: dg.Failure("try again"),
}


def run_that_raises(
    instance: dg.DagsterInstance, error: Callable[[], Exception], **tags: str
) -> dg.DagsterRun:
    """The run of a group's job whose first asset fails with an error."""

    def fails(run: Processing) -> dg.MaterializeResult[None]:
        raise error()

    group = share_group("orders")
    defs = dg.Definitions.merge(share_group_defs(group, execute=fails), share_group_resources())
    selected = [dg.AssetKey(["orders", "accepted"])]
    done = defs.resolve_job_def("orders").execute_in_process(
        instance=instance, raise_on_error=False, asset_selection=selected, tags=tags
    )
    found = instance.get_run_by_id(done.run_id)
    assert found is not None
    assert not done.success
    return found


@pytest.mark.parametrize("named", [*STAYS, *PASSES])
def test_only_errors_that_may_pass_are_retried(stack_instance: dg.DagsterInstance, named: str) -> None:
    """Dagster retries a failed run twice; one whose error stays has `dagster/max_retries: 0`, and the reason."""
    run = run_that_raises(stack_instance, {**STAYS, **PASSES}[named])
    assert run.tags["dagster/will_retry"] == ("false" if named in STAYS else "true")
    assert (run.tags.get("dagster/max_retries") == "0") is (named in STAYS)
    assert (NOT_RETRIED_TAG in run.tags) is (named in STAYS)


def test_a_module_that_cannot_be_imported_is_not_retried(
    stack_instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline's module is there when definitions are loaded, and fails when the run imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_queue.py").write_text("import not_there_at_all\n\ndef orders(records): ...\n")
    group = share_group("orders", pipeline="broken_queue:orders")
    defs = dg.Definitions.merge(share_group_defs(group), share_group_resources())
    done = defs.resolve_job_def("orders").execute_in_process(
        instance=stack_instance, raise_on_error=False, asset_selection=[dg.AssetKey(["orders", "accepted"])]
    )
    run = stack_instance.get_run_by_id(done.run_id)
    assert run is not None
    assert (run.tags["dagster/will_retry"], run.tags["dagster/max_retries"]) == ("false", "0")
    sys.modules.pop("broken_queue", None)


def backfill(instance: dg.DagsterInstance, status: BulkActionStatus) -> PartitionBackfill:
    """A backfill in a state."""
    made = PartitionBackfill("b", status, False, {}, 0.0, asset_selection=[dg.AssetKey("a")])
    if instance.get_backfill("b") is None:
        instance.add_backfill(made)
    else:
        instance.update_backfill(made)
    return made


def test_a_run_of_a_cancelled_backfill_is_not_retried(stack_instance: dg.DagsterInstance) -> None:
    """Whatever its error; one of a backfill at work is."""
    tags = {"dagster/backfill": "b"}
    backfill(stack_instance, BulkActionStatus.REQUESTED)
    assert run_that_raises(stack_instance, RuntimeError, **tags).tags["dagster/will_retry"] == "true"
    backfill(stack_instance, BulkActionStatus.CANCELING)
    run = run_that_raises(stack_instance, RuntimeError, **tags)
    assert (run.tags["dagster/will_retry"], run.tags[NOT_RETRIED_TAG]) == (
        "false",
        "backfill b was cancelled",
    )


LOCATION = """
import dagster as dg
from sharequeue.dagster import ShareGroup, share_group_defs, share_group_resources
from sharequeue.dagster.names import LEASES_TAG, MEMBER_TAG

group = ShareGroup(group="orders", topics=["t"], pipeline="pipelines.flights.pipeline:flight_delays")

def fails(run):
    instance, run_id = run.context.instance, run.context.run.run_id
    tags = instance.get_run_by_id(run_id).tags
    run.context.log.info("inherited " + " ".join(tags.get(tag, "nothing") for tag in (MEMBER_TAG, LEASES_TAG)))
    instance.add_run_tags(run_id, {MEMBER_TAG: "a member of " + run_id, LEASES_TAG: "3-7"})
    raise RuntimeError("the output is away")

defs = dg.Definitions.merge(share_group_defs(group, execute=fails), share_group_resources())
"""


def executed(
    instance: dg.DagsterInstance, job: dg.JobDefinition, run_id: str
) -> tuple[dg.DagsterRun, list[str]]:
    """Let a run come to its end, as the process does that Dagster starts for it; return it and what it has logged."""
    starting = dg.DagsterEvent(dg.DagsterEventType.RUN_STARTING.value, job.name, message="starting")
    instance.report_dagster_event(starting, run_id)
    begun = instance.get_run_by_id(run_id)
    assert begun is not None
    execute_run(InMemoryJob(job), begun, instance)
    run = instance.get_run_by_id(run_id)
    assert run is not None
    assert run.is_finished
    return run, [entry.user_message for entry in instance.all_logs(run_id)]


def retried(
    instance: dg.DagsterInstance, workspace: WorkspaceProcessContext, run: dg.DagsterRun
) -> dg.DagsterRun | None:
    """The retry that the daemon makes of a run, if it does."""
    (record,) = instance.get_run_records(dg.RunsFilter(run_ids=[run.run_id]))
    list(consume_new_runs_for_automatic_reexecution(workspace, [record], logging.getLogger("daemon")))
    children = instance.get_runs(dg.RunsFilter(tags={"dagster/parent_run_id": run.run_id}))
    return children[0] if children else None


def test_a_retry_has_no_member_or_lease_of_the_failed_run(
    stack_instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """Dagster gives a retry all tags of the failed run. And a retry that begins while its backfill is cancelled does
    nothing."""
    backfill(stack_instance, BulkActionStatus.REQUESTED)
    with code_location(stack_instance, tmp_path, LOCATION) as workspace:
        ours = runpy.run_path(str(tmp_path / "location.py"))["defs"].resolve_job_def("orders")
        context = workspace.create_request_context()
        tags = {"dagster/backfill": "b"}
        first = created_run(stack_instance, context, "orders", step="orders_accepted", tags=tags)
        failed, logged = executed(stack_instance, ours, first.run_id)
        assert "inherited nothing nothing" in logged
        assert (failed.tags[LEASES_TAG], failed.tags["dagster/will_retry"]) == ("3-7", "true")

        retry = retried(stack_instance, workspace, failed)
        assert retry is not None
        assert retry.tags[MEMBER_TAG] == f"a member of {failed.run_id}"
        again, logged = executed(stack_instance, ours, retry.run_id)
        assert "inherited none none" in logged
        assert again.tags[MEMBER_TAG] == f"a member of {retry.run_id}"

        # Cancelled after the daemon has made the second retry, and before that begins.
        last = retried(stack_instance, workspace, again)
        assert last is not None
        backfill(stack_instance, BulkActionStatus.CANCELING)
        ended, logged = executed(stack_instance, ours, last.run_id)
        assert not [line for line in logged if line.startswith("inherited")]
        assert ended.tags[NOT_RETRIED_TAG] == "Failure: backfill b was cancelled: nothing was done"
        assert retried(stack_instance, workspace, ended) is None
