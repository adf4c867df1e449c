"""List the cases or run some of them: ``python -m benchmarks [P8 …|all] [--full] [records=1000 …]``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import benchmarks
from benchmarks.harness import CASES, Case, run


def chosen(names: list[str]) -> list[Case]:
    """Return the cases with these names, in the order of the modules."""
    if names == ["all"]:
        return list(CASES.values())
    known = {name for each in CASES.values() for name in each.names}
    unknown = set(names) - known
    if unknown:
        raise SystemExit(
            f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(sorted(known))}"
        )
    return [each for each in CASES.values() if set(each.names) & set(names)]


def main() -> None:
    """Run the command line; each of several cases runs in a separate process."""
    if sys.argv[1:2] == ["--part"]:
        module, _, function = sys.argv[2].partition(":")
        getattr(import_module(module), function)(*sys.argv[3:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", help="names of cases, or `all`; none: list them")
    parser.add_argument(
        "--full", action="store_true", help="the sizes of the goals; otherwise the short form"
    )
    given = parser.parse_args()
    names = [each for each in given.cases if "=" not in each]
    changes = [each for each in given.cases if "=" in each]
    for page in sorted(each.name for each in iter_modules(benchmarks.__path__) if each.name != "__main__"):
        import_module(f"benchmarks.{page}")
    cases = chosen(names)
    if not names:
        for case in CASES.values():
            print(f"{', '.join(case.names)}: {case.measure.__doc__}")
            print(f"    goal: {case.goal}\n    {case.parameters()}")
    elif len(cases) == 1:
        run(cases[0], full=given.full, changes=dict(each.split("=", 1) for each in changes))
    else:
        options = [*changes, *(["--full"] if given.full else [])]
        failed = [
            case.names[-1]
            for case in cases
            if subprocess.run(
                [sys.executable, "-m", "benchmarks", case.names[-1], *options], check=False
            ).returncode
        ]
        if failed:
            raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
