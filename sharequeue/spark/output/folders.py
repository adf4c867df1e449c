"""What are the folders of a sink called, and whose are they?

One folder by lease and sink, `<output>/<sink>/lease=<state's id>-<id>/part-*.parquet`. Released and rejected records
are in `<output>/<sink>-exceptions/lease=…/`, the partial sums of a summary in `<output>/<sink>-<summary>/lease=…/`.
The id of the state database is in the name, so that another database neither overwrites nor sweeps the folder. Two
small files in a sink's folder say which group, and which state database, it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

from sharequeue.settings import Settings
from sharequeue.spark.output.files import Files
from sharequeue.state import State

STAGING = "_staging"
"""The folder inside a sink where nothing counts yet."""
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


def lease_folder(settings: Settings, state: State, sink: str, lease_id: int) -> str:
    """Return the folder of one lease in a sink: what the manifest calls its location."""
    return f"{sink_root(settings, sink)}/lease={state.outputs.state_id()}-{lease_id}"


def claim(files: Files, settings: Settings, state: State, names: SinkNames) -> None:
    """Mark the sink as this group's. Raise SinkTaken when it is another's: a sweep must know that each folder is its
    own.
    """
    for marker, ours in refuse_taken(files, settings, state, names).items():
        files.write_text(marker, ours)


def refuse_taken(files: Files, settings: Settings, state: State, names: SinkNames) -> dict[str, str]:
    """Raise SinkTaken for another's sink. Return the marker files that are not there yet, with their content."""
    root, ours = sink_root(settings, names.sink), str(state.outputs.state_id())
    owner, theirs = files.read_text(f"{root}/{_OWNER}"), files.read_text(f"{root}/{_STATE}")
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
