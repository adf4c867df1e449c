"""Decide to which database and group a sink belongs.

A sink belongs to the first group that has counted an output there, which the state knows, and to one database. The
database is known by marks in the sink's folder: each run announces a mark to its database, then sets it there as an
empty file, `_state/<origin id>_<mark>_<time>`, in place of those it has found. A mark of the same origin that the
database does not know was set by another one with the same state: a copy, or the original of this one. Then nothing
is written or removed, until one of the two is adopted (`sharequeue adopt`), which makes all earlier marks its own.
A file with a new name is there or not there on every file system; one that is replaced may be empty for a moment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self
from uuid import UUID

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from sharequeue.domain.errors import PipelineError
from sharequeue.domain.settings import Settings
from sharequeue.outputs.errors import OutputDamaged
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import SinkNames, sink_root
from sharequeue.state import State

_MARKS = "_state"
_MARK = re.compile(r"([0-9a-f-]{36})_([0-9a-f-]{36})_(\d{1,15})")
_TEXT = "A run of sharequeue has set this mark: the folder belongs to its state database. Do not remove it.\n"


class SinkTaken(PipelineError):
    """Another share group writes to this sink, or another state database; the message names it. Give each a separate
    sink.
    """


@dataclass(frozen=True, slots=True)
class _Mark:
    """A mark in the folder of a sink."""

    origin_id: UUID
    mark: UUID
    marked_at: datetime

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse the name of its file; return None for another file."""
        found = _MARK.fullmatch(name)
        if found is None:
            return None
        return cls(UUID(found[1]), UUID(found[2]), datetime.fromtimestamp(int(found[3]) / 1000, UTC))

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.origin_id}_{self.mark}_{self.marked_at.timestamp() * 1000:.0f}"


def claim(files: Files, settings: Settings, state: State, names: SinkNames) -> None:
    """Mark the sink as owned by this state database. Raise SinkTaken if another database or group owns it,
    OutputNotReachable if nothing can be written there.
    """
    found = _refuse_taken(files, settings, state, names)
    root = sink_root(settings, names.sink)
    new = _Mark(
        state.outputs.identity().origin_id,
        *state.outputs.mark(names.group, root, [each.mark for each in found]),
    )
    files.write_text(f"{root}/{_MARKS}/{new.name}", _TEXT)
    for each in found:
        files.remove(f"{root}/{_MARKS}/{each.name}")
    files.refuse_read_only(root)


def refuse_taken(files: Files, settings: Settings, state: State, names: SinkNames) -> None:
    """Raise SinkTaken for a sink with another owner, OutputDamaged if its marks cannot be read, and
    InconsistentClusterId if this database is a copy.
    """
    _refuse_taken(files, settings, state, names)


def refuse_other_database(files: Files, state: State, root: str) -> None:
    """Raise SinkTaken if the folder of a sink has marks of another database. The folder of its exceptions, or of a
    summary, has none: those of the sink apply, whose name is the first part of its own.
    """
    state.outputs.check_identity()
    above, _, sink = root.rpartition("/")
    parts = sink.split("-")
    for count in range(len(parts), 0, -1):
        if _checked(files, state, f"{above}/{'-'.join(parts[:count])}"):
            return


def _refuse_taken(files: Files, settings: Settings, state: State, names: SinkNames) -> list[_Mark]:
    state.outputs.check_identity()
    for folder, owner in state.outputs.owners([sink_root(settings, sink) for sink in names.all]).items():
        if owner != names.group:
            raise SinkTaken(
                f"{folder} has the output of group {owner!r}, not of {names.group!r}: nothing was changed there. "
                "Give each group's pipeline its own sink (`sink=`; by default the name of the function)."
            )
    return _checked(files, state, sink_root(settings, names.sink))


def _checked(files: Files, state: State, root: str) -> list[_Mark]:
    """Return the marks in a folder. Raise SinkTaken if one is of another database."""
    found, own = _marks(files, root), state.outputs.identity()
    for each in found:
        if each.origin_id != own.origin_id:
            raise SinkTaken(
                f"{root} has the output of another state database (its id is {each.origin_id}, this one's "
                f"{own.origin_id}): nothing was changed there. Set SHAREQUEUE_OUTPUT to another folder; or, if the "
                "other database no longer exists, move its output away."
            )
    later = [each for each in found if each.marked_at > own.bound_at]
    known = state.outputs.known_marks([each.mark for each in later]) if later else set()
    if other := [each for each in later if each.mark not in known]:
        raise SinkTaken(
            f"{root} was marked at {max(each.marked_at for each in other):%Y-%m-%d %H:%M:%S} UTC by a run that this "
            "database does not know: another database has the same state (a copy of this one, or the one that this "
            "one was copied or restored from), or the folder was restored from a backup. Nothing was changed. Only "
            "one database may go on. If it is this one, stop everything that uses the other one, then run "
            "`sharequeue adopt` with this one"
        )
    return found


def _marks(files: Files, root: str) -> list[_Mark]:
    folder = f"{root}/{_MARKS}"
    try:
        names = files.names(folder)
    except Py4JJavaError as error:
        raise _unreadable(folder, str(error.java_exception.toString())) from error
    found = [_Mark.parse(name) for name in names]
    if None in found:
        raise _unreadable(folder, f"{names[found.index(None)]} is not a mark")
    return [each for each in found if each is not None]


def _unreadable(folder: str, reason: str) -> OutputDamaged:
    return OutputDamaged(
        f"{folder} cannot be read: it names the owner of this output. Nothing was changed. If the folder belongs "
        f"to this state database, remove {folder}: the next run writes it again. The error: {reason}"
    )
