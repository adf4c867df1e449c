"""Run code blocks one after the other, as somebody does who types them: a shell, and a Python interpreter.

`python -m tools.typed` is the interpreter: it reads blocks as lines of JSON, and reports the end of each.
"""

from __future__ import annotations

import codeop
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
SECONDS = 280


class _Program:
    """A program that reads blocks from stdin, and reports the end of each on stdout."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._blocks, self._reports = self._process.stdin, self._process.stdout

    def end(self) -> None:
        """End the program."""
        with suppress(BrokenPipeError):  # it ended with a block that failed
            self._blocks.close()
        self._process.wait(SECONDS)
        self._reports.close()
        self._errors.close()

    def _complaints(self) -> str:
        self._errors.seek(0)
        return self._errors.read()


class Shell(_Program):
    """One bash for all blocks of a page: the folder and the variables of a block are those of the next."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(["bash", "-o", "pipefail"], folder, environment)

    def run(self, text: str) -> str:
        """Run the lines of a block; return what they print to stdout. Raises AssertionError if one fails."""
        # A reader has a terminal, is asked and agrees.
        text = re.sub(r"--execute\b(?! --yes)", "--execute --yes", text)
        end = f"end-{uuid.uuid4().hex}"
        # `eval`, so that the input of the commands is not the rest of the blocks.
        self._blocks.write(f"trap 'echo {end} $?; exit 1' ERR\n")
        self._blocks.write(f"eval \"$(cat <<'{end}'\n{text}{end}\n)\" </dev/null\necho {end} 0\n")
        self._blocks.flush()
        printed = []
        for line in self._reports:
            before, found, code = line.partition(end)
            printed.append(before if found else line)
            if found:
                if code.strip() == "0":
                    return "".join(printed)
                break
        raise AssertionError(f"{text}\n{''.join(printed)}\n{self._complaints()}")


class Interpreter(_Program):
    """One Python for all blocks of a page. With `prompt`, each block is typed line by line at Python's prompt."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        prompt: bool = False,
        program: Path = Path(sys.executable),
    ) -> None:
        super().__init__([str(program), str(Path(__file__).resolve())], folder, environment)
        self._prompt = prompt

    def run(self, text: str, name: str = "block") -> str:
        """Run a block; return what it prints to stdout. Raises AssertionError with its traceback if it fails."""
        self._blocks.write(json.dumps({"text": text, "name": name, "prompt": self._prompt}) + "\n")
        self._blocks.flush()
        line = self._reports.readline()
        assert line, f"{name}: the interpreter ended\n{self._complaints()}"
        done = json.loads(line)
        assert not done["error"], f"{name}\n{text}\n{done['error']}\n{self._complaints()}"
        return str(done["printed"])


def type_lines(text: str, name: str, names: dict[str, Any]) -> None:
    """Run the lines as Python's prompt does: an indented statement ends with an empty line, and only there."""
    compiler = codeop.CommandCompiler()
    waiting: list[str] = []
    for line in [*text.splitlines(), ""]:
        waiting.append(line)
        code = compiler("\n".join(waiting), name, "single")
        if code is not None:
            exec(code, names)  # noqa: S102 - our own page
            waiting = []
    if any(waiting):
        raise SyntaxError(f"the block does not end at the prompt: {waiting}")


def serve() -> None:
    """Run blocks from stdin until it ends. What they print goes into the reports."""
    reports = os.fdopen(os.dup(1), "w")
    printed = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - open until the process ends
    os.dup2(printed.fileno(), 1)
    sys.stdout = os.fdopen(1, "w")
    # A new `__main__`, whose modules are found from the working directory on, as at the prompt.
    sys.modules["__main__"] = ModuleType("__main__")
    names, sys.path[0] = sys.modules["__main__"].__dict__, ""
    for line in sys.stdin:
        block, error = json.loads(line), ""
        before = os.lseek(printed.fileno(), 0, os.SEEK_END)
        try:
            if block["prompt"]:
                type_lines(block["text"], block["name"], names)
            else:
                exec(compile(block["text"], block["name"], "exec", dont_inherit=True), names)  # noqa: S102
        except BaseException:
            error = traceback.format_exc()
        sys.stdout.flush()
        said = os.pread(printed.fileno(), 1 << 20, before).decode()
        reports.write(json.dumps({"error": error, "printed": said}) + "\n")
        reports.flush()


if __name__ == "__main__":
    serve()
