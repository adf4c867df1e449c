"""Read schemas from a schema registry, with confluent-kafka's client.

Only the driver sends requests. A schema that the registry does not have is an error of a record; a registry that does
not respond is an error of the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sharequeue.domain.extras import require
from sharequeue.domain.settings import SettingMissing, Settings
from sharequeue.spark.handler import HandlerError, RegistryNotAvailable

_DEFAULTS = {"timeout": 10, "max.retries": 2, "retries.wait.ms": 200, "cache.latest.ttl.sec": 0}
_NO_SCHEMA, _NO_SUBJECT = 40403, 40401
"""Error codes of the registry. A 404 without one has another origin, for example a wrong address."""
_LOGIN = re.compile(r"(?<=//)[^/@\s]*@")


class Registry:
    """A schema registry, used by the driver only. Without `url` it is the one of the settings.

    `SHAREQUEUE_REGISTRY_<NAME>` are the settings of confluent-kafka's client that are texts: `URL` (several with
    commas in between), `BASIC_AUTH_USER_INFO` (`user:password`) or `BEARER_AUTH_TOKEN`, `SSL_CA_LOCATION`. The login
    is not used with another `url`: give `user_info`. Raises SettingMissing without an address, ValueError for an
    invalid or unknown setting, and ExtraMissing without the packages of that client.
    """

    def __init__(
        self, url: str | None = None, *, user_info: str | None = None, settings: Settings | None = None
    ) -> None:
        require("avro", "confluent_kafka", "authlib", "cachetools")
        from confluent_kafka.schema_registry import SchemaRegistryClient

        # The settings' login is only for the settings' registry.
        given: dict[str, Any] = dict((settings or Settings.load()).registry) if url is None else {"url": url}
        if user_info:
            given["basic.auth.user.info"] = user_info
        if not given.get("url"):
            raise SettingMissing(
                "The address of the schema registry is missing: set SHAREQUEUE_REGISTRY_URL."
            )
        if "bearer.auth.token" in given:
            given = {
                "bearer.auth.credentials.source": "STATIC_TOKEN",
                "bearer.auth.logical.cluster": "",
            } | given
        self._urls = _hidden(given["url"])
        self._client = SchemaRegistryClient(_DEFAULTS | given)

    def __repr__(self) -> str:
        return f"Registry({self._urls!r})"

    def schema(self, schema_id: int) -> Any:
        """Return the schema of an id, as the client has it; None if the registry does not have it. An id is requested
        once. Raises RegistryNotAvailable.
        """
        return self._asked(lambda: self._client.get_schema(schema_id), _NO_SCHEMA)

    def latest(self, subject: str) -> Any:
        """Return the latest schema of a subject. Raises RegistryNotAvailable, and HandlerError if there is no such
        subject.
        """
        found = self.registered(subject)
        if found is None:
            raise HandlerError(
                f"{self!r} has no subject {subject}: name an existing subject, or give the schema"
            )
        return found.schema

    def registered(self, subject: str) -> Any:
        """Return the latest schema of a subject with its id, as the client has them; None if there is no such
        subject. Raises RegistryNotAvailable.
        """
        return self._asked(lambda: self._client.get_latest_version(subject), _NO_SUBJECT)

    def _asked(self, request: Callable[[], Any], absent: int) -> Any:
        """Return what the client returns, None if the registry has the error code `absent`."""
        try:
            return request()
        except Exception as error:
            if (getattr(error, "http_status_code", None), getattr(error, "error_code", None)) == (
                404,
                absent,
            ):
                return None
            raise RegistryNotAvailable(
                f"the schema registry {self._urls} does not return schemas: {type(error).__name__}: "
                f"{_hidden(str(error))}. Check the registry, its address and its login (SHAREQUEUE_REGISTRY_URL, "
                "SHAREQUEUE_REGISTRY_BASIC_AUTH_USER_INFO). No record is the cause: nothing was acknowledged, and "
                "the deliveries are given back"
            ) from error


def _hidden(text: str) -> str:
    """Return a text with the login of any URL in it removed."""
    return _LOGIN.sub("", text)
