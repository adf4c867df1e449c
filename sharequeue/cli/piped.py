"""What Dagster has launched by a Pipes client: it takes its order from the Pipes context, and answers.

Messages never fail a run. If they do not arrive, or nobody is there any more to read them, the run goes on, and says
so on stderr.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import click

from sharequeue.cli.failures import CommandRefused, code_of
from sharequeue.cli.objects import load_object
from sharequeue.domain.errors import first_line
from sharequeue.domain.final_errors import is_final
from sharequeue.domain.results.launches import EXTRA, Answer, FailedRun, Order, line_of, order_of

if TYPE_CHECKING:
    from dagster_pipes import PipesContext

NO_PIPES = "NO_PIPES"
_VARIABLE, _OPTION = "DAGSTER_PIPES_CONTEXT", "--dagster-pipes-context"
"""Where a client puts the address of the context."""
_NO_ORDER = "the Pipes context has no order for a run: only `run.launch` of a defs.yaml gives one"


class Piped:
    """The Pipes context of this process, and the order in it. Use it as a context manager: it closes the context."""

    def __init__(self, context: PipesContext, order: Order, *, shown: bool) -> None:
        self.order = order
        self.log = logging.Logger("sharequeue.run", logging.INFO)
        self._messages = _Messages(context, shown=shown)
        self.log.addHandler(self._messages)
        self._context = context

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        with self._messages.sending():
            self._context.close()

    @contextmanager
    def failures_reported(self) -> Iterator[None]:
        """Tell Dagster the error that the block raises; it is raised without the stack of Spark's JVM."""
        from sharequeue.spark.job_errors import for_user
        from sharequeue.spark.signals import Terminated

        try:
            yield
        except (KeyboardInterrupt, Terminated):
            self._messages.send(logging.INFO, "the driver was stopped")
            raise
        except (Exception, SystemExit) as error:
            shown, whole = for_user(error) if isinstance(error, Exception) else (error, "")
            code = error.code if isinstance(error, CommandRefused) else code_of(shown)
            final = isinstance(error, click.ClickException | SystemExit) or is_final(error)
            self._messages.answer(FailedRun(error=f"{code}: {shown}", final=final))
            # After the answer: Dagster's reader of a file stops at a line of which it sees only the beginning, as it
            # may of a long one.
            if whole:
                self._messages.send(logging.DEBUG, f"the whole error of Spark:\n{whole}")
            raise

    def answer(self, answer: Answer) -> None:
        """Send an answer."""
        self._messages.answer(answer)


class _Messages(logging.Handler):
    """Sends lines to Dagster, one at a time, and shows them on stderr."""

    def __init__(self, context: PipesContext, *, shown: bool) -> None:
        super().__init__()
        self._context, self._shown, self._lost = context, shown, False
        self._one = threading.RLock()

    def emit(self, record: logging.LogRecord) -> None:
        """Send and show a line."""
        text = record.getMessage()
        if self._shown:
            with suppress(OSError, ValueError):
                click.echo(text, err=True)
        self.send(record.levelno, text)

    def answer(self, answer: Answer | FailedRun) -> None:
        """Send an answer. Not as a detail: the instance may leave out those."""
        self.send(logging.ERROR, line_of(answer))

    def send(self, level: int, text: str) -> None:
        """Send a line."""
        with self.sending():
            self._context.log.log(level, "%s", text)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send in the block. If nobody can read it, the run goes on, and stderr says so once."""
        with self._one:
            try:
                yield
            except Exception as error:
                if not self._lost:
                    self._lost = True
                    with suppress(OSError, ValueError):
                        click.echo(
                            f"Dagster gets no messages of this run, which goes on ({first_line(error)})",
                            err=True,
                        )


def opened_pipes(opener: str | None, *, shown: bool) -> Piped | None:
    """Open the Pipes context if a client has started this process for a run; otherwise return None.

    `opener` is MODULE:FUNCTION of a function that opens it, for a client whose context or messages are not in files,
    streams or the environment. Raises CommandRefused if the context has no order.
    """
    if opener is None and _VARIABLE not in os.environ and _OPTION not in sys.argv:
        return None
    if importlib.util.find_spec("dagster_pipes") is None:
        raise CommandRefused(
            "a Pipes client has started this command, and the package dagster-pipes is not installed: "
            "pip install 'sharequeue[pipes]'",
            NO_PIPES,
        )
    from dagster_pipes import DagsterPipesError, PipesContext

    try:
        context = _default_context() if opener is None else load_object(opener)()
    except (DagsterPipesError, OSError) as error:
        raise CommandRefused(
            f"the Pipes context cannot be opened: {first_line(error)}. If the client keeps context or messages in a "
            "store, such as S3, name a function that opens it: --pipes MODULE:FUNCTION",
            NO_PIPES,
        ) from error
    if context is None:
        return None
    if not isinstance(context, PipesContext):
        raise CommandRefused(
            f"--pipes {opener} has returned no Pipes context: return that of `open_dagster_pipes`"
        )
    if EXTRA not in context.extras:
        raise CommandRefused(_NO_ORDER, NO_PIPES)
    try:
        return Piped(context, order_of(context.extras[EXTRA]), shown=shown)
    except ValueError as error:
        raise CommandRefused(error, NO_PIPES) from error


def _default_context() -> PipesContext | None:
    """Open the context that the environment or the command line names; None if it is another program's: a command
    that a client has started may start this one.
    """
    from dagster_pipes import (
        PipesCliArgsParamsLoader,
        PipesDefaultContextLoader,
        PipesEnvVarParamsLoader,
        open_dagster_pipes,
    )

    kind: Any = PipesCliArgsParamsLoader if _OPTION in sys.argv else PipesEnvVarParamsLoader
    loader = kind()
    with PipesDefaultContextLoader().load_context(loader.load_context_params()) as data:
        if EXTRA not in data["extras"]:
            return None
    return open_dagster_pipes(params_loader=loader)
