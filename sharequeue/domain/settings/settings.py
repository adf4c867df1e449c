"""The settings: database, broker, service, jars, output.

All parts of the project use the same settings (command line, service, Spark, Dagster, tests). An environment
variable overrides `<home>/stack.json`, which `sharequeue up` writes for the stack it started, and the file
overrides the default. The configs of share groups are in `groups.configs`. Client security for Kafka has
librdkafka's names; `kafka.clients` translates them for Java.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic_settings import BaseSettings, SettingsConfigDict

from sharequeue.domain.settings import jar_sets
from sharequeue.domain.settings.addresses import (
    SettingMissing,
    checked_master,
    checked_servers,
    is_uri,
    located,
    normalise_database_url,
    sibling_database,
)
from sharequeue.domain.settings.options import DatabaseOptions, RoleNames, ServiceLimits
from sharequeue.domain.settings.service_address import ServiceAddress
from sharequeue.domain.settings.variables import warn_of_unknown_settings

__all__ = ["KAFKA_PREFIX", "Environment", "Settings"]

KAFKA_PREFIX = "SHAREQUEUE_KAFKA_"
REGISTRY_PREFIX = "SHAREQUEUE_REGISTRY_"
STACK_FILE = "stack.json"

_KEPT = (
    "home", "spark_master", "spark_jars", "jars", "output", "output_shared", "ivy_settings", "kafka", "registry",
)  # fmt: skip
"""Fields that a copy takes over unchanged."""


class Environment(BaseSettings):
    """The `SHAREQUEUE_*` variables as they are; empty ones count as unset."""

    model_config = SettingsConfigDict(env_prefix="SHAREQUEUE_", env_ignore_empty=True, extra="ignore")

    home: Path | None = None
    database_url: str | None = None
    dagster_url: str | None = None
    bootstrap_servers: str | None = None
    service_url: str | None = None
    service_token: str | None = None
    service_token_file: Path | None = None
    service_ssl_ca_location: Path | None = None
    service_ssl_certificate_location: Path | None = None
    service_ssl_key_location: Path | None = None
    service_allowed_hosts: str | None = None
    service_write_dead_letters: bool | None = None
    service_log_format: Literal["text", "json"] | None = None
    service_max_connections: int | None = None
    service_request_timeout_ms: int | None = None
    service_answer_timeout_ms: int | None = None
    service_idle_timeout_ms: int | None = None
    service_requests_per_second: int | None = None
    spark_master: str | None = None
    spark_jars: str | None = None
    jars: Path | None = None
    output: str | None = None
    output_shared: bool | None = None
    ivy_settings: Path | None = None
    database_pool_size: int | None = None
    database_statement_timeout_ms: int | None = None
    database_lock_timeout_ms: int | None = None
    database_pre_ping: bool | None = None
    database_owner_role: str | None = None
    database_service_role: str | None = None
    database_worker_role: str | None = None
    database_reader_role: str | None = None


class HiddenValues(Mapping[str, str]):
    """An immutable mapping that prints its names and hides its values."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: '***'" for name in self._values) + "}"


class Settings:
    """The settings of a process. Immutable; an address that is not set raises `SettingMissing` when it is
    read.

    Make one with `Settings.load()`; change one with `replace(name=value)`.
    """

    _values: Mapping[str, Any]
    home: Path
    """The data folder (`SHAREQUEUE_HOME`, default `.sharequeue` in the working directory), absolute."""
    spark_master: str
    """`SHAREQUEUE_SPARK_MASTER`, default `local[*]`."""
    spark_jars: tuple[str, ...]
    """`SHAREQUEUE_SPARK_JARS`, comma-separated: sets of jars for Spark sessions (`delta`, `iceberg`, `avro`, `s3a`),
    fetched before with `sharequeue jars fetch`. An output on `s3a:` adds its set automatically."""
    jars: Path
    """`SHAREQUEUE_JARS`, default `<home>/jars`: the folders of jars, and the class archives of drivers."""
    output: str
    """`SHAREQUEUE_OUTPUT`, default `<home>/output`: where pipelines write. An absolute path of this machine, or a URI
    (`hdfs://…`, `s3a://…`).
    """
    output_shared: bool
    """`SHAREQUEUE_OUTPUT_SHARED`, default false: the output is a path that a cluster's executors can reach too."""
    ivy_settings: Path | None
    """`SHAREQUEUE_IVY_SETTINGS`: an Ivy settings file for a mirror of your site."""
    kafka: Mapping[str, str]
    """Client security settings in librdkafka's names, from `SHAREQUEUE_KAFKA_<NAME>`."""
    registry: Mapping[str, str]
    """The schema registry, with the names of confluent-kafka's client, from `SHAREQUEUE_REGISTRY_<NAME>`: `URL`,
    `BASIC_AUTH_USER_INFO` (`user:password`), `BEARER_AUTH_TOKEN`, `SSL_CA_LOCATION`.
    """

    allowed_hosts: tuple[str, ...]
    """`SHAREQUEUE_SERVICE_ALLOWED_HOSTS`, comma-separated: host names that requests may use, besides the loopback
    names and the address that the service listens on; `*` allows any."""
    write_dead_letters: bool
    """`SHAREQUEUE_SERVICE_WRITE_DEAD_LETTERS`, default true: the service writes dead letters automatically."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        home = Path(values.get("home") or ".sharequeue").expanduser().absolute()
        database_url = normalise_database_url(str(values.get("database_url") or ""))
        dagster_url = normalise_database_url(str(values.get("dagster_url") or "")) or sibling_database(
            database_url
        )
        ivy_settings = values.get("ivy_settings")
        hosts = str(values.get("service_allowed_hosts") or "").split(",")
        addresses = {
            "database_url": database_url,
            "dagster_url": dagster_url,
            "bootstrap_servers": checked_servers(str(values.get("bootstrap_servers") or "")),
            "service_url": str(values.get("service_url") or "").rstrip("/"),
        }
        vars(self).update(
            home=home,
            spark_master=checked_master(str(values.get("spark_master") or "local[*]")),
            spark_jars=jar_sets.chosen(values.get("spark_jars") or ()),
            jars=Path(values.get("jars") or home / "jars").expanduser().absolute(),
            output=located(str(values.get("output") or home / "output")),
            output_shared=bool(values.get("output_shared")),
            ivy_settings=Path(ivy_settings).expanduser().absolute() if ivy_settings else None,
            kafka=HiddenValues(values.get("kafka") or {}),
            registry=HiddenValues(values.get("registry") or {}),
            allowed_hosts=tuple(host.strip() for host in hosts if host.strip()),
            write_dead_letters=values.get("service_write_dead_letters") is not False,
            _values=MappingProxyType({**values, **addresses}),
        )

    @classmethod
    def load(cls, home: Path | str | None = None, **overrides: Any) -> Self:
        """Read the environment and the stack file.

        `home` and `overrides` (by field name) override both. Raises `SettingMissing` if the stack file exists but
        cannot be read; SettingInvalid for an invalid output, broker address, master or set of jars. Logs a warning
        for an unknown variable `SHAREQUEUE_*`.
        """
        warn_of_unknown_settings(f"SHAREQUEUE_{name.upper()}" for name in Environment.model_fields)
        environment = Environment()
        folder = Path(home or environment.home or ".sharequeue").expanduser().absolute()
        values: dict[str, Any] = dict(read_stack_file(folder / STACK_FILE))
        values.update(environment.model_dump(exclude_none=True))
        if (environment.database_url or overrides.get("database_url")) and not environment.dagster_url:
            values.pop(
                "dagster_url", None
            )  # the stack's Dagster database is on the server that was overridden
        if overrides.get("service_token"):
            values.pop("service_token_file", None)
        given = {"kafka": variables(KAFKA_PREFIX), "registry": variables(REGISTRY_PREFIX)}
        values.update({"home": folder, **given, **overrides})
        return cls(values)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these fields changed."""
        return type(self)({**self._values, **{name: getattr(self, name) for name in _KEPT}, **changes})

    @property
    def database_url(self) -> str:
        """SQLAlchemy URL of the database with the schema `sharequeue` (`SHAREQUEUE_DATABASE_URL`)."""
        return self._address("database_url", "SHAREQUEUE_DATABASE_URL", "the Postgres database")

    @property
    def database(self) -> DatabaseOptions:
        """Options of the connections to it. Raises SettingInvalid for invalid values."""
        names = ("pool_size", "statement_timeout_ms", "lock_timeout_ms", "pre_ping")
        found = {name: self._values.get(f"database_{name}") for name in names}
        return DatabaseOptions(**{name: value for name, value in found.items() if value is not None})

    @property
    def log_format(self) -> Literal["text", "json"]:
        """The format of the log of `serve` (`SHAREQUEUE_SERVICE_LOG_FORMAT`, default text)."""
        return "json" if self._values.get("service_log_format") == "json" else "text"

    @property
    def service_limits(self) -> ServiceLimits:
        """Limits for one client of the coordinator service. Raises SettingInvalid for invalid values."""
        found = {each.name: self._values.get(f"service_{each.name}") for each in fields(ServiceLimits)}
        return ServiceLimits(**{name: value for name, value in found.items() if value is not None})

    @property
    def roles(self) -> RoleNames:
        """The names of the roles in Postgres."""
        found = {name: self._values.get(f"database_{name}_role") for name in RoleNames._fields}
        return RoleNames(**{name: value for name, value in found.items() if value})

    @property
    def dagster_url(self) -> str:
        """SQLAlchemy URL of Dagster's storage (`SHAREQUEUE_DAGSTER_URL`, default: the database `dagster` on the same
        server).
        """
        return self._address("dagster_url", "SHAREQUEUE_DAGSTER_URL", "Dagster's database")

    @property
    def bootstrap_servers(self) -> str:
        """Kafka's `host:port,…` (`SHAREQUEUE_BOOTSTRAP_SERVERS`)."""
        return self._address("bootstrap_servers", "SHAREQUEUE_BOOTSTRAP_SERVERS", "the Kafka broker")

    @property
    def service_url(self) -> str:
        """URL of the coordinator service (`SHAREQUEUE_SERVICE_URL`), without a trailing slash."""
        return self._address("service_url", "SHAREQUEUE_SERVICE_URL", "the coordinator service")

    @property
    def service_token(self) -> str | None:
        """Bearer token for the coordinator service (`SHAREQUEUE_SERVICE_TOKEN`), from `sharequeue tokens create`.
        Without one, requests are those of `User:ANONYMOUS`. It is not read from `stack.json`. Raises SettingMissing
        if its file cannot be read or is empty.
        """
        if (file := self.service_token_file) is None:
            return str(self._values.get("service_token") or "").strip() or None
        try:
            found = file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise SettingMissing(f"The service token cannot be read from {file} ({reason}).") from None
        if not found:
            raise SettingMissing(f"{file} is empty: expected a service token in it.")
        return found

    @property
    def service_token_file(self) -> Path | None:
        """A file with the token (`SHAREQUEUE_SERVICE_TOKEN_FILE`). It overrides `SHAREQUEUE_SERVICE_TOKEN`, and each
        new client reads it again.
        """
        return self._file("service_token_file")

    @property
    def service(self) -> ServiceAddress:
        """The coordinator service for clients: its URL, their token, and the certificates. Raises
        SettingMissing.
        """
        return ServiceAddress(
            self.service_url,
            self.service_token,
            self.service_ssl_ca_location,
            self.service_ssl_certificate_location,
            self.service_ssl_key_location,
        )

    @property
    def service_ssl_ca_location(self) -> Path | None:
        """PEM file of the authorities that may sign the service's certificate
        (`SHAREQUEUE_SERVICE_SSL_CA_LOCATION`); without it, those of the system.
        """
        return self._file("service_ssl_ca_location")

    @property
    def service_ssl_certificate_location(self) -> Path | None:
        """PEM file of the certificate that clients present to the service
        (`SHAREQUEUE_SERVICE_SSL_CERTIFICATE_LOCATION`).
        """
        return self._file("service_ssl_certificate_location")

    @property
    def service_ssl_key_location(self) -> Path | None:
        """PEM file of that certificate's key (`SHAREQUEUE_SERVICE_SSL_KEY_LOCATION`); without it, it is in the same
        file.
        """
        return self._file("service_ssl_key_location")

    @property
    def local_output(self) -> Path:
        """The output if it is a path, else `<home>/output`: for small files of this process."""
        return self.home / "output" if is_uri(self.output) else Path(self.output)

    def knows(self, name: str) -> bool:
        """Return whether the address `name` is set, without raising."""
        return bool(self._values[name])

    def _file(self, name: str) -> Path | None:
        file = self._values.get(name)
        return Path(file).expanduser() if file else None

    def _address(self, name: str, variable: str, what: str) -> str:
        value: str = self._values[name]
        if not value:
            option = "bootstrap-server" if name == "bootstrap_servers" else name.replace("_", "-")
            flag = "" if name == "dagster_url" else f"the option --{option}, "
            raise SettingMissing(
                f"The address of {what} is not known: set {variable}, or run `sharequeue up` "
                f"(looked for {flag}the variable {variable}, and {name} in {self.home / STACK_FILE})."
            )
        return value

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Settings are immutable: use replace({name}=…)")

    def __reduce__(self) -> tuple[Any, ...]:
        mappings = {"kafka": dict(self.kafka), "registry": dict(self.registry)}
        return type(self), ({**self._values, **{name: getattr(self, name) for name in _KEPT}, **mappings},)

    def __repr__(self) -> str:
        return f"Settings(home={str(self.home)!r}, bootstrap_servers={self._values['bootstrap_servers']!r})"


def read_stack_file(path: Path) -> dict[str, Any]:
    """Return the settings that the embedded stack has written. Raises SettingMissing if they cannot be read."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingMissing(
            f"{path} cannot be read ({error}): run `sharequeue up`, which writes it again."
        ) from error
    names = ("database_url", "dagster_url", "bootstrap_servers", "service_url", "jars")
    return {name: content[name] for name in names if isinstance(content, dict) and content.get(name)}


def variables(prefix: str) -> dict[str, str]:
    """Return the variables with this prefix, under the names of Kafka's clients."""
    return {
        name.removeprefix(prefix).lower().replace("_", "."): value
        for name, value in os.environ.items()
        if name.startswith(prefix) and value
    }
