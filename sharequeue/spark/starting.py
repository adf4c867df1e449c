"""Tell a mistake in the settings from a server that is away, before following begins.

After a reboot everything starts at once: a server that does not respond, or is still starting, is waited for. A host
name that nobody knows, a login or a database that Postgres refuses, and a topic that does not exist are mistakes:
waiting would hide them. A broker or a service that refuses a login raises an error that is not retriable.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sharequeue.database.refusals import refusal_of
from sharequeue.domain.errors import (
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from sharequeue.domain.settings import Settings, normalise_database_url

_UNKNOWN = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))


def is_mistake(error: Exception, settings: Settings) -> bool:
    """Return whether an error means that a setting is wrong, not that a server is away."""
    if isinstance(error, UnknownTopicOrPartition | UnknownTopicId):
        return True
    if isinstance(error, DBAPIError):
        refusal = refusal_of(error)
        return not refusal.passes if refusal else _unknown(_hosts_of(settings.database_url))
    if isinstance(error, BrokerNotAvailable):
        servers = settings.bootstrap_servers.split(",")
        return _unknown([urlsplit(f"//{each.rpartition('://')[2].strip()}").hostname for each in servers])
    if isinstance(error, CoordinatorNotAvailable):
        return _unknown([urlsplit(settings.service.url).hostname])
    return False


def _hosts_of(url: str) -> list[str | None]:
    """Return the hosts of an address of Postgres: one, or several from `host=`; None for the folder of a socket."""
    parsed = sa.make_url(normalise_database_url(url))
    named = parsed.query.get("host", ())
    hosts = named.split(",") if isinstance(named, str) else named
    return [parsed.host, *(None if host.startswith("/") else host for host in hosts)]


def _unknown(hosts: Sequence[str | None]) -> bool:
    """Return whether there are host names, and none of them is known. A name server that does not respond knows
    neither."""
    named = [host for host in hosts if host]
    return bool(named) and not any(map(_is_known, named))


def _is_known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return error.errno not in _UNKNOWN
    except UnicodeError:  # not a name that a host can have
        return False
    return True


__all__ = ["is_mistake"]
