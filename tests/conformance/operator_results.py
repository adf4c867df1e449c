"""What an operator's command prints in a recorded scenario.

The recorded steps ran `kafka-share-groups.sh`; here `sharequeue share-groups` runs with the same arguments, on the
replay's database and topics. Compared are the exit code, every line of stdout, and the first of stderr (of a usage
error the help that follows is the tool's own), columns by single spaces. The coordinator's address is not compared:
it is the service's here, if one is known.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sharequeue.cli.kafka import groups as tool
from tests.conformance.replay import Result
from tests.conformance.scenario import Step

if TYPE_CHECKING:
    from tests.conformance.service_replay import ServiceReplay


def command_line(replay: ServiceReplay, step: Step) -> Result:
    """One call of the command."""
    broker = {
        "exit": step.got["exit"],
        "stdout": [line.replace("HOST:PORT (1)", "-") for line in step.got["stdout"]],
        "stderr": step.got["stderr"][:1],
    }
    ours = _run(replay, step.do["args"])
    return Result(broker, ours, _why(broker, ours))


def _run(replay: ServiceReplay, recorded: list[str]) -> dict[str, Any]:
    args = [
        *recorded,
        "--home",
        "/nowhere",  # not that of a stack which the checkout may have
        "--bootstrap-server",
        "localhost:1",
        "--database-url",
        "postgresql://nobody@localhost:1/none",
    ]
    if "--to-datetime" in args:  # recorded as milliseconds from then
        at = args.index("--to-datetime") + 1
        moment = datetime.now(UTC) + timedelta(milliseconds=int(args[at]))
        args[at] = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SHAREQUEUE_")]:
            patch.delenv(name)
        database = SimpleNamespace(open=lambda settings: nullcontext(replay.engine.database))
        patch.setattr(tool, "Database", database)
        patch.setattr(tool, "Topics", lambda settings, timeout: replay.topics)
        result = CliRunner().invoke(tool.share_groups, args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    out, err = (
        [" ".join(line.split()) for line in text.splitlines() if line.strip()]
        for text in (result.stdout, result.stderr)
    )
    return {"exit": result.exit_code, "stdout": out, "stderr": err[:1]}


def _why(broker: dict[str, Any], ours: dict[str, Any]) -> frozenset[int] | None:
    """Line 2: nothing is written yet; line 8: a negative lag is hidden there, and 0 here."""
    if broker == ours:
        return frozenset()
    lines = set()
    for theirs, mine in zip(broker["stdout"], ours["stdout"], strict=False):
        there, here = theirs.split(), mine.split()
        if there[:3] == here[:3] and there[3:] == ["-", "-"]:
            lines.add(2)
        elif there[:-1] == here[:-1] and (there[-1], here[-1]) == ("-", "0"):
            lines.add(8)
        elif there != here:
            return None
    return frozenset(lines) or None
