"""A service whose Kafka settings no client takes does not start, and says which variables to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.service.app import create_app
from sharequeue.service.health.servers import ask_broker


def test_a_setting_that_is_not_kafkas_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SHAREQUEUE_KAFKA_PORT is what Kubernetes gives to neighbours of a Service named sharequeue-kafka: taken as a
    setting of Kafka's client, it failed in each request."""
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("SHAREQUEUE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("SHAREQUEUE_KAFKA_PORT", "39092")
    with pytest.raises(SettingMissing, match=r"SHAREQUEUE_KAFKA_PORT is not supported"):
        create_app(Settings.load(tmp_path), coordinate=False)


def test_a_login_that_is_gone_later_is_a_reason_of_the_probe() -> None:
    """And not an error of the service."""

    class Gone:
        def cluster_id(self) -> str:
            raise SettingMissing("No password can be read from /secrets/password")

    assert ask_broker(Gone()) == "No password can be read from /secrets/password"  # type: ignore[arg-type]
