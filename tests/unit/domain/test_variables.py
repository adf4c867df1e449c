"""A misspelt variable is not ignored silently."""

from __future__ import annotations

import pytest

from sharequeue.domain.settings import Settings, variables
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.configs.keys import SERVICE_CONFIGS
from sharequeue.groups.configs.names import environment_name
from sharequeue.groups.configs.texts import as_text
from sharequeue.local.processes import MARK


@pytest.fixture
def environment(no_environment: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Give an environment of which nothing was warned of yet."""
    no_environment.setattr(variables, "_warned", set())
    return no_environment


def test_an_unknown_variable_is_named_once_with_the_nearest_setting(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The settings and the service's configs are each compared with their own names."""
    environment.setenv("SHAREQUEUE_BOOTSTRAP_SERVER", "kafka:9092")
    environment.setenv("SHAREQUEUE_GROUP_SHARE_SESION_TIMEOUT_MS", "45000")
    for _ in range(2):
        Settings.load()
        ServiceConfigs.load()
    assert caplog.messages == [
        f"the variable {name} is not a setting and is ignored. Did you mean {meant}?"
        for name, meant in {
            "SHAREQUEUE_BOOTSTRAP_SERVER": "SHAREQUEUE_BOOTSTRAP_SERVERS",
            "SHAREQUEUE_GROUP_SHARE_SESION_TIMEOUT_MS": "SHAREQUEUE_GROUP_SHARE_SESSION_TIMEOUT_MS",
        }.items()
    ]


def test_variables_that_are_for_others_are_not_warned_of(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every service config, the settings of other clients, our own marks, and Kubernetes' variables of a Service."""
    for name, key in SERVICE_CONFIGS.items():
        environment.setenv(environment_name(name), as_text(key.default or ""))
    others = (
        *("SHAREQUEUE_HOME", "SHAREQUEUE_KAFKA_SASL_USERNAME", "SHAREQUEUE_REGISTRY_URL", MARK),
        *("SHAREQUEUE_TEST_SEED", "SHAREQUEUE_PORT", "SHAREQUEUE_PORT_8000_TCP_ADDR"),
        *("SHAREQUEUE_SERVICE_HOST", "SHAREQUEUE_SERVICE_PORT_HTTP", "SHAREQUEUE_WEB_SERVICE_PORT"),
    )
    for name in others:
        environment.setenv(name, "")
    Settings.load()
    ServiceConfigs.load()
    assert caplog.messages == []
