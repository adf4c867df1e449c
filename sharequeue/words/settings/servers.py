"""Check the addresses of Kafka's brokers: `host:port,…`.

Everything that librdkafka accepts is accepted: a protocol before the host (`SSL://host:9093`), a host without a
port, an IPv6 address in brackets or without a port. A port out of range is refused: librdkafka tries 34463 for 99999,
so that a client would wait for a broker for ever.
"""

from __future__ import annotations

import re

__all__ = ["ServersInvalid", "checked_servers"]

_PORT = re.compile(r"(?:\[[^\]]*\]|[^:\]]*):([^:]*)")
"""A host with a port. Two colons without brackets are an IPv6 address without a port."""


class ServersInvalid(ValueError):
    """The address of a broker is invalid; the message has the address and the expected form."""


def checked_servers(servers: str) -> str:
    """Return the addresses as they are. Raises ServersInvalid for a port that is not a number from 1 to 65535."""
    for each in servers.split(","):
        port = _PORT.fullmatch(each.rpartition("://")[2].strip())
        if port is not None and not (re.fullmatch("[0-9]{1,5}", port[1]) and 0 < int(port[1]) < 65536):
            raise ServersInvalid(
                f"the port of {each.strip()!r} is {port[1]!r}: expected a number from 1 to 65535; "
                "write host:port,…"
            )
    return servers
