"""Check the addresses in the settings, and write them in one form: the database, Kafka's brokers, the output.

Errors in the text are reported when the settings are read, before anything starts.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

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
    """Add the driver to a bare Postgres URL, and write several hosts (libpq's `h1:5432,h2:5432`) in SQLAlchemy's
    form.

    SQLAlchemy 2.1 maps `postgresql://` to psycopg 3, under which dagster-postgres fails on every run.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    place, slash, tail = rest.partition("/")
    user, at, hosts = place.rpartition("@")
    if "," in hosts:
        name, _, query = tail.partition("?")
        listed = "&".join([*(f"host={host}" for host in hosts.split(",")), *filter(None, [query])])
        rest = f"{user}{at}{slash}{name}?{listed}"
    return f"{_DRIVER if scheme in ('postgresql', 'postgres') else scheme}://{rest}"


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
