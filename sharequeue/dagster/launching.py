"""Where the driver of a run is started: the field `run.launch` of a `defs.yaml`, and what can be wrong with it."""

import errno
import inspect
import re
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field, field_validator

__all__ = ["Launch", "argument_problem", "is_wrong_command"]

_GIVEN = ("context", "extras")
"""The arguments of a client's `run` that the run of Dagster gives itself."""
_WRONG_CODES = frozenset({2, 126, 127})
"""Exit codes: of a command with wrong options, and of a shell that cannot execute or find a command."""
_NOT_STARTED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC})
"""Why the system cannot start a program: no such file or folder, no permission, not a program."""


class Launch(dg.Model, dg.Resolvable):
    """The Pipes client that starts the drivers of `accepted`, summaries, replays and publications somewhere else.
    Without it, Dagster's process is the driver.
    """

    client: str = Field(description="The key of a Pipes client among the resources of the code location.")
    arguments: Mapping[str, Any] = Field(
        default={},
        description="The arguments of the client's `run`, such as `command` of a subprocess or of Kubernetes, "
        "`start_job_run_params` of EMR Serverless.",
    )

    @field_validator("client")
    @classmethod
    def _is_key(cls, client: str) -> str:
        if not client:
            raise ValueError("client must not be empty: expected the key of a resource")
        return client

    @field_validator("arguments")
    @classmethod
    def _are_of_the_client(cls, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in _GIVEN:
            if name in arguments:
                raise ValueError(f"arguments: the run gives {name!r} itself: leave it out")
        return arguments


def argument_problem(client: dg.PipesClient, arguments: Mapping[str, Any]) -> str:
    """Return what is wrong with arguments for a client's `run`; an empty text if nothing is."""
    taken = inspect.signature(client.run)
    known = [
        name
        for name, each in taken.parameters.items()
        if name not in _GIVEN and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    of_client = f"{type(client).__name__}.run takes {', '.join(known) or 'none'}"
    takes_any = any(each.kind is each.VAR_KEYWORD for each in taken.parameters.values())
    unknown = [] if takes_any else [name for name in arguments if name not in known]
    if unknown:
        return f"there is no argument {unknown[0]!r}: {of_client}"
    try:
        taken.bind(**dict.fromkeys(_GIVEN), **arguments)
    except TypeError as error:
        return f"{error}: {of_client}"
    return ""


def is_wrong_command(error: Exception) -> bool:
    """Return whether a client's error shows that its command is wrong: another attempt would fail in the same way."""
    if isinstance(error, OSError):
        return error.errno in _NOT_STARTED
    # An error of `PipesSubprocessClient`, which has no other sign of the exit code.
    code = re.fullmatch(r"External execution process failed with code (\d+)", str(error))
    return isinstance(error, TypeError) or (code is not None and int(code[1]) in _WRONG_CODES)
