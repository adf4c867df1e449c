"""How many rooms the library has, on how many floors, with how many arrows between them: `python -m tools.rooms`.

A room is a module or package directly in a package, here `sharequeue`. An arrow leads from a room to one that it
imports, imports for type checking and inside functions too. The floors are those of the longest way down. Rooms that
import each other are a circle. `--folder` looks at another checkout, `--package` at a package inside.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

Arrows = Mapping[str, frozenset[str]]
"""The rooms that each room imports."""


def arrows(folder: Path, package: str) -> Arrows:
    """Return the arrows between the rooms of a package, whose top-level package lies in `folder`."""
    root = folder.joinpath(*package.split("."))
    rooms = {path.stem for path in root.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))} - {
        "__init__",
        "__pycache__",
    }
    found: dict[str, frozenset[str]] = {}
    for room in rooms:
        files = [root / f"{room}.py"] if (root / f"{room}.py").is_file() else (root / room).rglob("*.py")
        found[room] = frozenset(
            name.split(".")[len(package.split("."))] for file in files for name in _imports(file, package)
        ) & rooms - {room}
    return found


def circles(arrows: Arrows) -> list[frozenset[str]]:
    """Return the sets of rooms that reach each other."""

    @cache
    def below(room: str) -> frozenset[str]:
        seen: set[str] = set()
        ahead = list(arrows[room])
        while ahead:
            if (each := ahead.pop()) not in seen:
                seen.add(each)
                ahead += arrows[each]
        return frozenset(seen)

    together = {frozenset({room, *(each for each in below(room) if room in below(each))}) for room in arrows}
    return [each for each in together if len(each) > 1]


def floors(arrows: Arrows) -> dict[str, int]:
    """Return the floor of each room; rooms of one circle are on one floor."""
    circle = {room: each for each in circles(arrows) for room in each}

    @cache
    def floor(group: frozenset[str]) -> int:
        lower = {circle.get(each, frozenset({each})) for room in group for each in arrows[room]} - {group}
        return max((floor(each) for each in lower), default=0) + 1

    return {room: floor(circle.get(room, frozenset({room}))) for room in arrows}


def _imports(file: Path, package: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names |= {f"{node.module}.{each.name}" for each in node.names}
    return {name for name in names if name.startswith(f"{package}.")}


def main() -> None:
    """Print the figures, and each room with its floor and its arrows."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.rooms", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--package", default="sharequeue")
    given = parser.parse_args()
    drawn = arrows(given.folder, given.package)
    floor = floors(drawn)
    for room in sorted(drawn, key=lambda each: (-floor[each], each)):
        print(f"{floor[room]}  {room:22} {' '.join(sorted(drawn[room]))}")
    total = sum(len(each) for each in drawn.values())
    around = [" ".join(sorted(each)) for each in circles(drawn)]
    print(
        f"{len(drawn)} rooms, {max(floor.values())} floors, {total} arrows, {len(around)} circles",
        *around,
        sep="\n",
    )


if __name__ == "__main__":
    main()
