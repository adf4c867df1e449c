"""The assets `spso_and_lag` and `delivery_counts`: the position of the group, from Postgres alone."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import dagster as dg

from sharequeue.dagster import reports
from sharequeue.dagster.position import awaited
from sharequeue.dagster.resources import StateResource
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.dagster.yaml_values import duration
from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.reports.files import page_path, write_page
from sharequeue.reports.read import read_report
from sharequeue.state import State
from sharequeue.state.journal import Journal

REPORTED_DAYS = 200
"""Rows, one for each share-partition and day: seven weeks of four partitions."""


def spso_and_lag_asset(spec: dg.AssetSpec, group: ShareGroup) -> dg.AssetsDefinition:
    """Build the asset of SPSO, lag and records in flight, recorded in Postgres at every materialization."""

    @dg.multi_asset(specs=[spec], name=f"{group.name}_spso_and_lag")
    def spso_and_lag(sharequeue_state: StateResource) -> Any:
        sharequeue_state.reports.record(group.group, duration(group.automation.observe.keep))
        return dg.MaterializeResult(
            metadata=standing(sharequeue_state.database, group, sharequeue_state.settings.load())
        )

    return spso_and_lag


def standing(database: Database, group: ShareGroup, settings: Settings) -> reports.Metadata:
    """Return the group's position, its history, and the figures of each day.

    It also writes the day's page.
    """
    known = {status.topic for status in State(database).figures.describe(group.group)}
    first = awaited(group, set(group.topics) - known, database, settings)
    report = read_report(database, group.group, settings, first or ())
    days = Journal(database).days(group.group)[-REPORTED_DAYS:]
    try:
        file: dg.MetadataValue[Any] = dg.MetadataValue.path(str(write_page(settings, report)))
    except OSError as error:
        # The figures are what matters, even if the disk is full.
        file = dg.MetadataValue.text(f"the page could not be written: {error}")
    return {**link(settings, group, report.at), **reports.spso_and_lag(report, days), "report_file": file}


def link(settings: Settings, group: ShareGroup, at: datetime) -> reports.Metadata:
    """Return the link to the page: at the service, which renders it for each reader, or else the day's file."""
    if settings.knows("service_url"):
        return {"report": dg.MetadataValue.url(f"{settings.service_url}/v1/reports/{quote(group.group)}")}
    file = page_path(settings, group.group, at.astimezone(UTC).date())
    return {"report": dg.MetadataValue.url(file.as_uri())}


def delivery_counts_asset(spec: dg.AssetSpec, group: ShareGroup) -> dg.AssetsDefinition:
    """Build the asset of delivery counts: the number of records by outcome and number of deliveries."""

    @dg.multi_asset(specs=[spec], name=f"{group.name}_delivery_counts")
    def delivery_counts(sharequeue_state: StateResource) -> Any:
        counts = sharequeue_state.state.figures.delivery_counts(group.group)
        at_page = link(sharequeue_state.settings.load(), group, sharequeue_state.state.now())
        return dg.MaterializeResult(metadata={**at_page, **reports.delivery_counts(counts)})

    return delivery_counts


__all__ = ["delivery_counts_asset", "spso_and_lag_asset", "standing"]
