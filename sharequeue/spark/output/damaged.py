"""Name the leases whose files are gone or cannot be read.

The files were removed or changed from outside. Spark's own error names a path; the error here names the leases and
what to do. No record is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

import pyarrow as pa

from sharequeue.domain.errors import first_line
from sharequeue.outputs.errors import OutputDamaged, damaged, named_leases
from sharequeue.spark.handler import LEASE
from sharequeue.spark.output.folders import lease_in
from sharequeue.spark.output.reachable import whole_text
from sharequeue.spark.output.shared_folder import OutputNotShared

_DAMAGED = (
    "PATH_NOT_FOUND",
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE_FOOTER",
    "is not a Parquet file",
    "Could not read footer",
    "ChecksumException",
    "java.io.FileNotFoundException",
)
"""Parts of the errors of Spark and Parquet for a file that is missing or not a Parquet file."""
_NOT_DAMAGED = "PARQUET_COLUMN_DATA_TYPE_MISMATCH"
_LEASE_OF = re.compile(rf"/{LEASE}=-?(\d+)$")
MOST_SAID = 500
"""The most characters of Spark's own error in a message."""


@contextmanager
def reads_what_it_wrote(folders: Sequence[str], whose: str, *, alone: bool) -> Iterator[None]:
    """Raise OutputDamaged, naming `whose`, if files that a block has just written are missing or cannot be read back.
    If Spark also works on other machines (not `alone`), a file that one of them does not find means an output that is
    not shared.
    """
    try:
        yield
    except OutputNotShared as error:
        if not alone:
            raise
        raise _gone(folders, whose, error) from error
    except Exception as error:
        if not is_damage(error, folders):
            raise
        if not alone and "FAILED_READ_FILE.FILE_NOT_EXIST" in str(error):
            raise OutputNotShared(
                f"the driver has found files of {whose} that an executor does not find: nothing was acknowledged, "
                "and the records are delivered again. The output folder (SHAREQUEUE_OUTPUT) must be the same for "
                "the driver and every executor."
            ) from error
        raise _gone(folders, whose, error) from error


@contextmanager
def reads_what_counts(folders: Sequence[str]) -> Iterator[None]:
    """Raise OutputDamaged, with the leases, if files that count are missing or can no longer be read."""
    try:
        yield
    except Exception as error:
        if not is_damage(error, folders):
            raise
        text = whole_text(error)
        raise lost(
            [folder for folder in folders if _named(folder, text)], first_line(error)[:MOST_SAID]
        ) from error


def refuse_emptied(folders: Sequence[str], files: Sequence[str]) -> None:
    """Raise OutputDamaged for folders that count but contain none of these files, which are URIs."""
    there = {tuple(unquote(file).split("/")[-3:-1]) for file in files}
    if gone := [folder for folder in folders if tuple(folder.split("/")[-2:]) not in there]:
        raise lost(gone, "there is no file in it")


def lost(folders: Sequence[str], reason: str) -> OutputDamaged:
    """Return the error for folders that count, and of which files are missing."""
    return damaged(named_folders(folders), reason)


def is_damage(error: Exception, folders: Sequence[str]) -> bool:
    """Return whether an error comes from reading files of these folders, and of no others."""
    text = whole_text(error)
    if not any(_named(folder, text) for folder in folders):
        return False
    if isinstance(error, pa.ArrowInvalid | FileNotFoundError):
        return True
    return _NOT_DAMAGED not in text and any(word in text for word in _DAMAGED)


def _gone(folders: Sequence[str], whose: str, error: Exception) -> OutputDamaged:
    at = f" ({folders[0]}{' …' if len(folders) > 1 else ''})" if folders else ""
    return OutputDamaged(
        f"the files written for {whose}{at} are missing or cannot be read: somebody has removed or changed them. "
        "Nothing of this was acknowledged; the leases are given back, with their deliveries. Do not change the "
        "folders of running jobs, and start again: everything is written again. The error: "
        f"{first_line(error)[:MOST_SAID]}"
    )


def named_folders(folders: Sequence[str]) -> str:
    """Return a text such as: leases 3, 4 in /output/orders/… and 1 more; for one folder or several."""
    ids = {lease_in(int(found.group(1))) for folder in folders if (found := _LEASE_OF.search(folder))}
    named = f"{named_leases(ids)} in " if ids else ""
    more = f" and {len(folders) - 1:,} more" if len(folders) > 1 else ""
    return f"{named}{folders[0]}{more}"


def _named(folder: str, text: str) -> bool:
    """Return whether a text names a folder, or a file in it: a folder's name has a unique number."""
    written, _, name = folder.rpartition("/")
    return f"{written.rpartition('/')[2]}/{name}" in text
