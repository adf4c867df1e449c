"""Selections and schedules that are built from a queue find its assets, whatever their keys are."""

from __future__ import annotations

import dagster as dg
import pytest

from sharequeue.dagster import (
    AssetData,
    build_schedule_from_share_group_selection,
    build_share_group_asset_selection,
    share_group_defs,
    share_group_resources,
)
from tests.fixtures.dagster import share_group

ORDERS = share_group(
    "orders-of.a",
    backfill={"start": "2026-01-01"},
    summaries={"delays": "pipelines.flights.pipeline:merged_delays"},
)


def moved(spec: dg.AssetSpec, data: AssetData) -> dg.AssetSpec:
    return spec.replace_attributes(key=["lake", *spec.key.path])


@dg.asset(deps=[["lake", "orders_of_a", "accepted"]])
def report() -> None: ...


@pytest.fixture(scope="module")
def location() -> dg.Definitions:
    """Give two queues, the first one with other keys, and an asset downstream of it."""
    others = share_group("others", topics=["others"])
    return dg.Definitions.merge(
        dg.Definitions(assets=[report]),
        share_group_defs(ORDERS, translate=moved),
        share_group_defs(others),
        share_group_resources(),
    )


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (None, {"accepted", "delays", "dead_letters", "spso_and_lag", "delivery_counts"}),
        (["accepted"], {"accepted"}),
        (["accepted", "delays"], {"accepted", "delays"}),
        (["replayed"], {"replayed"}),
    ],
)
@pytest.mark.parametrize("group", [ORDERS, ORDERS.group], ids=["group", "id"])
def test_a_selection_has_the_named_assets(
    location: dg.Definitions, group: object, names: list[str] | None, found: set[str]
) -> None:
    """By default those of a run; only of this group."""
    selection = build_share_group_asset_selection(group, names)  # type: ignore[arg-type]
    graph = location.get_repository_def().asset_graph
    assert selection.resolve(graph) == {dg.AssetKey(["lake", "orders_of_a", name]) for name in found}


def test_a_schedule_has_a_job_of_its_own(location: dg.Definitions) -> None:
    """The job has the assets that are named, and those downstream."""
    schedule = build_schedule_from_share_group_selection(
        ORDERS,
        "orders_and_report",
        ["0 3 * * *", "0 15 * * *"],
        ["accepted"],
        downstream=True,
        tags={"team": "orders"},
        executor_def=dg.in_process_executor,
        execution_timezone="Europe/Berlin",
    )
    made = dg.Definitions.merge(location, dg.Definitions(schedules=[schedule])).get_repository_def()
    job = made.get_job("orders_and_report")
    keys = set(job.asset_layer.executable_asset_keys)
    assert keys >= {report.key, dg.AssetKey(["lake", "orders_of_a", "accepted"])}
    assert dg.AssetKey(["others", "accepted"]) not in keys
    assert (job.run_tags["team"], job.executor_def.name) == ("orders", "in_process")
    assert schedule.cron_schedule == ["0 3 * * *", "0 15 * * *"]
    assert schedule.name == "orders_and_report_schedule"
