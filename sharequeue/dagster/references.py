"""Objects named as text in a configuration, such as `my_package.my_module:orders`.

Such a text can be checked without an import: loading definitions must not load Spark. The object is
imported where it is used.

Dagster puts the working directory of a code location on Python's path only while it loads the definitions. A module
that is found then is still found when a run imports it, and Spark's workers get it too (`own_modules`).
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from sharequeue.domain.modules import INSTALLED_IN, no_module
from sharequeue.domain.names import nearest, shown

__all__ = ["NoSuchObject", "Reference", "own_modules", "packed"]

_found: dict[str, Path] = {}
"""Modules and packages that were found outside of the installed ones: their file or folder, by name."""


class NoSuchObject(ValueError):
    """A text does not name an object; the message has the reason, and what exists instead."""

    retriable = False


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute of a module that is not imported yet."""

    module: str
    attribute: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read `MODULE:ATTRIBUTE`. Raises NoSuchObject for another form."""
        module, _, attribute = text.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), attribute)):
            raise NoSuchObject(f"{shown(text)} is not of the form MODULE:NAME, such as my_module:orders")
        return cls(module, attribute)

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"

    def check(self) -> None:
        """Find the module's file, and the name in its source; nothing is executed.

        Raises NoSuchObject if either is missing, if the name is that of an imported module, or if the source is not
        Python. A module without source, or one that can create names while it runs (`import *`, `__getattr__`,
        `globals()`, `setattr`), is accepted.
        """
        source = self._source()
        if source is None or source.suffix != ".py":
            return
        try:
            tree = _parsed(source)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            raise NoSuchObject(
                f"module {self.module} is not valid Python: {getattr(error, 'msg', error)} "
                f"({source}{f', line {line}' if line else ''})"
            ) from error
        names, modules = _names(tree)
        if _is_dynamic(tree, names):
            return
        public = [name for name in names - modules if not name.startswith("_")]
        if self.attribute not in names:
            raise NoSuchObject(
                f"module {self.module} has no {self.attribute}. {nearest(self.attribute, public, 'names')}"
            )
        if self.attribute in modules:
            raise NoSuchObject(
                f"{self} is a module that {self.module} imports. {nearest(self.attribute, public, 'names')}"
            )

    def place(self) -> tuple[Path, int] | None:
        """Return the file and the line at which the object is defined; None if the source does not show it. Raises
        NoSuchObject if the module is missing.
        """
        source = self._source()
        if source is None or source.suffix != ".py":
            return None
        try:
            tree = _parsed(source)
        except (SyntaxError, ValueError):
            return None
        # A name that only a function binds is one of the module if it is `global`.
        lines = _lines(_run_at_import(tree), self.attribute) or _lines(ast.walk(tree), self.attribute)
        return (source.resolve(), min(lines)) if lines else None

    def load(self) -> Any:
        """Import the module and return the object. Raises NoSuchObject if either is missing."""
        found = _found.get(self.module.partition(".")[0])
        if found is not None and str(found.parent) not in sys.path:
            sys.path.append(str(found.parent))
        try:
            module = importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{self.module}.".startswith(f"{error.name}."):
                package = sys.modules.get(error.name.rpartition(".")[0])
                raise NoSuchObject(no_module(error.name, getattr(package, "__path__", ()))) from error
            raise NoSuchObject(f"module {self.module} cannot be imported: {error}") from error
        try:
            return getattr(module, self.attribute)
        except AttributeError as error:
            raise NoSuchObject(
                f"module {self.module} has no {self.attribute}. "
                f"{nearest(self.attribute, [name for name in vars(module) if name[0] != '_'], 'names')}"
            ) from error

    def _source(self) -> Path | None:
        """Return the file of the module. Its packages are not imported either: their `__init__` may need Spark."""
        path: list[str] | None = None
        parts = self.module.split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            loaded = sys.modules.get(name)
            spec = getattr(loaded, "__spec__", None) or PathFinder.find_spec(name, path)
            if spec is None and depth == 1:
                # Editable installs have their own finders.
                spec = importlib.util.find_spec(name)
            if spec is None:
                raise NoSuchObject(no_module(name, path or ()))
            path = list(spec.submodule_search_locations or [])
            if depth == 1 and (place := path[0] if path else spec.origin):
                _keep(name, Path(place).resolve())
        return Path(spec.origin) if spec is not None and spec.origin else None


def own_modules() -> Mapping[str, Path]:
    """Return the top-level modules that references name and that are not installed: their files or folders."""
    return dict(_found)


def packed(modules: Mapping[str, Path], folder: Path) -> list[Path]:
    """Return the files from which Spark's workers can import modules: a module is its own file; of a package, one zip
    file in `folder` has the Python files, and nothing else that may be in its folder.
    """
    files = [place for place in modules.values() if place.is_file()]
    packages = [place for place in modules.values() if place.is_dir()]
    if packages:
        target = folder / "packages.zip"
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for place in packages:
                sources = sorted(place.rglob("*.py"))
                # Python finds a package without an `__init__` in a zip file by the entry of its folder alone.
                folders = {each for file in sources for each in file.parents if each.is_relative_to(place)}
                for path in (*sorted(folders), *sources):
                    archive.write(path, path.relative_to(place.parent))
        files.append(target)
    return files


def _keep(name: str, place: Path) -> None:
    """Remember where a module was found, if no package installs it."""
    if not str(place).startswith(INSTALLED_IN):
        _found[name] = place


def _parsed(source: Path) -> ast.Module:
    """Parse a module's source. Python 3.11 may raise SystemError if garbage is collected during that, and
    a collected object parses too (cpython issue 106905); a second attempt succeeds.
    """
    try:
        return ast.parse(source.read_bytes(), str(source))
    except SystemError:
        return ast.parse(source.read_bytes(), str(source))


_DYNAMIC = frozenset({"globals", "locals", "vars", "exec", "setattr", "__dict__", "modules"})
"""What a module uses that creates its names while it runs; `modules` are those of `sys`."""


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the names of a module that its source binds, and those of them that can only be imported modules."""
    imported, others = set[str](), set[str]()
    for node in _run_at_import(tree):
        (imported if isinstance(node, ast.Import) else others).update(_bound(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            others.update(node.names)
    return imported | others, imported - others


def _is_dynamic(tree: ast.Module, names: set[str]) -> bool:
    """Return whether a module can have names that its source does not bind."""
    if names & {"*", "__getattr__"}:
        return True
    return any(
        (isinstance(node, ast.Name) and node.id in _DYNAMIC)
        or (isinstance(node, ast.Attribute) and node.attr in _DYNAMIC)
        for node in ast.walk(tree)
    )


def _run_at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the statements of a module, and their parts, that bind names of the module: not those inside of functions
    and classes, and not the variables of comprehensions.
    """
    left: list[ast.AST] = [*tree.body]
    while left:
        node = left.pop()
        yield node
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                left += [*node.decorator_list, node.args]
            case ast.Lambda():
                left.append(node.args)
            case ast.ClassDef():
                left += [*node.decorator_list, *node.bases, *node.keywords]
            case ast.comprehension():
                left += [node.iter, *node.ifs]
            case _:
                left += ast.iter_child_nodes(node)


def _lines(nodes: Iterable[ast.AST], name: str) -> list[int]:
    """Return the lines of the statements and expressions that bind a name."""
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.stmt | ast.expr | ast.pattern) and name in _bound(node)
    ]


def _bound(node: ast.AST) -> set[str]:
    """Return the names that a statement or a part of one binds; `*` for an import of all names."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=found) | ast.ImportFrom(names=found):
            return {(each.asname or each.name).partition(".")[0] for each in found}
        case ast.Name(id=name, ctx=ast.Store()):
            return {name}
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            return {name}
        case _:
            return set()
