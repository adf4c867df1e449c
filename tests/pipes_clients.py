"""Pipes clients that run the command in the process of a test, with the session that is there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
from click.testing import CliRunner

# What the clients of logs read messages with: it has no public name.
from dagster._core.pipes.context import PipesMessageHandler
from dagster._core.pipes.utils import extract_message_or_forward_to_stdout
from dagster_pipes import DAGSTER_PIPES_MESSAGES_ENV_VAR, PipesContext, encode_param

from sharequeue.cli import command
from tests.waiting import PATIENCE_S, wait_until


class OfStream(dg.PipesMessageReader):
    """Reads the messages among what a command prints, as the clients of Kubernetes and of CloudWatch's logs do."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    @contextmanager
    def read_messages(self, handler: PipesMessageHandler) -> Iterator[dict[str, str]]:
        """Have the command print its messages."""
        self.handler = handler
        yield {"stdio": self.stream}

    def read(self, printed: str) -> None:
        """Read what was printed."""
        for line in printed.splitlines():
            extract_message_or_forward_to_stdout(self.handler, line)

    def no_messages_debug_text(self) -> str:
        """What is shown if there are none."""
        return self.stream


class Here(dg.PipesClient):
    """Runs the command in this process, with the session that is there."""

    def __init__(self, stream: str | None = None, *, lost: bool = False) -> None:
        self.lost = lost
        self.reader = None if stream is None else OfStream(stream)

    def run(
        self, *, context: Any, extras: Any = None, options: Sequence[str] = (), **kwargs: Any
    ) -> dg.PipesClientCompletedInvocation:
        """Run `sharequeue run`; with `lost`, its messages do not arrive."""
        reader = self.reader or dg.PipesTempFileMessageReader()
        with dg.open_pipes_session(context, dg.PipesTempFileContextInjector(), reader, extras) as session:
            environment = dict(session.get_bootstrap_env_vars())
            if self.lost:
                environment[DAGSTER_PIPES_MESSAGES_ENV_VAR] = encode_param({"path": os.devnull})
            PipesContext._instance = None
            done = CliRunner().invoke(command, ["run", *options], env=environment)
            PipesContext._instance = None
            if self.reader is None and not self.lost:
                # Dagster's reader of a file may leave out what is written just before the session ends. A process of
                # its own takes longer to end.
                wait_until(lambda: session.message_handler.received_closed_message, PATIENCE_S)
            if self.reader is not None:
                self.reader.read(done.stdout if self.reader.stream == "stdout" else done.stderr)
            if done.exit_code:
                raise RuntimeError(f"the command ended with {done.exit_code}")
        return dg.PipesClientCompletedInvocation(session, metadata={"place": "here"})
