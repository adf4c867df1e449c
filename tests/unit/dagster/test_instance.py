"""A run says what its Dagster instance lacks."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from sharequeue.dagster import share_group_resources
from sharequeue.dagster.assets.accepted import accepted_asset
from sharequeue.dagster.instance import missing_settings
from sharequeue.dagster.lineage import ACCEPTED, Lineage
from tests.fixtures.dagster import share_group

COMPLETE = """
concurrency: {pools: {default_limit: 2}}
run_retries: {enabled: true}
run_monitoring: {enabled: true, max_runtime_seconds: 21600}
"""


def instance_of(folder: Path, settings: str) -> dg.DagsterInstance:
    (folder / "dagster.yaml").write_text(f"{settings}\ntelemetry: {{enabled: false}}\n")
    return dg.DagsterInstance.from_config(str(folder))


@pytest.mark.parametrize(
    ("settings", "pool", "missing"),
    [
        (
            "",
            "spark",
            ["the pool 'spark' has no limit", "does not retry failed runs", "whose machine went down"],
        ),
        ("", None, ["does not retry failed runs", "whose machine went down"]),
        (COMPLETE, "spark", []),
        (
            COMPLETE.replace("default_limit: 2", "granularity: run"),
            "spark",
            ["the pool 'spark' has no limit"],
        ),
        (
            COMPLETE.replace(", max_runtime_seconds: 21600", ""),
            "spark",
            ["DefaultRunLauncher of this Dagster instance cannot see that the process of a run is gone"],
        ),
    ],
)
def test_what_an_instance_lacks_is_named_with_what_to_set(
    settings: str, pool: str | None, missing: list[str], tmp_path: Path
) -> None:
    """The pool's limit, run retries, run monitoring, and a limit of the time where the launcher sees no end."""
    with instance_of(tmp_path, settings) as instance:
        found = missing_settings(instance, pool)
    assert len(found) == len(missing)
    assert all(words in line and "set " in line for words, line in zip(missing, found, strict=True))


def test_a_limit_of_the_pool_alone_is_enough(tmp_path: Path) -> None:
    """As `dagster instance concurrency set` stores it; a limit of another pool is not one of this pool."""
    with instance_of(tmp_path, COMPLETE.replace("default_limit: 2", "granularity: run")) as instance:
        instance.event_log_storage.set_concurrency_slots("dbt", 4)
        assert len(missing_settings(instance, "spark")) == 1
        instance.event_log_storage.set_concurrency_slots("spark", 2)
        assert missing_settings(instance, "spark") == []


def test_a_run_warns_of_an_incomplete_instance(tmp_path: Path) -> None:
    """In its own log, before it begins to work."""
    group = share_group("orders")
    asset = accepted_asset(Lineage(group)[ACCEPTED], group, lambda run: dg.MaterializeResult())
    resources = dict(share_group_resources(home=str(tmp_path)).resources or {})
    with instance_of(tmp_path, "") as instance:
        made = dg.materialize([asset], instance=instance, resources=resources)
        lines = [entry.user_message for entry in instance.all_logs(made.run_id) if entry.level == 30]
    assert any("the pool 'spark' has no limit in this Dagster instance" in line for line in lines)
