"""The output of pipelines: a path or a URI.

A path is a folder of this machine. A URI is for Hadoop's file systems: `hdfs:`, `s3a:` and others. Errors in the
text are reported when the settings are read, before anything starts. `sharequeue.spark.output.reachable` checks that
the location exists and is writable.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["OutputInvalid", "is_uri", "located"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_STORES = ("abfs", "abfss", "gs", "hdfs", "s3a")
"""Known file systems: a text with this prefix is never a path."""
_NAMED = {"abfs": "container@account", "abfss": "container@account", "gs": "bucket", "s3a": "bucket"}
"""What must follow the slashes."""


class OutputInvalid(ValueError):
    """A text that is neither a path nor a URI for an output; the message shows the correct form."""


def is_uri(output: str) -> bool:
    """Return whether this is a URI and not a path."""
    return _URI.match(output) is not None


def located(output: str) -> str:
    """Return a URI without trailing slashes, or a path as an absolute path.

    Raises OutputInvalid for `s3:`, for a store without a bucket, and for a password in the URI.
    """
    scheme = output.partition(":")[0].lower()
    if scheme in ("s3", "s3n") and ":" in output:
        raise OutputInvalid(
            f"the output has the scheme {scheme}: Hadoop's S3 client uses s3a: write s3a://bucket/folder"
        )
    if scheme in _STORES and not re.match(r"[^:]+:/(/|[^/]|$)", output):
        raise OutputInvalid(f"the output begins with {scheme}: but is not a URI: write {_example(scheme)}")
    if not is_uri(output):
        return str(Path(output).expanduser().absolute())
    user, at, _ = urlsplit(output).netloc.rpartition("@")
    if at and ":" in user:
        raise OutputInvalid(
            f"the output, a URI of {scheme}:, contains a password, which would appear in logs and in the database: "
            "set it in Hadoop's settings or in the environment"
        )
    if scheme in _NAMED and not urlsplit(output).netloc:
        raise OutputInvalid(f"the output {output} has no {_NAMED[scheme]}: write {_example(scheme)}")
    return re.sub(r"(?<=[^/:])/+$", "", output)


def _example(scheme: str) -> str:
    return f"{scheme}://{_NAMED.get(scheme, 'host:port')}/folder"
