"""The folders of a sink: their names and their owners.

Tasks write directly to the final location. Each write has a folder with a unique name:
`<output>/<sink>/leases=<state's id>-<first>,<last>-<attempt>`. In it is a folder for each lease,
`sharequeue_lease=<id>`, and one for its released and rejected records, `sharequeue_lease=-<id>`. The partial sums of
a summary are in such folders of `<output>/<sink>-<summary>`. The id of the state database is in the name, so that
another database neither overwrites nor sweeps the folder. A small file in a sink's folder names the state database it
belongs to, and that database has the owning group: the first that has counted an output there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from sharequeue.spark.handler import LEASE, PipelineError
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.reachable import OutputDamaged
from sharequeue.state import State
from sharequeue.words.settings import Settings

_STATE = "_state"


class SinkTaken(PipelineError):
    """Another share group writes to this sink, or another state database; the message names it. Give each a separate
    sink.
    """


@dataclass(frozen=True, slots=True)
class SinkNames:
    """The names under which a share group's output is stored: its sink, its exceptions and its summaries."""

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
    """Return a unique name for the folder of one write of these leases."""
    return f"{sink_root(settings, sink)}/{folder_name(state, lease_ids)}"


def folder_name(state: State, lease_ids: Sequence[int]) -> str:
    """Return a unique name, without its path, for the folder of one write of these leases."""
    # The first and the last lease are enough to check whether a run still works there; a name has at most 255 bytes.
    ends = sorted({min(lease_ids), max(lease_ids)})
    return f"leases={state.outputs.state_id()}-{','.join(map(str, ends))}-{uuid4().hex[:12]}"


def no_files(settings: Settings, state: State, sink: str, lease_id: int) -> str:
    """Return the location in the manifest of a lease without rows in a sink: no such folder exists."""
    return f"{sink_root(settings, sink)}/lease={state.outputs.state_id()}-{lease_id}"


def is_ours(name: str, state: State) -> set[int] | None:
    """Return the first and the last lease in the name of a folder written by this state's runs; None for others."""
    found = re.fullmatch(rf"leases={state.outputs.state_id()}-(\d+)(?:,(\d+))?-[0-9a-f]{{12}}", name)
    return {int(lease_id) for lease_id in found.groups() if lease_id} if found else None


def remove_lease(files: Files, folder: str) -> None:
    """Remove the folder of a lease, and the folder of its write if it is then empty."""
    files.remove(folder)
    written, _, name = folder.rpartition("/")
    if name.startswith(f"{LEASE}="):
        files.remove_if_empty(written)


def claim(files: Files, settings: Settings, state: State, names: SinkNames) -> None:
    """Mark the sink as owned by this state database. Raise SinkTaken if another database or group owns it,
    OutputNotReachable if nothing can be written there.
    """
    if not refuse_taken(files, settings, state, names):
        files.write_text(f"{sink_root(settings, names.sink)}/{_STATE}", str(state.outputs.state_id()))
    files.refuse_read_only(sink_root(settings, names.sink))


def _marked(files: Files, marker: str) -> str | None:
    try:
        return files.read_text(marker)
    except Py4JJavaError as error:
        raise OutputDamaged(
            f"{marker} cannot be read: it names the owner of this output. Nothing was changed. If the folder belongs "
            "to this state database, remove the file: the next run writes it again. The error: "
            f"{error.java_exception.toString()}"
        ) from error


def refuse_taken(files: Files, settings: Settings, state: State, names: SinkNames) -> bool:
    """Raise SinkTaken for a sink with another owner, OutputDamaged if the mark cannot be read. Return whether it is
    marked as owned by this state database.
    """
    for folder, owner in state.outputs.owners([sink_root(settings, sink) for sink in names.all]).items():
        if owner != names.group:
            raise SinkTaken(
                f"{folder} has the output of group {owner!r}, not of {names.group!r}: nothing was changed there. "
                "Give each group's pipeline its own sink (`sink=`; by default the name of the function)."
            )
    root, ours = sink_root(settings, names.sink), str(state.outputs.state_id())
    theirs = _marked(files, f"{root}/{_STATE}")
    if theirs and theirs != ours:
        raise SinkTaken(
            f"{root} has the output of another state database (its id is {theirs}, this one's {ours}): nothing was "
            "changed there. Set SHAREQUEUE_OUTPUT to another folder; or, if the other database no longer exists, "
            "move its output away."
        )
    return bool(theirs)
