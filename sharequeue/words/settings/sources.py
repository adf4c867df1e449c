"""Read settings from the environment and from the file of the embedded stack."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic_settings import BaseSettings, SettingsConfigDict

from sharequeue.words.settings.service_address import SettingMissing

KAFKA_PREFIX = "SHAREQUEUE_KAFKA_"
REGISTRY_PREFIX = "SHAREQUEUE_REGISTRY_"
STACK_FILE = "stack.json"


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
    service_drain_dead_letters: bool | None = None
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
