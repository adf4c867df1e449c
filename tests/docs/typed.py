"""Run code blocks one after the other, as somebody does who types them: a shell, and a Python interpreter.

`python -m tests.docs.typed` is the interpreter: it reads blocks as lines of JSON, and reports the end of each.
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
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 280


class Shell:
    """One bash for all blocks of a page: the folder and the variables of a block are those of the next."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        self._bash = subprocess.Popen(
            ["bash", "-o", "pipefail"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
        )

    def run(self, text: str) -> str:
        """Run the lines of a block; return what they print to stdout. Raises AssertionError if one fails."""
        # A reader has a terminal, is asked and agrees.
        text = re.sub(r"--execute\b(?! --yes)", "--execute --yes", text)
        end = f"end-{uuid.uuid4().hex}"
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        # `eval`, so that the input of the commands is not the rest of the blocks.
        self._bash.stdin.write(f"trap 'echo {end} $?; exit 1' ERR\n")
        self._bash.stdin.write(f"eval \"$(cat <<'{end}'\n{text}{end}\n)\" </dev/null\necho {end} 0\n")
        self._bash.stdin.flush()
        printed = []
        for line in self._bash.stdout:
            before, found, code = line.partition(end)
            printed.append(before if found else line)
            if found:
                if code.strip() == "0":
                    return "".join(printed)
                break
        self._output.seek(0)
        raise AssertionError(f"{text}\n{''.join(printed)}\n{self._output.read()}")

    def end(self) -> None:
        """End the shell."""
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.wait(SECONDS)
        if self._bash.stdout is not None:
            self._bash.stdout.close()
        self._output.close()


class Interpreter:
    """One Python for all blocks of a page. With `prompt`, each block is typed line by line at Python's prompt."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        prompt: bool = False,
        program: Path = Path(sys.executable),
    ) -> None:
        self._prompt = prompt
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        self._python = subprocess.Popen(
            [str(program), str(Path(__file__).resolve())],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def run(self, text: str, name: str = "block") -> str:
        """Run a block; return what it prints to stdout. Raises AssertionError with its traceback if it fails."""
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps({"text": text, "name": name, "prompt": self._prompt}) + "\n")
        self._python.stdin.flush()
        line = self._python.stdout.readline()
        self._errors.seek(0)
        assert line, f"{name}: the interpreter ended\n{self._errors.read()}"
        done = json.loads(line)
        assert not done["error"], f"{name}\n{text}\n{done['error']}\n{self._errors.read()}"
        return str(done["printed"])

    def end(self) -> None:
        """End the interpreter."""
        assert self._python.stdin is not None
        self._python.stdin.close()
        self._python.wait(SECONDS)
        if self._python.stdout is not None:
            self._python.stdout.close()
        self._errors.close()


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
