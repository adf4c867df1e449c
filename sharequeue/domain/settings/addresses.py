"""Check the addresses in the settings, and write them in one form: the database, Kafka's brokers, the output.

Errors in the text are reported when the settings are read, before anything starts.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

__all__ = [
    "SettingInvalid",
    "SettingMissing",
    "checked_master",
    "checked_servers",
    "is_uri",
    "located",
    "normalise_database_url",
    "sibling_database",
]

_DRIVER = "postgresql+psycopg2"
_PORT = re.compile(r"(?:\[[^\]]*\]|[^:\]]*):([^:]*)")
"""A host with a port. Two colons without brackets are an IPv6 address without a port."""
_URL = re.compile(r"(?P<user>[^/?]*@)?(?P<hosts>[^/?@]*)(?P<path>/[^?]*)?(?:\?(?P<query>.*))?")
_PLACE = re.compile(r"(?:\[(?P<address>[^\]]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]*))?")
"""A host, or the folder of a socket, with or without a port. An IPv6 address without brackets does not match."""
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_STORES = ("abfs", "abfss", "gs", "hdfs", "s3a")
"""Known file systems: a text with this prefix is never a path."""
_NAMED = {"abfs": "container@account", "abfss": "container@account", "gs": "bucket", "s3a": "bucket"}
"""What must follow the slashes."""


class SettingMissing(Exception):
    """An address is set neither in the environment nor in the stack file, or a file cannot be used; the message names
    it and what to do."""


class SettingInvalid(ValueError):
    """A setting has an invalid value; `variable` is its name in the environment."""

    def __init__(self, variable: str, message: str) -> None:
        super().__init__(variable, message)
        self.variable, self.message = variable, message

    def __str__(self) -> str:
        return self.message


def normalise_database_url(url: str) -> str:
    """Add the driver to a bare Postgres URL, and write several hosts and sockets in a form that SQLAlchemy reads.

    SQLAlchemy 2.1 maps `postgresql://` to psycopg 3, under which dagster-postgres fails on every run. It does not
    know libpq's `h1:5432,h2:5432`, IPv6 addresses among several hosts, and the folder of a socket in place of a host
    (`%2Frun%2Fpostgresql:5433`).
    """
    scheme, separator, rest = url.partition("://")
    found = _URL.fullmatch(rest)
    if not separator or found is None:
        return url
    if scheme in ("postgresql", "postgres"):
        scheme = _DRIVER
    options = parse_qsl(found["query"] or "", keep_blank_values=True)
    listed = [unquote(host) for host in found["hosts"].split(",")]
    simple = len(listed) == 1 and not listed[0].startswith("/")
    if simple and "port" not in dict(options):
        listed = [host for name, value in options if name == "host" for host in value.split(",")]
        simple = len(listed) < 2
    placed = [_PLACE.fullmatch(host) for host in listed]
    if simple and not any(place is not None and (place["port"] or place["address"]) for place in placed):
        return f"{scheme}://{rest}"
    hosts = [
        host if place is None else place["address"] or place["name"]
        for host, place in zip(listed, placed, strict=True)
    ]
    ports = ["" if place is None else place["port"] or "" for place in placed]
    kept = [(name, value) for name, value in options if name != "host"]
    query = [("host", ",".join(hosts)), *([("port", ",".join(ports))] if any(ports) else []), *kept]
    return f"{scheme}://{found['user'] or ''}{found['path'] or '/'}?{urlencode(query, safe='/:,', quote_via=quote)}"


def sibling_database(database_url: str) -> str:
    """Return the URL of the database `dagster` on the same server."""
    if not database_url:
        return ""
    return urlunsplit(urlsplit(database_url)._replace(path="/dagster"))


def checked_servers(servers: str) -> str:
    """Return the addresses of brokers as they are. Raises SettingInvalid for a port that is not 1 to 65535.

    Everything else that librdkafka accepts is accepted: a protocol before the host (`SSL://host:9093`), a host
    without a port, an IPv6 address. But librdkafka tries 34463 for 99999, so that a client would wait for ever.
    """
    for each in servers.split(","):
        port = _PORT.fullmatch(each.rpartition("://")[2].strip())
        if port is not None and not (re.fullmatch("[0-9]{1,5}", port[1]) and 0 < int(port[1]) < 65536):
            raise SettingInvalid(
                "SHAREQUEUE_BOOTSTRAP_SERVERS",
                f"the port of {each.strip()!r} is {port[1]!r}: expected a number from 1 to 65535; "
                "write host:port,…",
            )
    return servers


def is_uri(output: str) -> bool:
    """Return whether this is a URI and not a path."""
    return _URI.match(output) is not None


def located(output: str) -> str:
    """Return an output: a URI of Hadoop's file systems without trailing slashes, or a path as an absolute path.

    Raises SettingInvalid for `s3:`, for a store without a bucket, and for a password in the URI.
    """
    scheme = output.partition(":")[0].lower()
    if scheme in ("s3", "s3n") and ":" in output:
        raise _invalid(
            f"the output has the scheme {scheme}: Hadoop's S3 client uses s3a: write s3a://bucket/folder"
        )
    if scheme in _STORES and not re.match(r"[^:]+:/(/|[^/]|$)", output):
        raise _invalid(f"the output begins with {scheme}: but is not a URI: write {_example(scheme)}")
    if not is_uri(output):
        return str(Path(output).expanduser().absolute())
    user, at, _ = urlsplit(output).netloc.rpartition("@")
    if at and ":" in user:
        raise _invalid(
            f"the output, a URI of {scheme}:, contains a password, which would appear in logs and in the database: "
            "set it in Hadoop's settings or in the environment"
        )
    if scheme in _NAMED and not urlsplit(output).netloc:
        raise _invalid(f"the output {output} has no {_NAMED[scheme]}: write {_example(scheme)}")
    return re.sub(r"(?<=[^/:])/+$", "", output)


def checked_master(master: str) -> str:
    """Return Spark's master. Raises SettingInvalid if it is neither local nor `yarn` nor a URL."""
    if re.fullmatch(r"local(\[(\*|\d+)(,\d+)?\]|-cluster\[\d+,\d+,\d+\])?|yarn|[a-z0-9]+://.+", master):
        return master
    raise SettingInvalid(
        "SHAREQUEUE_SPARK_MASTER",
        f"Spark's master is {master!r}: expected local[4], local[*], yarn, spark://host:7077 or k8s://https://host",
    )


def _invalid(message: str) -> SettingInvalid:
    return SettingInvalid("SHAREQUEUE_OUTPUT", message)


def _example(scheme: str) -> str:
    return f"{scheme}://{_NAMED.get(scheme, 'host:port')}/folder"
