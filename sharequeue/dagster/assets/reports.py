"""The assets `spso_and_lag` and `delivery_counts`: where the group stands, from Postgres alone."""

from typing import Any

import dagster as dg

from sharequeue.dagster import reports
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.state.journal import Journal

HISTORY_REPORTS = 200
REPORTED_DAYS = 200
"""Rows, one a share-partition and day: seven weeks of four partitions."""


def spso_and_lag_asset(spec: dg.AssetSpec, group: ShareGroup) -> dg.AssetsDefinition:
    """SPSO, lag and what is in flight, recorded in Postgres at every materialization."""

    @dg.multi_asset(specs=[spec], name=f"{group.name}_spso_and_lag")
    def spso_and_lag(queue: StateResource) -> Any:
        queue.reports.record(group.group)
        history = queue.reports.history(group.group, HISTORY_REPORTS)
        days = Journal(queue.database).days(group.group)[-REPORTED_DAYS:]
        return dg.MaterializeResult(
            metadata=reports.spso_and_lag(queue.state.figures.describe(group.group), history, days)
        )

    return spso_and_lag


def delivery_counts_asset(spec: dg.AssetSpec, group: ShareGroup) -> dg.AssetsDefinition:
    """How many records ended how, after how many deliveries."""

    @dg.multi_asset(specs=[spec], name=f"{group.name}_delivery_counts")
    def delivery_counts(queue: StateResource) -> Any:
        return dg.MaterializeResult(
            metadata=reports.delivery_counts(queue.state.figures.delivery_counts(group.group))
        )

    return delivery_counts


__all__ = ["delivery_counts_asset", "spso_and_lag_asset"]
