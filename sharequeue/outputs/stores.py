"""Arrow's file systems of the places of outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from sharequeue.domain.settings.addresses import is_uri

if TYPE_CHECKING:
    from pyarrow import fs

ONE_TREE = ("file", "hdfs", "viewfs")
"""Schemes whose file systems have the authority (a host) in the client, and not in the path."""


def filesystem_of(location: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a location, and the path in it.

    A location is as Hadoop takes it, and so as Spark has written there: a space, `%`, `#` or `?` stands for itself.
    """
    # Imported only here: these imports take longer than all others of the command line, and of a consumer.
    from pyarrow import fs

    if "://" in location or location.startswith("file:"):
        # Hadoop's name for s3.
        scheme, _, place = location.replace("s3a://", "s3://", 1).partition(":")
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(f"{scheme}:{quote(place, safe='/@:')}")
        return found
    return fs.LocalFileSystem(), location


def path_in(location: str) -> str:
    """Return the path of a location in a file system that the caller has: `bucket/key` in an object store."""
    if not is_uri(location):
        return location
    scheme, _, place = location.partition(":")
    if not place.startswith("//"):
        return place
    authority, slash, path = place.removeprefix("//").partition("/")
    if scheme in ONE_TREE:
        return slash + path
    return f"{authority.partition('@')[0]}{slash}{path}"
