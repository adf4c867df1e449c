"""The asset `accepted` where the driver runs elsewhere: a Pipes client of the code location starts it.

The driver is a member of the group, and what it has done is in the state. So a driver that is killed, whose answers
are lost, or that outlives this process, changes nothing about the records: this process only waits, shows what the
driver says, and gives back what a cancelled driver holds.
"""

import time
from collections.abc import Sequence
from typing import Any

import dagster as dg

from sharequeue.dagster.assets.drivers import Driver, Ended
from sharequeue.dagster.assets.processing import Processing, RunMember, described, member_of, metadata_of
from sharequeue.dagster.launching import Launch
from sharequeue.dagster.names import CLIENT_ID_PREFIX
from sharequeue.dagster.yaml_values import duration
from sharequeue.domain.names import plural
from sharequeue.domain.results.launches import LaunchedRun
from sharequeue.domain.results.runs import FullRun
from sharequeue.outputs.manifest import newest_sink
from sharequeue.reports.waiting_work import work_of

LOOK_S = 2.0
STOP_S = 30.0
"""How long a cancelled run waits for its driver to leave the group."""


def launched(run: Processing, launch: Launch) -> "dg.MaterializeResult[None]":
    """Have a Pipes client start the driver, wait for its end, and return the same as a run in this process.

    Raises dg.Failure for what the driver has failed with, or if it ended without an answer.
    """
    driver = Driver(run.context, launch)
    run.group.configure(run.queue.database)
    with member_of(run) as member:
        order = LaunchedRun(
            pipeline=described(run.group),
            client_id=CLIENT_ID_PREFIX + run.context.run.run_id,
            member_id=member.member_id,
            keep_seconds=duration(run.group.automation.observe.keep).total_seconds(),
            deliveries_per_run=run.deliveries_per_run,
            bounds=dict(run.run_bounds),
        )
        try:
            return _result(run, member, driver.do(order))
        except dg.DagsterExecutionInterruptedError:
            _stop(run, member)
            raise


def _result(run: Processing, member: RunMember, ended: Ended) -> "dg.MaterializeResult[None]":
    """Return the result of a run whose driver has ended; if its answer was lost, with what the state has."""
    done = next((each for each in ended.answers if isinstance(each, FullRun)), None)
    # A client that returns has said that the run has ended well, whatever has arrived.
    lost = done is None and ended.failed is None and ended.error is None
    leases = member.leases()
    ended.require(0 if lost else 1, run.context.log, _consequence(leases), begun=bool(leases))
    figures = _of_the_state(run, member, ended) if done is None else metadata_of(done, member)
    return dg.MaterializeResult(metadata={**ended.metadata, **figures}, check_results=ended.check_results)


def _consequence(leases: Sequence[int]) -> str:
    """Return what follows if a driver with these leases has ended without an answer."""
    if not leases:
        return "it has leased nothing. The command must start `sharequeue run`, with the environment of the client"
    return (
        f"it had leased {plural(len(leases), 'lease')}: what it has acknowledged stays done, and what it holds is "
        "delivered again when it gives it back, or when the locks have lapsed"
    )


def _of_the_state(run: Processing, member: RunMember, ended: Ended) -> dict[str, Any]:
    """Return the metadata of a run whose answer was lost, when its driver has left the group.

    Raises dg.Failure if it has leased nothing: then nobody knows whether there was a run.
    """
    while member.member_id in work_of(run.queue.database, run.group.group).at_work:
        # The client has started the driver and has not waited for its end.
        time.sleep(LOOK_S)
    leases = member.leases()
    if not leases:
        raise ended.failure(_consequence(leases), begun=False)
    run.context.log.warning(
        "the driver has ended without an answer: of the figures of this run, only what the state has is shown. It "
        f"had {plural(len(leases), 'lease')}"
    )
    group, state = run.group.group, run.queue.state
    statuses = state.figures.describe(group)
    sink = newest_sink(state, group)
    rows = [] if sink is None else state.outputs.counted(group, sink)
    return {
        "dagster/row_count": sum(row.records for row in rows),
        "member": member.member_id,
        "accepted_records": sum(row.records for row in rows if row.lease_id in leases),
        "lag_records": sum(max(0, status.lag - status.archiving) for status in statuses),
        "archiving_records": sum(status.archiving for status in statuses),
    }


def _stop(run: Processing, member: RunMember) -> None:
    """Give back what the driver of a cancelled run holds, until it has left the group.

    A driver that still works stops when its locks are gone. A driver that the client has stopped has given all back.
    """
    ends_at = time.monotonic() + STOP_S
    while True:
        given = run.queue.state.release_member(run.group.group, member.member_id, cancelled=True)
        if given:
            run.context.log.info(f"{plural(given, 'record')} of the cancelled driver were given back")
        if member.member_id not in work_of(run.queue.database, run.group.group).at_work:
            return
        if time.monotonic() > ends_at:
            run.context.log.warning(
                f"member {member.member_id} is still in the group: its driver was killed, and its session expires, "
                "or it goes on. Its records were given back"
            )
            return
        time.sleep(LOOK_S)


__all__ = ["launched"]
