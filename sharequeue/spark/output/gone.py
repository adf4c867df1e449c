"""Find out before anything is leased whether the outputs that count are still there."""

from __future__ import annotations

from sharequeue.settings import Settings
from sharequeue.spark.output.damaged import named_leases
from sharequeue.spark.output.files import Files
from sharequeue.spark.output.folders import SinkNames, sink_root
from sharequeue.spark.output.manifest import ELSEWHERE
from sharequeue.spark.output.reachable import OutputDamaged
from sharequeue.state import State


def refuse_gone(files: Files, settings: Settings, state: State, names: SinkNames) -> list[str]:
    """Raise OutputDamaged where the folder of the accepted rows is gone although outputs in it count; return what to
    say of outputs that are gone from folders that are there.

    The newest output of each sink is looked for: one question a sink. Outputs in another place than the settings name
    are not looked for.
    """
    gone = []
    for sink in names.all:
        root = sink_root(settings, sink)
        newest = state.outputs.newest(names.group, sink)
        if newest is None or newest.location.startswith(ELSEWHERE):
            continue
        if not newest.location.startswith(f"{root}/") or files.exists(newest.location):
            continue
        at = f"the output of {named_leases([newest.lease_id])} in {newest.location}"
        if sink == names.sink and not files.exists(root):
            raise OutputDamaged(
                f"the folder {root} is gone, and with it outputs that count, such as {at}. Nothing was leased. Put "
                "the folder back from a backup, or look whether SHAREQUEUE_OUTPUT names the right place. If it was "
                "deleted on purpose, give the pipeline a new sink (`sink=`). To go on in this one, make the folder "
                "again, empty: the rows before stay lost, and reading the sink raises OutputDamaged"
            )
        gone.append(
            f"{at} counts, and is gone: put it back from a backup, or make its rows again by a replay"
        )
    return gone
