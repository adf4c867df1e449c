"""Code shared by the commands with the arguments of Kafka's own tools: usage errors, names of errors, clients.

`share-groups` and `share-group-configs` print what `kafka-share-groups.sh` and `kafka-configs.sh` print, so that
operators' habits, and scripts that parse the output, keep working. Usage errors end with exit code 1, as in Kafka.
Unlike there, so does a failed describe or delete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click

from sharequeue.kafka.text_files import TextUnreadable, read_text
from sharequeue.words.errors import (
    GroupAuthorizationFailed,
    InvalidConfig,
    NonEmptyGroup,
    SaslAuthenticationFailed,
    ShareError,
)
from sharequeue.words.names import printable
from sharequeue.words.settings import Settings

__all__ = [
    "KafkaCommand",
    "cells",
    "java_name",
    "moment_of",
    "properties",
    "table",
    "unavailable",
    "usage",
    "with_command_config",
]

_JAVA: dict[type[ShareError], str] = {
    NonEmptyGroup: "GroupNotEmptyException",
    InvalidConfig: "InvalidConfigurationException",
    GroupAuthorizationFailed: "GroupAuthorizationException",
    SaslAuthenticationFailed: "SaslAuthenticationException",
}
_JAAS = re.compile(r'\b(username|password)\s*=\s*"([^"]*)"')
_CLIENT_NAMES = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.location": "ssl.keystore.location",
    "ssl.keystore.password": "ssl.keystore.password",
    "ssl.key.password": "ssl.key.password",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "client.id": "client.id",
}


class KafkaCommand(click.Command):
    """A command whose usage errors are Kafka's: the message on stderr, exit code 1."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; report errors with the messages of Kafka's parser."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            usage(ctx, f"{error.option_name.lstrip('-')} is not a recognized option")
        except click.UsageError as error:
            usage(ctx, error.format_message())

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; report later errors in its arguments in the same way."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            usage(ctx, error.format_message())


def usage(context: click.Context, message: str) -> NoReturn:
    """Print a usage error, and end with exit code 1."""
    click.echo(message, err=True)
    click.echo(f"{context.command_path} --help lists the options.", err=True)
    context.exit(1)


def unavailable(context: click.Context, names: Sequence[str]) -> None:
    """Refuse options that cannot be combined with the others, if there are any."""
    if names:
        usage(
            context,
            f"Option(s) [{', '.join(names)}] are unavailable given other options on the command line",
        )


def java_name(error: ShareError) -> str:
    """Return the exception's name in Kafka's tools."""
    return "org.apache.kafka.common.errors." + _JAVA.get(type(error), f"{type(error).__name__}Exception")


def table(rows: Sequence[Sequence[object]], widths: Sequence[int]) -> str:
    """Return lines as Kafka's tools write them: each column as wide as its longest value, with a minimum width.

    Control characters for terminals are escaped: a member may have any name.
    """
    shown = [[printable(str(cell)) for cell in row] for row in rows]
    wide = [max(least, *(len(row[at]) for row in shown)) for at, least in enumerate(widths)]
    lines = (
        " ".join(cell.ljust(width) for cell, width in zip(row, (*wide, 0), strict=False)) for row in shown
    )
    return "\n".join(lines)


def cells(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Sequence[object]]:
    """Return the head and the cells of a table; `-` for missing values."""
    keys = [name.lower().replace("-", "_").lstrip("#") for name in names]
    return [names, *(["-" if row.get(key) is None else row[key] for key in keys] for row in rows)]


def moment_of(text: str) -> datetime:
    """Return a time as Kafka's tools read it, in UTC if it has no zone. Raises ValueError with their message."""
    if "T" not in text:
        raise ValueError("Error parsing timestamp. It does not contain a 'T' according to ISO8601 format")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f'Unparseable date: "{text}"') from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def with_command_config(settings: Settings, path: Path | None, warn: Callable[[str], None]) -> Settings:
    """Return the settings with the security settings of a Java client's properties file (`--command-config`).

    Raises BadParameter if the file has something that only Java can read: a trust store or key store that is not
    in PEM.
    """
    if path is None:
        return settings
    given = properties(path)
    found: dict[str, str] = {}
    for name, value in given.items():
        if name == "sasl.jaas.config":
            found |= {f"sasl.{key}": text for key, text in _JAAS.findall(value)}
        elif name in ("ssl.truststore.type", "ssl.keystore.type"):
            if value.upper() not in ("PEM", "PKCS12"):
                raise click.BadParameter(f"{path}: only Java can read {name}={value}: use PEM")
        elif name in _CLIENT_NAMES:
            found[_CLIENT_NAMES[name]] = value
        elif name != "bootstrap.servers":
            warn(f"{path}: {name} is not used")
    if given.get("ssl.keystore.type", "").upper() == "PEM" and "ssl.keystore.location" in found:
        both = found.pop("ssl.keystore.location")
        found |= {"ssl.certificate.location": both, "ssl.key.location": both}
    if found.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl.endpoint.identification.algorithm"] = "none"
    return settings.replace(kafka={**settings.kafka, **found})


def properties(path: Path) -> dict[str, str]:
    """Return the lines of a properties file without comments; a backslash at the end of a line continues it.

    Raises BadParameter for a file that is not UTF-8.
    """
    try:
        text = read_text(path, "lines of name=value").replace("\\\n", "")
    except TextUnreadable as error:
        raise click.BadParameter(str(error)) from None
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and line.lstrip()[0] not in "#!":
            name, _, value = line.partition("=")
            pairs[name.strip()] = value.strip()
    return pairs
