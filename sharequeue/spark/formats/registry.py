"""Read schemas from a schema registry.

This is the part of Confluent's HTTP interface that decoding needs (Karapace, Apicurio and Redpanda have it too): a
schema by its id, and the latest of a subject. Only the driver sends requests. The schema of an id never changes, so
each id is requested once. A schema that the registry does not have is an error of a record; a registry that does not
respond is an error of the run.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from sharequeue.spark.handler import HandlerError, RegistryNotAvailable
from sharequeue.words.settings import SettingMissing, Settings

SETTINGS = ("url", "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location")
"""The settings of a registry, by the names of confluent-kafka's client."""
TRIES = 3
SECONDS = 10.0
"""The timeout of one attempt."""
_NO_SCHEMA, _NO_SUBJECT = 40403, 40401
"""Error codes of the registry. A 404 without one has another origin, for example a wrong address."""
_LOGIN = re.compile(r"(?<=//)[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as the registry has it."""

    schema_id: int
    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    references: tuple[str, ...] = ()
    """Names of the references to other subjects."""


class Registry:
    """A schema registry, used by the driver only. Without `url` it is the one of the settings.

    `SHAREQUEUE_REGISTRY_URL` has its address, or several with commas in between;
    `SHAREQUEUE_REGISTRY_BASIC_AUTH_USER_INFO` (`user:password`) or `SHAREQUEUE_REGISTRY_BEARER_AUTH_TOKEN` the login,
    `SHAREQUEUE_REGISTRY_SSL_CA_LOCATION` a file of certificates. The login is not used with another
    `url`: give `user_info`. Raises SettingMissing without an address, and ValueError for an unknown setting.
    """

    def __init__(
        self, url: str | None = None, *, user_info: str | None = None, settings: Settings | None = None
    ) -> None:
        given = dict((settings or Settings.load()).registry)
        if unknown := sorted(set(given) - set(SETTINGS)):
            names = ", ".join(_variable(name) for name in unknown)
            raise ValueError(
                f"{names} is not a setting of a registry: expected {', '.join(map(_variable, SETTINGS))}"
            )
        self._urls = [
            each.strip().rstrip("/") for each in (url or given.get("url", "")).split(",") if each.strip()
        ]
        if not self._urls:
            raise SettingMissing(f"The address of the schema registry is missing: set {_variable('url')}.")
        for each in self._urls:
            if not re.match(r"https?://.", each):
                raise ValueError(
                    f"{_hidden(each)!r} is not the address of a registry: expected an address such as "
                    "http://host:8081"
                )
        # The settings' login is only for the settings' registry.
        login = user_info or (given.get("basic.auth.user.info") if url is None else None)
        token = given.get("bearer.auth.token") if url is None and not login else None
        user, _, password = (login or "").partition(":")
        self._auth = httpx.BasicAuth(user, password) if login else None
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._ca = given.get("ssl.ca.location")
        self._schemas: dict[int, Schema] = {}

    def __repr__(self) -> str:
        return f"Registry({', '.join(_hidden(url) for url in self._urls)!r})"

    def schema(self, schema_id: int) -> Schema | None:
        """Return the schema of an id, None if the registry does not have it. Raises RegistryNotAvailable."""
        if schema_id not in self._schemas:
            found = self._get(f"/schemas/ids/{schema_id}", _NO_SCHEMA)
            if found is None:
                return None
            self._schemas[schema_id] = _schema(schema_id, found)
        return self._schemas[schema_id]

    def latest(self, subject: str) -> Schema:
        """Return the latest schema of a subject. Raises RegistryNotAvailable, and HandlerError if there is no such
        subject.
        """
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest", _NO_SUBJECT)
        if found is None:
            raise HandlerError(
                f"{self!r} has no subject {subject}: name an existing subject, or give the schema"
            )
        schema = _schema(int(found["id"]), found)
        self._schemas[schema.schema_id] = schema
        return schema

    def _get(self, path: str, absent: int) -> dict[str, Any] | None:
        """Return the registry's JSON of a path; None if it has the error code `absent`."""
        verify: Any = True if self._ca is None else httpx.create_ssl_context(verify=self._ca)
        tried = ""
        for attempt in range(TRIES):
            time.sleep(0.1 * 4**attempt if attempt else 0)
            for url in self._urls:
                try:
                    answer = httpx.get(
                        f"{url}{path}", auth=self._auth, headers=self._headers, timeout=SECONDS, verify=verify
                    )
                    if answer.status_code == 429 or answer.status_code >= 500:
                        raise httpx.HTTPError(f"HTTP {answer.status_code}")
                except httpx.HTTPError as error:
                    tried = _hidden(f"{url}: {type(error).__name__}: {error}")
                    continue
                return self._read(answer, _hidden(url), path, absent)
        raise RegistryNotAvailable(
            f"the schema registry does not answer: {tried}. Check the registry and {_variable('url')}. No record is "
            "the cause: nothing was acknowledged, and the deliveries are given back"
        )

    def _read(self, answer: httpx.Response, url: str, path: str, absent: int) -> dict[str, Any] | None:
        status = answer.status_code
        try:
            found = answer.json()
        except ValueError:
            found = None
        if status == 404 and isinstance(found, dict) and found.get("error_code") == absent:
            return None
        if status != 200 or not isinstance(found, dict):
            what = {401: "asks for a login", 403: "refuses the login"}.get(
                status, f"responds with HTTP {status}"
            )
            raise RegistryNotAvailable(
                f"the schema registry {url} {what} to {path}: check its address and login ({_variable('url')}, "
                f"{_variable(SETTINGS[1])}). Nothing was acknowledged, and the deliveries are given back"
            )
        return found


def _schema(schema_id: int, found: dict[str, Any]) -> Schema:
    references = tuple(str(each.get("name")) for each in found.get("references") or ())
    return Schema(schema_id, str(found.get("schemaType") or "AVRO"), str(found["schema"]), references)


def _variable(name: str) -> str:
    return f"SHAREQUEUE_REGISTRY_{name.upper().replace('.', '_')}"


def _hidden(text: str) -> str:
    """Return a text with the login of any URL in it removed."""
    return _LOGIN.sub("", text)
