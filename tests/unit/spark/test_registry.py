"""The driver asks a schema registry: what that lacks is a record's matter, that it does not answer is the run's."""

from __future__ import annotations

import pytest

from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.spark.handler import HandlerError, RegistryNotAvailable
from sharequeue.spark.registry import _DEFAULTS, Registry
from tests.fixtures.registry import RegistryServer

NOWHERE = "http://ada:secret@127.0.0.1:9"


def settings_of(**given: str) -> Settings:
    return Settings({"registry": {name.replace("_", "."): value for name, value in given.items()}})


def test_a_schema_is_requested_once_and_a_missing_one_each_time(registry_server: RegistryServer) -> None:
    """An id means the same for ever; one that a registry does not have may be registered later. The latest of a
    subject is asked for each time."""
    registry_server.register("orders-value", {"type": "string"}, 7)
    registry = Registry(registry_server.url, settings=settings_of())
    found = registry.schema(7)
    assert (found.schema_type, found.schema_str, found.references) == ("AVRO", '{"type": "string"}', [])
    assert registry.schema(7) == found
    assert registry.schema(8) is None
    assert registry.schema(8) is None
    assert registry.latest("orders-value") == registry.latest("orders-value") == registry.schema(7)
    latest = "/subjects/orders-value/versions/latest"
    assert registry_server.asked == ["/schemas/ids/7", "/schemas/ids/8", "/schemas/ids/8", latest, latest]
    with pytest.raises(HandlerError, match="has no subject lorries-value: name an existing subject"):
        registry.latest("lorries-value")


def test_an_outage_of_a_registry_is_retried_and_no_error_has_a_password(
    registry_server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two answers of 503, and another address that does not answer, are passed over."""
    monkeypatch.setitem(_DEFAULTS, "retries.wait.ms", 1)
    registry_server.register("orders-value", {"type": "string"}, 7)
    registry_server.failures = 2
    both = Registry(f"{NOWHERE}, {registry_server.url}/", settings=settings_of())
    assert both.schema(7) is not None
    with pytest.raises(
        RegistryNotAvailable, match=r"http://127\.0\.0\.1:9 does not return schemas: ConnectError"
    ) as raised:
        Registry(NOWHERE, settings=settings_of()).schema(7)
    assert "secret" not in str(raised.value)
    assert repr(both) == f"Registry('http://127.0.0.1:9, {registry_server.url}/')"


def test_a_404_of_another_server_is_an_error_not_a_missing_schema(
    registry_server: RegistryServer,
) -> None:
    """A 404 that is not the registry's own would make dead letters of all records."""
    with pytest.raises(
        RegistryNotAvailable, match=r"HTTP status code 404, SR code 404.*Check the registry, its address"
    ):
        Registry(f"{registry_server.url}/elsewhere", settings=settings_of()).schema(7)


@pytest.mark.parametrize("login", ["ada:se:cret", "Bearer secret"])
def test_the_login_is_sent_only_to_the_registry_of_the_settings(
    registry_server: RegistryServer, login: str
) -> None:
    """With another address it is not sent."""
    registry_server.register("orders-value", {"type": "string"}, 7)
    registry_server.login = login
    _, bearer, token = login.partition("Bearer ")
    kept = {"bearer_auth_token": token} if bearer else {"basic_auth_user_info": login}
    settings = settings_of(url=registry_server.url, **kept)
    assert "secret" not in repr(settings)
    assert Registry(settings=settings).schema(7) is not None
    with pytest.raises(RegistryNotAvailable, match="HTTP status code 401"):
        Registry(registry_server.url, settings=settings).schema(7)
    if not bearer:
        assert Registry(registry_server.url, user_info=login, settings=settings_of()).schema(7) is not None


def test_invalid_settings_of_a_registry_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address, a scheme that is none, a setting that there is not."""
    with pytest.raises(SettingMissing, match="set SHAREQUEUE_REGISTRY_URL"):
        Registry(settings=settings_of())
    with pytest.raises(ValueError, match="Invalid url registry:8081"):
        Registry(settings=settings_of(url="registry:8081"))
    monkeypatch.setenv("SHAREQUEUE_REGISTRY_URL", "http://here")
    monkeypatch.setenv("SHAREQUEUE_REGISTRY_USER", "ada")
    with pytest.raises(ValueError, match="Unrecognized properties: user"):
        Registry()
