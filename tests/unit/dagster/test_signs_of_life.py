"""Signs of life: events by which a run shows that its process is alive."""

from pathlib import Path

import dagster as dg
import pytest

from sharequeue.dagster import share_group_resources, signs_of_life
from sharequeue.dagster.signs_of_life import AT_WORK, CLOSED, SignsOfLife, last_sign
from tests.waiting import wait_until


def messages(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """The signs of a run."""
    return [entry.message for entry in instance.all_logs(run_id) if entry.message in (AT_WORK, CLOSED)]


def test_a_run_gives_signs_of_life_from_its_first_step_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a thread, also while a step is busy; at its end it says that it has closed the state."""
    monkeypatch.setattr(signs_of_life, "SECONDS_BETWEEN", 0.01)

    @dg.asset(required_resource_keys={"sharequeue_state"})
    def slow(context: dg.AssetExecutionContext) -> None:
        wait_until(lambda: len(messages(context.instance, context.run.run_id)) >= 3)
        sign = last_sign(context.instance, context.run)
        assert sign is not None
        assert (sign.is_open, sign.is_gone) == (True, False)

    resources = dict(share_group_resources(home=str(tmp_path)).resources or {})
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        made = dg.materialize([slow], instance=instance, resources=resources)
        *at_work, closed = messages(instance, made.run_id)
        run = instance.get_run_by_id(made.run_id)
        assert run is not None
        assert last_sign(instance, run) is not None
    assert made.success
    assert set(at_work) == {AT_WORK}
    assert closed == CLOSED


def test_an_unavailable_storage_fails_no_run(tmp_path: Path) -> None:
    """Its signs are missing, and nothing else."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run = instance.add_run(dg.DagsterRun("job", status=dg.DagsterRunStatus.STARTED))
        with pytest.MonkeyPatch.context() as away:
            away.setattr(instance, "report_engine_event", lambda *_: 1 / 0)
            signs = SignsOfLife(instance, run)
            signs.begin()
            signs.end()
        assert last_sign(instance, run) is None
