"""The asset `accepted` where the driver runs elsewhere: a Pipes client of the code location starts it.

The driver is a member of the group, and what it has done is in the state. So a driver that is killed, whose answers
are lost, or that outlives this process, changes nothing about the records: this process only waits, shows what the
driver says, and gives back what a cancelled driver holds.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg

from sharequeue.dagster.assets.processing import Processing, RunMember, described, member_of, metadata_of
from sharequeue.dagster.launching import Launch, argument_problem, is_wrong_command
from sharequeue.dagster.names import CLIENT_ID_PREFIX
from sharequeue.dagster.yaml_values import duration
from sharequeue.domain.errors import first_line
from sharequeue.domain.names import plural
from sharequeue.reports.waiting_work import work_of

if TYPE_CHECKING:
    from sharequeue.spark.full_runs import FullRun
    from sharequeue.spark.launches import FailedRun

LOOK_S = 2.0
STOP_S = 30.0
"""How long a cancelled run waits for its driver to leave the group."""


def launched(run: Processing, launch: Launch) -> "dg.MaterializeResult[None]":
    """Have a Pipes client start the driver, wait for its end, and return the same as a run in this process.

    Raises dg.Failure for what the driver has failed with, or if it ended without an answer.
    """
    from sharequeue.spark.launches import EXTRA, LaunchedRun

    client, arguments = _client_of(run, launch), _copied(launch.arguments)
    run.group.configure(run.queue.database)
    with member_of(run) as member, _heard(run.context.log) as heard:
        order = LaunchedRun(
            pipeline=described(run.group),
            client_id=CLIENT_ID_PREFIX + run.context.run.run_id,
            member_id=member.member_id,
            keep_seconds=duration(run.group.automation.observe.keep).total_seconds(),
            deliveries_per_run=run.deliveries_per_run,
            bounds=dict(run.run_bounds),
        )
        extras = {EXTRA: order.extra()}
        try:
            return _result(
                run, member, heard, lambda: client.run(context=run.context, extras=extras, **arguments)
            )
        except dg.DagsterExecutionInterruptedError:
            _stop(run, member)
            raise


def _result(
    run: Processing, member: RunMember, heard: "_Heard", started: Callable[[], Any]
) -> "dg.MaterializeResult[None]":
    """Start the driver and wait for its end; return its result. Raises DagsterExecutionInterruptedError if somebody
    has cancelled the run meanwhile: some clients swallow the interruption, or fail because of it.
    """
    try:
        ended = started()
    except Exception as error:
        if _is_cancelled(run):
            raise dg.DagsterExecutionInterruptedError from None
        if heard.done is None:
            raise _failure(heard.failed, error, member) from error
        run.context.log.warning(f"the run has done its work, but then its command failed: {error}")
        return dg.MaterializeResult(metadata=metadata_of(heard.done, member))
    if _is_cancelled(run):
        raise dg.DagsterExecutionInterruptedError
    if heard.failed is not None:
        raise _failure(heard.failed, None, member)
    found = ended.get_results(implicit_materializations=False)
    reported = [each.metadata or {} for each in found if isinstance(each, dg.MaterializeResult)]
    figures = _of_the_state(run, member) if heard.done is None else metadata_of(heard.done, member)
    return dg.MaterializeResult(
        metadata={
            **ended.metadata,
            **{key: value for each in reported for key, value in each.items()},
            **figures,
        },
        check_results=[each for each in found if isinstance(each, dg.AssetCheckResult)],
    )


def _client_of(run: Processing, launch: Launch) -> dg.PipesClient:
    """Return the client of a launch. Raises dg.Failure if it is not a Pipes client, or takes other arguments."""
    client = getattr(run.context.resources, launch.client)
    if not isinstance(client, dg.PipesClient):
        raise dg.Failure(
            f"run.launch.client: the resource {launch.client!r} is of type {type(client).__name__}: expected a Pipes "
            "client, such as dg.PipesSubprocessClient",
            allow_retries=False,
        )
    if problem := argument_problem(client, launch.arguments):
        raise dg.Failure(f"run.launch.arguments: {problem}", allow_retries=False)
    return client


def _copied(given: Any) -> Any:
    """Return dictionaries and lists as new ones: some clients add to those that they get."""
    if isinstance(given, Mapping):
        return {name: _copied(value) for name, value in given.items()}
    if isinstance(given, list):
        return [_copied(value) for value in given]
    return given


class _Heard(logging.Filter):
    """Takes the answers of the driver out of the log of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.done: FullRun | None = None
        self.failed: FailedRun | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is for people."""
        from sharequeue.spark.full_runs import FullRun
        from sharequeue.spark.launches import answered

        answer = answered(record.getMessage())
        if answer is None:
            return True
        if isinstance(answer, FullRun):
            self.done = answer
        else:
            self.failed = answer
        return False


@contextmanager
def _heard(log: dg.DagsterLogManager) -> Iterator[_Heard]:
    """Yield the answers that come as lines of a log during the block."""
    heard = _Heard()
    log.addFilter(heard)
    try:
        yield heard
    finally:
        log.removeFilter(heard)


def _failure(failed: "FailedRun | None", error: Exception | None, member: RunMember) -> dg.Failure:
    """Return the failure of a run whose driver has failed with an error, or has ended without an answer."""
    if failed is not None:
        return dg.Failure(failed.error, allow_retries=not failed.final)
    why = f" ({type(error).__name__}: {first_line(error)})" if error is not None else ""
    leases = member.leases()
    wrong = not leases and error is not None and is_wrong_command(error)
    if wrong and isinstance(error, OSError | TypeError):
        return dg.Failure(
            f"the driver could not be started{why}: correct `run.launch.arguments`, or the client. `command` is a "
            "list: the program, and each of its arguments",
            allow_retries=False,
        )
    what = (
        f"it had leased {plural(len(leases), 'lease')}: what it has acknowledged stays done, and what it holds is "
        "delivered again when it gives it back, or when the locks have lapsed"
        if leases
        else "it has leased nothing. The command must start `sharequeue run`, with the environment of the client"
    )
    return dg.Failure(
        f"the driver ended without an answer{why}: {what}. What it printed is in the stdout and stderr of this "
        "step, or in the log of the platform on which the client has started it",
        allow_retries=not wrong,
    )


def _of_the_state(run: Processing, member: RunMember) -> dict[str, Any]:
    """Return the metadata of a run whose answer was lost, when its driver has left the group.

    Raises dg.Failure if it has leased nothing: then nobody knows whether there was a run.
    """
    while member.member_id in work_of(run.queue.database, run.group.group).at_work:
        # The client has started the driver and has not waited for its end.
        time.sleep(LOOK_S)
    leases = member.leases()
    if not leases:
        raise _failure(None, None, member)
    run.context.log.warning(
        "the driver has ended without an answer: of the figures of this run, only what the state has is shown. It "
        f"had {plural(len(leases), 'lease')}"
    )
    group, state = run.group.group, run.queue.state
    statuses = state.figures.describe(group)
    names = state.outputs.sinks(group)
    # Beside the accepted rows, there are those of failures and summaries, whose names begin with theirs.
    sinks = [name for name in names if not any(name.startswith(f"{other}-") for other in names)]
    rows = [row for sink in sinks for row in state.outputs.counted(group, sink)]
    return {
        "dagster/row_count": sum(row.records for row in rows),
        "member": member.member_id,
        "accepted_records": sum(row.records for row in rows if row.lease_id in leases),
        "lag_records": sum(max(0, status.lag - status.archiving) for status in statuses),
        "archiving_records": sum(status.archiving for status in statuses),
    }


def _is_cancelled(run: Processing) -> bool:
    """Return whether somebody cancels the run."""
    found = run.context.instance.get_run_by_id(run.context.run.run_id)
    return found is not None and found.status == dg.DagsterRunStatus.CANCELING


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
