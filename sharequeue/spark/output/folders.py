"""The folders of a sink, and their names.

Tasks write directly to the final location. Each write has a folder with a unique name:
`<output>/<sink>/leases=<state's id>-<first>,<last>-<attempt>`. In it is a folder for each lease,
`sharequeue_lease=<id>`, and one for its released and rejected records, `sharequeue_lease=-<id>`. If the group keeps
the raw records that it releases, they are in a third one, whose number is the id added to a large one (`KeptAs`). The
partial sums of a summary are in such folders of `<output>/<sink>-<summary>`. The id of the state is in the name, so
that another database neither overwrites nor sweeps the folder. `owners.py` decides to which database and group a sink
belongs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID, uuid4

from sharequeue.domain.errors import InvalidRequest
from sharequeue.domain.names import is_folder_name
from sharequeue.domain.settings import Settings
from sharequeue.outputs.manifest import EXCEPTIONS
from sharequeue.spark.handler import LEASE
from sharequeue.spark.output.files import Files
from sharequeue.state import State

_WRITTEN = re.compile(r"leases=([0-9a-f-]{36})-(\d+)(?:,(\d+))?-[0-9a-f]{12}")


class KeptAs(IntEnum):
    """What is added to a lease's id in the name of its folder of raw records."""

    WITH_HEADERS = 10**18
    WITHOUT_HEADERS = 2 * 10**18
    """The job reads no headers: a job that does reads these records from the log."""


def lease_in(number: int) -> int:
    """Return the lease whose files are in the folder with this number."""
    return abs(number) % KeptAs.WITH_HEADERS


def is_kept(number: int) -> bool:
    """Return whether the folder with this number has raw records."""
    return number > KeptAs.WITH_HEADERS


def has_headers(location: str) -> bool:
    """Return whether the raw records in a folder have their headers."""
    number = int(location.rpartition("=")[2])
    return number < KeptAs.WITHOUT_HEADERS


@dataclass(frozen=True, slots=True)
class SinkNames:
    """The names under which a share group's output is stored: its sink, its exceptions and its summaries."""

    group: str
    sink: str
    summaries: tuple[str, ...] = ()

    @property
    def exceptions(self) -> str:
        """The sink of released and rejected records, with their errors."""
        return f"{self.sink}{EXCEPTIONS}"

    def summary(self, name: str) -> str:
        """Return the sink of a summary's partial sums."""
        return f"{self.sink}-{name}"

    @property
    def all(self) -> list[str]:
        """The sink, its exceptions and its summaries."""
        return [self.sink, self.exceptions, *map(self.summary, self.summaries)]


def sink_root(settings: Settings, sink: str) -> str:
    """Return the folder of a sink, or of its exceptions or summaries. Raises InvalidRequest for a name that is not
    one part of a path: in the state it may be any text.
    """
    if not is_folder_name(sink):
        raise InvalidRequest(f"{sink!r} cannot be the name of a sink: it becomes a folder's name")
    return f"{settings.output}/{sink}"


def new_folder(settings: Settings, state: State, sink: str, lease_ids: Sequence[int]) -> str:
    """Return a unique name for the folder of one write of these leases."""
    return f"{sink_root(settings, sink)}/{folder_name(state, lease_ids)}"


def folder_name(state: State, lease_ids: Sequence[int]) -> str:
    """Return a unique name, without its path, for the folder of one write of these leases."""
    # The first and the last lease are enough to check whether a run still works there; a name has at most 255 bytes.
    ends = sorted({min(lease_ids), max(lease_ids)})
    return f"leases={state.outputs.identity().state_id}-{','.join(map(str, ends))}-{uuid4().hex[:12]}"


def no_files(settings: Settings, state: State, sink: str, lease_id: int) -> str:
    """Return the location in the manifest of a lease without rows in a sink: no such folder exists."""
    return f"{sink_root(settings, sink)}/lease={state.outputs.identity().state_id}-{lease_id}"


def is_ours(name: str, state: State) -> set[int] | None:
    """Return the first and the last lease in the name of a folder written by this state's runs; None for others, also
    for one that another database has written since this state was adopted from there.
    """
    found = _WRITTEN.fullmatch(name)
    if found is None:
        return None
    ends = {int(lease_id) for lease_id in found.groups()[1:] if lease_id}
    return ends if state.outputs.identity().has(UUID(found[1]), max(ends)) else None


def remove_lease(files: Files, folder: str) -> None:
    """Remove the folder of a lease, and the folder of its write if it is then empty."""
    files.remove(folder)
    written, _, name = folder.rpartition("/")
    if name.startswith(f"{LEASE}="):
        files.remove_if_empty(written)
