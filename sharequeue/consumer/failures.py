"""Store the error of a failed record until its dead letter is written.

Errors are stored as by a batch run: in Parquet files of offset and error under the settings' ``output``. The
acknowledgement names their folder as an output of its lease. The writer of dead letters reads the files and puts
class and message into the letter's headers; if it cannot read them, the letter says so. The folder is
``<output>/share-consumer-exceptions/<state id>/<group>/<day>/<lease token>``: the state id shows that it is ours.
Days older than ``KEPT`` are removed when new errors are written.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from sharequeue.consumer.held_leases import HeldLease
from sharequeue.domain.errors import ShareError, first_line
from sharequeue.domain.names import folder_name
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import LeaseOutput
from sharequeue.outputs.stores import filesystem_of

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_log = logging.getLogger(__name__)

SINK = "share-consumer-exceptions"
"""Also in ``sql/functions/40_dead_letters/attempts.sql``, which forgets the output with the attempt."""
FOLDER = "share-consumer-exceptions"
KEPT = timedelta(days=30)
PATIENCE_S = 3.0
"""How long an acknowledgement waits for its errors to be written; a tenth of its lock if that is shorter."""
MOST_WAITING = 100_000
"""The number of errors that may wait in memory for a slow write. Further ones are not written."""


@dataclass(slots=True, eq=False)
class _ErrorFolder:
    """Errors by offset that are written to a folder."""

    location: str
    errors: Mapping[int, str]
    is_late: bool = False
    """Whether its acknowledgement no longer waits for it."""
    ended: bool = False
    problem: str | None = None
    """Why it could not be written."""


def error_text(error: BaseException | str) -> str:
    """Return an error in the form of a dead letter's headers: class and message."""
    text = printable(error)
    if isinstance(error, str):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def printable(error: BaseException | str) -> str:
    """Return an error's text without NUL and halves of characters, which libraries refuse. It may quote a record."""
    try:
        text = str(error)
    except Exception:
        return "its text cannot be made"
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


class Failures:
    """Writes errors in a thread of its own, because locks may lapse while an acknowledgement waits.

    What is not written in time is written later, in order, and its acknowledgement names the folder all the same. So
    a dead letter that is written before says that its error could not be read.
    """

    def __init__(self, settings: Settings, state_id: Callable[[], UUID]) -> None:
        self._settings = settings
        self._state_id = state_id
        self._changed = threading.Condition()
        self._waiting: deque[_ErrorFolder] = deque()
        self._is_writing = False
        """What is not written yet; the first one is being written."""
        self._cleared: date | None = None

    def output(self, holding: HeldLease, errors: Mapping[int, str]) -> LeaseOutput | None:
        """Write the errors of some records of a lease; return the output for its acknowledgement, if any.

        Raises an error of the database if the state's id is not known yet: then call it again.
        """
        if not errors:
            return None
        try:
            location = holding.errors_at[0] if holding.errors_at else self._folder(holding)
        except ShareError as error:
            _log.warning("dead letters will be written without the error: %s", first_line(error))
            return None
        problem = self._write(location, errors, min(PATIENCE_S, holding.lease.lock_duration_ms / 10_000))
        if problem is not None:
            _log.warning("errors of records may not be in their dead letters: %s", problem)
        if holding.errors_at:
            return None
        holding.errors_at.append(location)
        return LeaseOutput(SINK, location, len(errors))

    def finish(self, seconds: float) -> None:
        """Wait until everything is written, for this long at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, seconds)

    def _folder(self, holding: HeldLease) -> str:
        group = folder_name(holding.lease.share_partition.group_id)
        day = datetime.now(UTC).date()
        return f"{self._settings.output}/{FOLDER}/{self._state_id()}/{group}/{day}/{holding.lease.token}"

    def _write(self, location: str, errors: Mapping[int, str], patience: float) -> str | None:
        """Let the errors be written; return what went wrong, None if they are written.

        Behind a write that is late already, nothing is waited for: it has had its time.
        """
        write = _ErrorFolder(location, errors)
        with self._changed:
            if sum(len(each.errors) for each in self._waiting) >= MOST_WAITING:
                return f"{location} was not written, because too many errors wait for earlier ones"
            self._waiting.append(write)
            if not self._is_writing:
                self._is_writing = True
                threading.Thread(target=self._write_waiting, name="share-errors", daemon=True).start()
            elif self._waiting[0].is_late:
                return f"{location} is written later, because an earlier write has not ended"
            if self._changed.wait_for(lambda: write.ended, patience):
                return write.problem
            write.is_late = True
        return f"{location} was not written in {patience:.1f} s, and is written later"

    def _write_waiting(self) -> None:
        """Write what waits, in order, until nothing is left."""
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_writing = False
                    return
                write = self._waiting[0]
            path: tuple[FileSystem, str] | None = None
            try:
                path = filesystem_of(write.location)
                _write_table(*path, write.errors)
            except Exception as error:
                write.problem = first_line(error)
                if write.is_late:
                    _log.warning("errors of records are not in their dead letters: %s", write.problem)
            with self._changed:
                write.ended = True
                self._waiting.popleft()
                self._changed.notify_all()
            if path is not None and write.problem is None:
                self._clear(*path)

    def _clear(self, filesystem: FileSystem, path: str) -> None:
        """Remove folders that are too old, once a day."""
        today = datetime.now(UTC).date()
        if self._cleared == today:
            return
        self._cleared = today
        from pyarrow.fs import FileSelector

        try:
            for each in filesystem.get_file_info(FileSelector(path.rsplit("/", 2)[0])):
                if _is_day_before(each.base_name, today - KEPT):
                    filesystem.delete_dir(each.path)
        except OSError as error:
            _log.info("folders of errors older than %s could not be removed: %s", KEPT, first_line(error))


def _is_day_before(name: str, day: date) -> bool:
    try:
        return date.fromisoformat(name) < day
    except ValueError:
        return False


def _write_table(filesystem: FileSystem, path: str, errors: Mapping[int, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    filesystem.create_dir(path, recursive=True)
    columns = {
        "offset": pa.array(list(errors), pa.int64()),
        "error": pa.array(list(errors.values()), pa.string()),
    }
    pq.write_table(pa.table(columns), f"{path}/{uuid4().hex}.parquet", filesystem=filesystem)
