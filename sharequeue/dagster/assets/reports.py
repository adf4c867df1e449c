"""The assets `spso_and_lag` and `delivery_counts`: where the group stands, from Postgres alone."""

from typing import Any

import dagster as dg

from sharequeue.dagster import reports
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.share_group import ShareGroup, duration
from sharequeue.database import Database
from sharequeue.state.figures import Figures
from sharequeue.state.journal import Journal
from sharequeue.state.reports import Reports

HISTORY_REPORTS = 200
REPORTED_DAYS = 200
"""Rows, one a share-partition and day: seven weeks of four partitions."""


def spso_and_lag_asset(spec: dg.AssetSpec, group: ShareGroup) -> dg.AssetsDefinition:
    """SPSO, lag and what is in flight, recorded in Postgres at every materialization."""

    @dg.multi_asset(specs=[spec], name=f"{group.name}_spso_and_lag")
    def spso_and_lag(queue: StateResource) -> Any:
        queue.reports.record(group.group, duration(group.automation.observe.keep))
        return dg.MaterializeResult(metadata=standing(queue.database, group))

    return spso_and_lag


def standing(database: Database, group: ShareGroup) -> reports.Metadata:
    """Where the group stands, how it came there, and what each day has brought."""
    history = Reports(database).history(group.group, HISTORY_REPORTS)
    days = Journal(database).days(group.group)[-REPORTED_DAYS:]
    return reports.spso_and_lag(Figures(database).describe(group.group), history, days)


def delivery_counts_asset(spec: dg.AssetSpec, group: ShareGroup) -> dg.AssetsDefinition:
    """How many records ended how, after how many deliveries."""

    @dg.multi_asset(specs=[spec], name=f"{group.name}_delivery_counts")
    def delivery_counts(queue: StateResource) -> Any:
        return dg.MaterializeResult(
            metadata=reports.delivery_counts(queue.state.figures.delivery_counts(group.group))
        )

    return delivery_counts


__all__ = ["delivery_counts_asset", "spso_and_lag_asset", "standing"]
