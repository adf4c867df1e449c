"""Where is it kept why a record failed, until its dead letter is written?

As by a batch run: in Parquet files of offset and error under the settings' ``output``, which the acknowledgement
names as an output of its lease. The writer of dead letters reads them there and puts class and message into the
letter's headers; where it cannot read them, the letter goes without.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from uuid import uuid4

from sharequeue.consumer.holdings import Holding
from sharequeue.settings import Settings
from sharequeue.values import LeaseOutput

_log = logging.getLogger(__name__)

SINK = "share-consumer-exceptions"
FOLDER = "share-consumer-exceptions"


def error_text(error: BaseException | str) -> str:
    """An error as a dead letter's headers have it: class and message."""
    if isinstance(error, str):
        return error
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def errors_output(settings: Settings, holding: Holding, errors: Mapping[int, str]) -> LeaseOutput | None:
    """Write the errors of some records of a lease; return what its acknowledgement is to name, None when it has.

    Never fails: an acknowledgement must not wait for a folder that cannot be written.
    """
    if not errors:
        return None
    try:
        location = holding.errors_at[0] if holding.errors_at else _folder(settings, holding)
        _write(location, errors)
    except Exception as error:
        _log.warning("dead letters will go without the error: %s", error)
        return None
    if holding.errors_at:
        return None
    holding.errors_at.append(location)
    return LeaseOutput(SINK, location, len(errors))


def _folder(settings: Settings, holding: Holding) -> str:
    group = re.sub(r"[^A-Za-z0-9._-]", "_", holding.lease.share_partition.group_id)
    return f"{settings.output}/{FOLDER}/{group}/{holding.lease.token}"


def _write(location: str, errors: Mapping[int, str]) -> None:
    # Only here: importing it takes longer than all else that a consumer imports.
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import fs

    if "://" in location or location.startswith("file:"):
        filesystem, path = fs.FileSystem.from_uri(location.replace("s3a://", "s3://", 1))
    else:
        filesystem, path = fs.LocalFileSystem(), location
    filesystem.create_dir(path, recursive=True)
    columns = {
        "offset": pa.array(list(errors), pa.int64()),
        "error": pa.array(list(errors.values()), pa.string()),
    }
    pq.write_table(pa.table(columns), f"{path}/{uuid4().hex}.parquet", filesystem=filesystem)
