"""Which schema has a number, says a schema registry?

The part of Confluent's HTTP interface that decoding needs, which Karapace, Apicurio and Redpanda have too: a schema
by its id, and the latest of a subject. Only the driver asks. An id means the same schema for ever, so each is asked
for once. What a registry does not have is told from a registry that does not answer: the first is the matter of a
record, the second never is.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from sharequeue.settings import SettingMissing, Settings
from sharequeue.spark.contract import HandlerError, RegistryNotAvailable

SETTINGS = ("url", "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location")
"""What the settings may say of a registry, as confluent-kafka's client calls it."""
TRIES = 3
SECONDS = 10.0
"""How long one try may take."""
_NO_SCHEMA, _NO_SUBJECT = 40403, 40401
"""Codes of the registry. A 404 without one comes from elsewhere: from a wrong address, say."""
_LOGIN = re.compile(r"(?<=//)[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as the registry has it."""

    schema_id: int
    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    references: tuple[str, ...] = ()
    """Names of what it takes from other subjects."""


class Registry:
    """A schema registry, asked by the driver. Without `url` it is the one of the settings.

    `SHAREQUEUE_REGISTRY_URL` has its address, or several with commas in between;
    `SHAREQUEUE_REGISTRY_BASIC_AUTH_USER_INFO` (`user:password`) or `SHAREQUEUE_REGISTRY_BEARER_AUTH_TOKEN` the login,
    `SHAREQUEUE_REGISTRY_SSL_CA_LOCATION` a file of certificates. The login is not used with another
    `url`: give `user_info`. Raises SettingMissing without an address, and ValueError for a setting that there is not.
    """

    def __init__(
        self, url: str | None = None, *, user_info: str | None = None, settings: Settings | None = None
    ) -> None:
        given = dict((settings or Settings.load()).registry)
        if unknown := sorted(set(given) - set(SETTINGS)):
            names = ", ".join(_variable(name) for name in unknown)
            raise ValueError(
                f"{names} is no setting of a registry: expected {', '.join(map(_variable, SETTINGS))}"
            )
        self._urls = [
            each.strip().rstrip("/") for each in (url or given.get("url", "")).split(",") if each.strip()
        ]
        if not self._urls:
            raise SettingMissing(f"The address of the schema registry is not known: set {_variable('url')}.")
        for each in self._urls:
            if not re.match(r"https?://.", each):
                raise ValueError(
                    f"{_hidden(each)!r} is no address of a registry: expected such as http://host:8081"
                )
        # The settings' login is for the settings' registry, and for no other.
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
        """Return the schema of an id, None when the registry does not have it. Raises RegistryNotAvailable."""
        if schema_id not in self._schemas:
            found = self._get(f"/schemas/ids/{schema_id}", _NO_SCHEMA)
            if found is None:
                return None
            self._schemas[schema_id] = _schema(schema_id, found)
        return self._schemas[schema_id]

    def latest(self, subject: str) -> Schema:
        """Return the latest schema of a subject. Raises RegistryNotAvailable, and HandlerError without such a
        subject.
        """
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest", _NO_SUBJECT)
        if found is None:
            raise HandlerError(f"{self!r} has no subject {subject}: name one that it has, or give the schema")
        schema = _schema(int(found["id"]), found)
        self._schemas[schema.schema_id] = schema
        return schema

    def _get(self, path: str, absent: int) -> dict[str, Any] | None:
        """Return what is there; None when the registry says that it is not."""
        tried: list[str] = []
        for attempt in range(TRIES):
            if attempt:
                time.sleep(0.1 * 4**attempt)
            for url in self._urls:
                try:
                    return self._ask(url, path, absent)
                except (httpx.HTTPError, _Passing) as error:
                    tried.append(_hidden(f"{url}: {type(error).__name__}: {error}"))
        raise RegistryNotAvailable(
            f"the schema registry does not answer: {tried[-1]}. Look at the registry, and at {_variable('url')}. "
            "No record is at fault: nothing of this was acknowledged, and deliveries are given back"
        )

    def _ask(self, url: str, path: str, absent: int) -> dict[str, Any] | None:
        verify: Any = True if self._ca is None else httpx.create_ssl_context(verify=self._ca)
        with httpx.Client(auth=self._auth, headers=self._headers, timeout=SECONDS, verify=verify) as client:
            answer = client.get(f"{url}{path}")
        status = answer.status_code
        if status == 429 or status >= 500:
            raise _Passing(f"HTTP {status}")
        try:
            found = answer.json()
        except ValueError:
            found = None
        if status == 404 and isinstance(found, dict) and found.get("error_code") == absent:
            return None
        if status != 200 or not isinstance(found, dict):
            what = {401: "asks for a login", 403: "refuses the login"}.get(status, f"answers HTTP {status}")
            raise RegistryNotAvailable(
                f"the schema registry {_hidden(url)} {what} to {path}: look at its address and login "
                f"({_variable('url')}, {_variable(SETTINGS[1])}). Nothing of this was acknowledged, and deliveries "
                "are given back"
            )
        return found


class _Passing(Exception):
    """It may be better in a moment."""


def _schema(schema_id: int, found: dict[str, Any]) -> Schema:
    references = tuple(str(each.get("name")) for each in found.get("references") or ())
    return Schema(schema_id, str(found.get("schemaType") or "AVRO"), str(found["schema"]), references)


def _variable(name: str) -> str:
    return f"SHAREQUEUE_REGISTRY_{name.upper().replace('.', '_')}"


def _hidden(text: str) -> str:
    """Return a text without the login that a URL in it may have."""
    return _LOGIN.sub("", text)
