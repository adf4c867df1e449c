"""What are the folders of a sink called, and whose are they?

Tasks write to the place where the files stay. Each write has a folder of its own, whose name no other write has:
`<output>/<sink>/leases=<state's id>-<first>,<last>-<attempt>`. In it is a folder for each lease,
`sharequeue_lease=<id>`, and one for its released and rejected records, `sharequeue_lease=-<id>`. The partial sums of
a summary are in such folders of `<output>/<sink>-<summary>`. The id of the state database is in the name, so that
another database neither overwrites nor sweeps the folder. Two small files in a sink's folder say which group, and
which state database, it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from sharequeue.settings import Settings
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.reachable import OutputDamaged
from sharequeue.state import State

LEASE = "sharequeue_lease"
"""The column by which Spark divides what it writes: the lease's id, negative for what was not accepted. Spark finds
one number faster among its open files than a text.
"""
_OWNER = "_group"
_STATE = "_state"


class SinkTaken(Exception):
    """Another share group writes to this sink, or another state database; the message says which. Give each a sink
    of its own.
    """


@dataclass(frozen=True, slots=True)
class SinkNames:
    """The names under which a share group's output is kept: its sink, and what belongs to it."""

    group: str
    sink: str
    summaries: tuple[str, ...] = ()

    @property
    def exceptions(self) -> str:
        """The sink of released and rejected records, with their errors."""
        return f"{self.sink}-exceptions"

    def summary(self, name: str) -> str:
        """Return the sink of a summary's partial sums."""
        return f"{self.sink}-{name}"

    @property
    def all(self) -> list[str]:
        """The sink, its exceptions and its summaries."""
        return [self.sink, self.exceptions, *map(self.summary, self.summaries)]


def sink_root(settings: Settings, sink: str) -> str:
    """Return the folder of a sink, or of its exceptions or summaries."""
    return f"{settings.output}/{sink}"


def new_folder(settings: Settings, state: State, sink: str, lease_ids: Sequence[int]) -> str:
    """Return a name for the folder of one write of these leases, which is nobody else's."""
    return f"{sink_root(settings, sink)}/{folder_name(state, lease_ids)}"


def folder_name(state: State, lease_ids: Sequence[int]) -> str:
    """Return how the folder of one write of these leases is called: otherwise than any other."""
    # The first and the last lease are enough to tell whether a run still works there; a name has 255 bytes.
    ends = sorted({min(lease_ids), max(lease_ids)})
    return f"leases={state.outputs.state_id()}-{','.join(map(str, ends))}-{uuid4().hex[:12]}"


def no_files(settings: Settings, state: State, sink: str, lease_id: int) -> str:
    """Return what the manifest calls the location of a lease that has no rows in a sink: there is no such folder."""
    return f"{sink_root(settings, sink)}/lease={state.outputs.state_id()}-{lease_id}"


def is_ours(name: str, state: State) -> set[int] | None:
    """Return the first and the last lease in the name of a folder that this state's runs wrote; None for another."""
    found = re.fullmatch(rf"leases={state.outputs.state_id()}-(\d+)(?:,(\d+))?-[0-9a-f]{{12}}", name)
    return {int(lease_id) for lease_id in found.groups() if lease_id} if found else None


def remove_lease(files: Files, folder: str) -> None:
    """Remove the folder of a lease, and the folder of its write if that was the last one in it."""
    files.remove(folder)
    written, _, name = folder.rpartition("/")
    if name.startswith(f"{LEASE}="):
        files.remove_if_empty(written)


def claim(files: Files, settings: Settings, state: State, names: SinkNames) -> None:
    """Mark the sink as this group's. Raise SinkTaken when it is another's: a sweep must know that each folder is its
    own; OutputNotReachable where nothing can be written there.
    """
    for marker, ours in refuse_taken(files, settings, state, names).items():
        files.write_text(marker, ours)
    files.refuse_read_only(sink_root(settings, names.sink))


def _marked(files: Files, marker: str) -> str | None:
    try:
        return files.read_text(marker)
    except Py4JJavaError as error:
        raise OutputDamaged(
            f"{marker} cannot be read: it says whose output this is. Nothing was changed. If the folder is this "
            "group's, and of this state database, remove the file: the next run writes it anew. The error: "
            f"{error.java_exception.toString()}"
        ) from error


def refuse_taken(files: Files, settings: Settings, state: State, names: SinkNames) -> dict[str, str]:
    """Raise SinkTaken for another's sink, OutputDamaged where that cannot be read. Return the marker files that are
    not there yet, with their content.
    """
    root, ours = sink_root(settings, names.sink), str(state.outputs.state_id())
    owner, theirs = (_marked(files, f"{root}/{marker}") for marker in (_OWNER, _STATE))
    if owner and owner != names.group:
        raise SinkTaken(
            f"{root} holds the output of group {owner!r}, not of {names.group!r}: nothing was changed there. Give "
            "each group's pipeline a sink of its own (`sink=`; without it, the function's name is taken)."
        )
    if theirs and theirs != ours:
        raise SinkTaken(
            f"{root} holds the output of another state database (its id is {theirs}, this one's {ours}): nothing was "
            "changed there. Set SHAREQUEUE_OUTPUT to a folder of this database's own; or, if that database is gone "
            "for good, move its output away."
        )
    absent = {}
    if not theirs:
        absent[f"{root}/{_STATE}"] = ours
    if not owner:
        absent[f"{root}/{_OWNER}"] = names.group
    return absent
