"""What the commands share that take the arguments of Kafka's own tools: its usage errors, names of errors, clients.

`share-groups` and `share-group-configs` print what `kafka-share-groups.sh` and `kafka-configs.sh` print, so that what
an operator types by habit works, and scripts that read it do. Usage errors end with exit code 1, as there. Unlike
there, a failed describe or delete does, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click

from sharequeue.cli.output import printable
from sharequeue.errors import (
    GroupAuthorizationFailed,
    InvalidConfig,
    NonEmptyGroup,
    SaslAuthenticationFailed,
    ShareError,
)
from sharequeue.settings import Settings

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
        """Parse the arguments; say what is wrong with them in the words of Kafka's parser."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            usage(ctx, f"{error.option_name.lstrip('-')} is not a recognized option")
        except click.UsageError as error:
            usage(ctx, error.format_message())

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it finds wrong with its arguments later is said alike."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            usage(ctx, error.format_message())


def usage(context: click.Context, message: str) -> NoReturn:
    """Print what is wrong with the command line, and end with exit code 1."""
    click.echo(message, err=True)
    click.echo(f"{context.command_path} --help lists the options.", err=True)
    context.exit(1)


def unavailable(context: click.Context, names: Sequence[str]) -> None:
    """Refuse options that do not go with the others, where there are any."""
    if names:
        usage(
            context,
            f"Option(s) [{', '.join(names)}] are unavailable given other options on the command line",
        )


def java_name(error: ShareError) -> str:
    """Return the name of the exception that Kafka's tools print."""
    return "org.apache.kafka.common.errors." + _JAVA.get(type(error), f"{type(error).__name__}Exception")


def table(rows: Sequence[Sequence[object]], widths: Sequence[int]) -> str:
    """Return lines as Kafka's tools write them: each column as wide as its longest value, and no less than that.

    What a terminal would obey is escaped: a member names itself as it likes.
    """
    shown = [[printable(str(cell)) for cell in row] for row in rows]
    wide = [max(least, *(len(row[at]) for row in shown)) for at, least in enumerate(widths)]
    lines = (
        " ".join(cell.ljust(width) for cell, width in zip(row, (*wide, 0), strict=False)) for row in shown
    )
    return "\n".join(lines)


def cells(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Sequence[object]]:
    """The head and the cells of a table; `-` where there is no value."""
    keys = [name.lower().replace("-", "_").lstrip("#") for name in names]
    return [names, *(["-" if row.get(key) is None else row[key] for key in keys] for row in rows)]


def moment_of(said: str) -> datetime:
    """Return a time as Kafka's tools read it, UTC where no zone is said. Raises ValueError in their words."""
    if "T" not in said:
        raise ValueError("Error parsing timestamp. It does not contain a 'T' according to ISO8601 format")
    try:
        moment = datetime.fromisoformat(said)
    except ValueError:
        raise ValueError(f'Unparseable date: "{said}"') from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def with_command_config(settings: Settings, path: Path | None, warn: Callable[[str], None]) -> Settings:
    """Return the settings with what a Java client's properties file (`--command-config`) says of security.

    Raises BadParameter for a file that has what cannot be read without Java: a trust store or key store that is not
    in PEM.
    """
    if path is None:
        return settings
    given = properties(path)
    found: dict[str, str] = {}
    for name, value in given.items():
        if name == "sasl.jaas.config":
            found |= {f"sasl.{key}": said for key, said in _JAAS.findall(value)}
        elif name in ("ssl.truststore.type", "ssl.keystore.type"):
            if value.upper() not in ("PEM", "PKCS12"):
                raise click.BadParameter(f"{path}: {name}={value} can only be read by Java; use PEM")
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
    """Return the lines of a properties file that are no comments; a backslash at the end of a line continues it."""
    text = path.read_text().replace("\\\n", "")
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and line.lstrip()[0] not in "#!":
            name, _, value = line.partition("=")
            pairs[name.strip()] = value.strip()
    return pairs
