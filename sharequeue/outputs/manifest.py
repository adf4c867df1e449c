"""The manifest: the folders of a sink that count.

Readers use the manifest that Postgres keeps (`State.outputs`), never a listing of folders: a folder counts once the
acknowledgement of its lease has committed. A sink that is not a folder also has rows in the manifest; their location
begins with ELSEWHERE.
"""

from __future__ import annotations

from collections.abc import Collection

from sharequeue.domain.names import nearest
from sharequeue.outputs.errors import NoSuchSink, NotFiles
from sharequeue.state import State

EXCEPTIONS = "-exceptions"
"""The end of the name of a sink of failures."""
ELSEWHERE = "sink:"
"""The beginning of a location in the manifest that is not a folder."""
PENDING = f"{ELSEWHERE}pending:"
"""The beginning of a location whose rows are in the folder that follows, and are transferred from there to a table or
a topic. The state's functions use it, too.
"""


def read_manifest(state: State, group: str, sink: str) -> tuple[str, ...]:
    """Return the folders of a sink that count: the acknowledgements of their leases have committed.

    Raises NotFiles when the sink's rows are not in files.
    """
    return tuple(leases_by_folder(state, group, sink))


def newest_sink(state: State, group: str) -> str | None:
    """Return the sink of accepted rows of the newest lease that has some; None if the group has none.

    A lease also writes its failures and summaries, to sinks whose names begin with that of its accepted rows.
    """
    newest = [
        (row.lease_id, -len(sink), sink)
        for sink in state.outputs.sinks(group)
        if not sink.endswith(EXCEPTIONS) and (row := state.outputs.newest(group, sink)) is not None
    ]
    return max(newest)[2] if newest else None


def leases_by_folder(
    state: State, group: str, sink: str, *, known: Collection[str] | None = None
) -> dict[str, dict[int, int]]:
    """Return the same, with the leases of each folder and their records. With `known`, the sinks that exist without
    an output, it raises NoSuchSink for a sink that is not one of them and never had one.
    """
    folders: dict[str, dict[int, int]] = {}
    for row in state.outputs.counted(group, sink):
        if row.records:
            folders.setdefault(row.location, {})[row.lease_id] = row.records
    elsewhere = [folder for folder in folders if folder.startswith(ELSEWHERE)]
    if waiting := [folder for folder in elsewhere if folder.startswith(PENDING)]:
        raise NotFiles(
            f"the output of {sink} goes on from files to a table or a topic; the rows of {len(waiting)} folders wait "
            "for the next round or run"
        )
    if elsewhere:
        raise NotFiles(
            f"the output of {sink} is not in files: it was written to {elsewhere[0].removeprefix(ELSEWHERE)}"
        )
    if not folders and known is not None and sink not in known:
        there = state.outputs.sinks(group)
        if sink not in there:
            raise NoSuchSink(
                f"group {group} has no output of a sink {sink!r}. {nearest(sink, [*there, *known], 'sinks')}"
            )
    return folders
