"""A driver elsewhere: a Pipes client of the code location starts it with an order, and its answers are waited for."""

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import dagster as dg

from sharequeue.dagster.launching import Launch, argument_problem, is_wrong_command
from sharequeue.domain.errors import first_line
from sharequeue.domain.results.launches import Answer, FailedRun, Order, answered, extra_of

__all__ = ["Driver", "Ended"]

Context = dg.AssetExecutionContext | dg.OpExecutionContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What has come from a driver until its client ended."""

    answers: Sequence[Answer]
    failed: FailedRun | None
    """What the driver has failed with."""
    error: Exception | None
    """What the client has raised."""
    cancelled: bool
    """Whether somebody has cancelled the run meanwhile: some clients swallow the interruption, or fail because of it.
    """
    metadata: Mapping[str, Any]
    """What the client has added, such as the address of a job, and what the user's own code has reported."""
    check_results: Sequence[dg.AssetCheckResult]

    def failure(self, consequence: str, *, begun: bool) -> dg.Failure:
        """Return the failure of a driver that has failed, or has ended without an answer: then with what follows.
        `begun` is whether it is known to have begun its work.
        """
        if self.failed is not None:
            return dg.Failure(self.failed.error, allow_retries=not self.failed.final)
        error = self.error
        why = f" ({type(error).__name__}: {first_line(error)})" if error is not None else ""
        wrong = not begun and error is not None and is_wrong_command(error)
        if wrong and isinstance(error, OSError | TypeError):
            return dg.Failure(
                f"the driver could not be started{why}: correct `run.launch.arguments`, or the client. `command` is "
                "a list: the program, and each of its arguments",
                allow_retries=False,
            )
        return dg.Failure(
            f"the driver ended without an answer{why}: {consequence}. What it printed is in the stdout and stderr of "
            "this step, or in the log of the platform on which the client has started it",
            allow_retries=not wrong,
        )

    def require(
        self, answers: int, log: dg.DagsterLogManager, consequence: str, *, begun: bool | None = None
    ) -> None:
        """Raise what has kept the driver from so many answers, if anything has: DagsterExecutionInterruptedError, or
        the failure. By default, a driver has begun if it has answered.
        """
        if self.cancelled:
            raise dg.DagsterExecutionInterruptedError
        if self.failed is not None or len(self.answers) < answers:
            begun = bool(self.answers) if begun is None else begun
            raise self.failure(consequence, begun=begun) from self.error
        if self.error is not None:
            log.warning(f"the driver has done its work, but then its command failed: {self.error}")


class Driver:
    """A driver that the client of a launch starts in the run of a context.

    Raises dg.Failure if there is no such client, or it takes other arguments.
    """

    def __init__(self, context: Context, launch: Launch) -> None:
        self._context = context
        self._client, self._arguments = _client_of(context, launch), _copied(launch.arguments)

    def do(self, order: Order) -> Ended:
        """Have the client start the driver with an order, and wait for its end."""
        context = self._context
        error: Exception | None = None
        found: Sequence[Any] = ()
        metadata: dict[str, Any] = {}
        cancelled = False
        with _heard(context.log) as heard:
            try:
                ended = self._client.run(context=context, extras=extra_of(order), **self._arguments)
                found = ended.get_results(implicit_materializations=False)
                metadata = dict(ended.metadata)
            except dg.DagsterExecutionInterruptedError:
                cancelled = True
            except Exception as raised:
                error = raised
        for each in found:
            if isinstance(each, dg.MaterializeResult):
                metadata |= each.metadata or {}
        return Ended(
            answers=heard.answers,
            failed=heard.failed,
            error=error,
            cancelled=cancelled or _is_cancelled(context),
            metadata=metadata,
            check_results=[each for each in found if isinstance(each, dg.AssetCheckResult)],
        )


def _client_of(context: Context, launch: Launch) -> dg.PipesClient:
    """Return the client of a launch. Raises dg.Failure if it is not a Pipes client, or takes other arguments."""
    client = getattr(context.resources, launch.client)
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
    """Return arguments as new ones: some clients add the order to the dictionaries, lists and objects that they get.
    An object that cannot be copied is passed as it is.
    """
    if isinstance(given, Mapping):
        return {name: _copied(value) for name, value in given.items()}
    if isinstance(given, list):
        return [_copied(value) for value in given]
    with suppress(Exception):
        return copy.deepcopy(given)
    return given


class _Heard(logging.Filter):
    """Takes the answers of the driver out of the log of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Answer] = []
        self.failed: FailedRun | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is for people."""
        answer = answered(record.getMessage())
        if answer is None:
            return True
        if isinstance(answer, FailedRun):
            self.failed = answer
        else:
            self.answers.append(answer)
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


def _is_cancelled(context: Context) -> bool:
    """Return whether somebody cancels the run."""
    found = context.instance.get_run_by_id(context.run.run_id)
    return found is not None and found.status == dg.DagsterRunStatus.CANCELING
