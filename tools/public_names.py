"""List every name that a user may rely on, as the code has it.

`python -m tools.reference` writes the list to `public_names.txt`, one name a line, under its kind.
`test_public_names.py` compares. So the diff of a change has the names that it adds and removes. `docs/reference/` has
their meanings.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from sharequeue.cli import command
from sharequeue.dagster.share_group import ShareGroup
from sharequeue.domain.errors import ERRORS_BY_CODE
from sharequeue.domain.settings import settings
from sharequeue.groups.configs.keys import GROUP_CONFIGS, SERVICE_CONFIGS
from sharequeue.service.endpoints import ENDPOINTS
from sharequeue.service.openapi import document
from tools import reference, reference_sql
from tools.pages import ROOT

FILE: Path = Path(__file__).with_suffix(".txt")
DOORS = ("sharequeue", "sharequeue.spark", "sharequeue.dagster", "sharequeue.testing")
"""The packages whose classes are for users: their members are public names, too."""


def _packages() -> Iterator[str]:
    for init in sorted((ROOT / "sharequeue").rglob("__init__.py")):
        if "__all__" in init.read_text():
            yield ".".join(init.parent.relative_to(ROOT).parts)


def _signature(of: Callable[..., Any]) -> str:
    """Return the names of the parameters that a caller gives."""
    found = inspect.signature(of).parameters.values()
    names = (str(each).partition(":")[0].partition("=")[0].strip() for each in found)
    return f"({', '.join(name for name in names if name != 'self')})"


def _members(of: type) -> Iterator[str]:
    """Yield the public attributes and methods that our own classes give to a class."""
    ours = [each for each in of.__mro__ if each.__module__.startswith("sharequeue")]
    names = {name for each in ours for name in (*vars(each), *inspect.get_annotations(each))}
    for name in names:
        if not name.startswith("_") and name != "model_config":
            member = inspect.getattr_static(of, name, None)
            called = isinstance(member, classmethod | staticmethod) or inspect.isfunction(member)
            yield f"{name}{_signature(getattr(of, name)) if called else ''}"


def python_names() -> Iterator[str]:
    """Yield what each package exports; of the packages for users, with members and parameters."""
    for package in _packages():
        module = import_module(package)
        for name in module.__all__:
            yield f"{package}.{name}"
            found = getattr(module, name)
            if package in DOORS and inspect.isclass(found):
                yield from (f"{package}.{name}.{member}" for member in _members(found))
            elif package in DOORS and inspect.isfunction(found):
                yield f"{package}.{name}{_signature(found)}"


def commands() -> Iterator[str]:
    """Yield each command with its arguments and options, and the columns of its output."""
    for name, each in reference.leaves(command):
        yield name
        for parameter in each.params:
            option = isinstance(parameter, click.Option)
            names = (*parameter.opts, *parameter.secondary_opts) if option else (str(parameter.name).upper(),)
            yield from (f"{name} {given}" for given in names)
        for option_name, columns in each.callback.columns.items():  # type: ignore[union-attr]
            shown = f" {option_name}" if option_name else ""
            yield from (f"{name}{shown} -> {column.name}" for column in columns)


def endpoints() -> Iterator[str]:
    """Yield the requests that the service serves."""
    return (f"{each.method} {each.template}" for each in ENDPOINTS)


def _properties(of: Any, inside: str) -> Iterator[str]:
    for name, each in of.get("properties", {}).items():
        yield f"{inside}.{name}"
        yield from _properties(each, f"{inside}.{name}")


def json_fields() -> Iterator[str]:
    """Yield the fields of requests and responses, from the service's OpenAPI document."""
    for name, schema in document(ENDPOINTS)["components"]["schemas"].items():
        yield from _properties(schema, name)


def defs_yaml() -> Iterator[str]:
    """Yield the attributes of the Dagster component."""
    return (name.strip("`") for name, *_ in reference.fields(ShareGroup))


def environment() -> Iterator[str]:
    """Yield the variables that settings are read from."""
    yield from (f"SHAREQUEUE_{field.upper()}" for field in settings.Environment.model_fields)
    yield from (settings.KAFKA_PREFIX + "<NAME>", settings.REGISTRY_PREFIX + "<NAME>")


def sql_functions() -> Iterator[str]:
    """Yield the functions that a role may call, with these roles."""
    return (f"{name} ({', '.join(roles)})" for name, roles in reference_sql.granted().items())


def sql_views() -> Iterator[str]:
    """Yield the views and their columns."""
    for name, columns in reference_sql.columns_of_views().items():
        yield from (name, *(f"{name}.{column}" for column in columns))


def _project() -> Mapping[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]


def _matches(pattern: str, *files: Path) -> Iterator[str]:
    return (found for file in files for found in re.findall(pattern, file.read_text(), re.MULTILINE))


def documentation() -> Iterator[str]:
    """Yield the pages of the documentation."""
    return (page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md"))


KINDS: Mapping[str, Callable[[], Iterable[str]]] = {
    "Python": python_names,
    "commands": commands,
    "HTTP": endpoints,
    "JSON over HTTP": json_fields,
    "group configs": lambda: GROUP_CONFIGS,
    "service configs": lambda: SERVICE_CONFIGS,
    "environment": environment,
    "defs.yaml": defs_yaml,
    "errors": lambda: (error.name for error in ERRORS_BY_CODE.values()),
    "metrics": lambda: (name for name, *_ in reference.metrics()),
    "alerts": lambda: _matches(r"- alert: (\w+)", *(ROOT / "docker").rglob("*.y*ml")),
    "SQL functions": sql_functions,
    "SQL views": sql_views,
    "extras": lambda: _project()["optional-dependencies"],
    "make": lambda: _matches(r"^([a-z/-]+):.*## ", ROOT / "Makefile"),
    "documentation": documentation,
}


def listed() -> str:
    """Return all names: kind by kind, sorted."""
    parts = (f"# {kind}\n" + "\n".join(sorted(set(names()))) + "\n" for kind, names in KINDS.items())
    return "\n".join(parts)
