"""The figures, as the code names them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from sharequeue.domain.figures import GroupFigures, SharePartitionStatus, figures_of
from sharequeue.service.metrics.families import SUMMED
from sharequeue.service.operations.groups import SharePartitionAnswer
from tools.reference_sql import columns_of_views


@pytest.mark.parametrize(
    ("view", "kind"),
    [("group_figures", GroupFigures), ("share_partition_status", SharePartitionStatus)],
)
def test_a_figure_is_a_column_of_its_view(view: str, kind: type) -> None:
    """Each field is a column, and each column a field; only the internal id of a share-partition is left out."""
    columns = [name for name in columns_of_views()[view] if name != "share_partition_id"]
    assert sorted(columns) == sorted(each.name for each in fields(kind))


@pytest.mark.parametrize("kind", [GroupFigures, SharePartitionStatus])
def test_no_two_figures_have_one_name(kind: type) -> None:
    """On pages, in commands and in Dagster."""
    for names in zip(*((each.title, each.command, each.dagster) for each in figures_of(kind)), strict=True):
        given = [name for name in names if name]
        assert len(given) == len(set(given))


def test_the_answer_about_a_group_has_the_described_fields() -> None:
    """The figures with a name in HTTP, and what names the share-partition, are those of the API's description."""
    figures = {each.http for each in figures_of(SharePartitionStatus) if each.http}
    named = {"topic_name", "topic_id", "partition_index", "remark"}
    assert figures | named == set(SharePartitionAnswer.__annotations__)


def test_what_is_summed_is_in_the_view() -> None:
    """Each metric of a group that is a sum over its share-partitions is a column of the view that a scrape reads."""
    assert set(SUMMED) <= set(columns_of_views()["monitored_share_partitions"])
