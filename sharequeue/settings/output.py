"""What may the output of pipelines be: which paths, and which URIs?

A path is a folder of this machine. A URI is for Hadoop's file systems: `hdfs:`, `s3a:` and others. What is wrong with
the text alone is said when the settings are read, before anything starts. Whether the place is there and may be
written to is asked by `sharequeue.spark.output.reachable`.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["OutputInvalid", "is_uri", "located"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_STORES = ("abfs", "abfss", "gs", "hdfs", "s3a")
"""File systems that are known here: what begins so, is no path."""
_NAMED = {"abfs": "container@account", "abfss": "container@account", "gs": "bucket", "s3a": "bucket"}
"""What must stand after the slashes."""


class OutputInvalid(ValueError):
    """A text that is neither a path nor a URI for an output; the message says what to write."""


def is_uri(output: str) -> bool:
    """Return whether this is a URI, and no path."""
    return _URI.match(output) is not None


def located(output: str) -> str:
    """Return a URI as it is, without slashes at the end, a path as an absolute one.

    Raises OutputInvalid for `s3:`, for a store without a bucket, and for a password in the URI.
    """
    scheme = output.partition(":")[0].lower()
    if scheme in ("s3", "s3n") and ":" in output:
        raise OutputInvalid(
            f"the output has the scheme {scheme}: Hadoop's client of S3 is s3a: write s3a://bucket/folder"
        )
    if scheme in _STORES and not re.match(r"[^:]+:/(/|[^/]|$)", output):
        raise OutputInvalid(f"the output begins with {scheme}: and is no URI: write {_example(scheme)}")
    if not is_uri(output):
        return str(Path(output).expanduser().absolute())
    user, at, _ = urlsplit(output).netloc.rpartition("@")
    if at and ":" in user:
        raise OutputInvalid(
            f"the output, a URI of {scheme}:, has a password in it, which would be in logs and in the database: give "
            "it to Hadoop in its settings or in the environment"
        )
    if scheme in _NAMED and not urlsplit(output).netloc:
        raise OutputInvalid(f"the output {output} names no {_NAMED[scheme]}: write {_example(scheme)}")
    return re.sub(r"(?<=[^/:])/+$", "", output)


def _example(scheme: str) -> str:
    return f"{scheme}://{_NAMED.get(scheme, 'host:port')}/folder"
