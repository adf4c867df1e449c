"""Where Python looks for modules, and the message for one that it does not find."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from pkgutil import iter_modules

from sharequeue.domain.names import listed, nearest

INSTALLED_IN = tuple(
    f"{folder}/"
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    for folder in (Path(sysconfig.get_path(name)), Path(sysconfig.get_path(name)).resolve())
)
"""The folders of installed packages, with a slash at the end."""


def own_path() -> list[str]:
    """Return Python's path without the folders of installed packages."""
    folders = [str(Path(entry).absolute()) for entry in sys.path]
    return [folder for folder in folders if not f"{folder}/".startswith(INSTALLED_IN)]


def no_module(name: str, path: Sequence[str] = ()) -> str:
    """Return the message for a module that Python does not find: where it has looked, and what is there instead.
    `path` has the folders of its package.
    """
    package, _, last = name.rpartition(".")
    if package:
        there = [each.name for each in iter_modules(path)]
        hint = f". {nearest(last, there, 'modules')}" if there else ""
        return f"there is no module {name}: {package} has no module {last}{hint}"
    folders = [folder for folder in dict.fromkeys(own_path()) if Path(folder).is_dir()]
    looked = f"neither installed nor in {listed(folders)}" if folders else "not installed"
    here = Path.cwd()
    if str(here) in folders or PathFinder.find_spec(name, [str(here)]) is None:
        return f"there is no module {name}: it is {looked}"
    return (
        f"there is no module {name} on Python's path: it is {looked}. There is one in the working directory, {here}, "
        "which is not on the path of a program in another folder: set PYTHONPATH to it"
    )
