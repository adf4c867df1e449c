"""What a project says of Spark reaches Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sharequeue.dagster import share_group_resources
from sharequeue.dagster.resources import SPARK
from sharequeue.spark import session
from sharequeue.words.settings import Settings


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            {"master": "local[1]", "conf": {"spark.driver.memory": "3g"}},
            ("local[1]", {"spark.driver.memory": "3g"}),
        ),
        ({}, (Settings.load().spark_master, {})),
    ],
)
def test_sparks_master_and_conf_are_fields_of_the_resource(
    given: dict[str, Any], wanted: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them it is as the settings say."""
    made: list[tuple[str, dict[str, str]]] = []

    def spark_session(settings: Settings, app_name: str, conf: dict[str, str]) -> SimpleNamespace:
        made.append((settings.spark_master, conf))
        return SimpleNamespace()

    monkeypatch.setattr(session, "spark_session", spark_session)
    spark: Any = (share_group_resources(**given).resources or {})[SPARK]
    assert spark.session("orders") is spark.session("once")
    assert made == [wanted]
