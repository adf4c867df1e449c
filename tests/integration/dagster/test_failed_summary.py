"""A run of which one asset fails: all that does not depend on it is made."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg

from sharequeue.dagster import share_group_resources
from sharequeue.dagster.assets.processing import Processing
from sharequeue.dagster.definitions import share_group_defs
from sharequeue.domain.offsets import OffsetSet
from sharequeue.local.stack import StackInfo
from tests.fixtures.dagster import share_group
from tests.fixtures.deadletters import GivenUp


def test_a_failed_summary_keeps_nothing_else_from_being_made(
    stack: StackInfo, given_up: Callable[..., GivenUp]
) -> None:
    """The summary fails, as its pipeline is another group's; dead letters are written, reports and checks made."""
    case = given_up(copy=True)
    case.produce(10)
    case.reject({0: OffsetSet.of((0, 4))})
    group = share_group(case.group, summaries={"delays": "pipelines.flights.pipeline:merged_delays"})

    def nothing(run: Processing) -> dg.MaterializeResult[None]:
        return dg.MaterializeResult()

    definitions = dg.Definitions.merge(
        share_group_defs(group, execute=nothing), share_group_resources(home=str(stack.home))
    )
    with dg.DagsterInstance.ephemeral() as instance:
        done = definitions.resolve_job_def(group.name).execute_in_process(
            instance=instance, raise_on_error=False
        )
    assert not done.success
    failed = {event.step_key for event in done.all_events if event.is_step_failure}
    assert failed == {f"{group.name}_delays"}
    made = {event.asset_key.path[-1] for event in done.get_asset_materialization_events() if event.asset_key}
    assert made >= {"accepted", "dead_letters", "spso_and_lag", "delivery_counts"}
    assert done.get_asset_check_evaluations()
    assert len(case.letters()) == 4
