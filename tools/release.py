"""Build a release, check it as its first user would, and tag it: `python -m tools.release`, for `make release`.

The version is that of `pyproject.toml`. The wheel is built from the sdist and installed into an empty environment,
with an empty home folder. There every block of the first tutorial must succeed, from `sharequeue up` on, and
`sharequeue down`. The notes are the version's section of CHANGELOG.md, and the message of the tag. The documentation
of the version is committed to the branch gh-pages, beside that of earlier ones. Nothing is uploaded: the last lines
printed are the commands that publish the release. With `--dry-run` nothing is tagged or committed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import sharequeue
from tools.fresh_home import fresh_home
from tools.pages import RUN, blocks

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TUTORIAL = "docs/tutorial/first-queue.md"
EXTRAS = "dagster,embedded,java"


class NotReleasable(Exception):
    """The release cannot be made; the message has what to do."""


def main(arguments: list[str]) -> int:
    """Make the release, or only check it; return the exit code."""
    dry_run = "--dry-run" in arguments
    try:
        version = version_of(ROOT)
        notes = notes_of((ROOT / "CHANGELOG.md").read_text(), version, dated=not dry_run)
        if not dry_run:
            require_clean(version)
        sdist, wheel = build(version)
        require_contents(wheel)
        try_out(wheel)
        build_site()
    except NotReleasable as error:
        print(f"NOT RELEASED: {error}", file=sys.stderr)
        return 1
    written = DIST / f"notes-{version}.md"
    written.write_text(notes)
    print(f"built and tried: {sdist.name}, {wheel.name}; notes in dist/{written.name}")
    if dry_run:
        print(f"dry run: v{version} was not tagged, and its documentation not committed")
        return 0
    commit_site(version)
    _git("tag", "--annotate", f"v{version}", "--file", str(written), "--cleanup=verbatim")
    print(f"tagged v{version}. To publish it:")
    print(f"  git push origin v{version} gh-pages")
    print(f"  twine upload dist/{sdist.name} dist/{wheel.name}")
    return 0


def version_of(root: Path) -> str:
    """Return the version of the project. Raises NotReleasable if the package has another one."""
    version = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    if sharequeue.__version__ != version:
        raise NotReleasable(
            f"pyproject.toml has version {version}, sharequeue/__init__.py {sharequeue.__version__}: make them equal."
        )
    return version


def notes_of(changelog: str, version: str, *, dated: bool) -> str:
    """Return the section of a version. With `dated` its heading must have the day of the release.

    Raises NotReleasable if there is no such section, or it is empty.
    """
    found = re.search(
        rf"^## {re.escape(version)} \((.*?)\)\n(.*?)(?=^## |\Z)", changelog, flags=re.DOTALL | re.MULTILINE
    )
    if found is None or not found[2].strip():
        raise NotReleasable(f"CHANGELOG.md needs a section `## {version} (DAY)` that lists the changes.")
    if dated and not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        raise NotReleasable(
            f"CHANGELOG.md has `## {version} ({found[1]})`: write the day, for example 2026-12-01."
        )
    return f"sharequeue {version}\n\n{found[2].strip()}\n"


def require_clean(version: str) -> None:
    """Raise NotReleasable if files are not committed, or the tag exists."""
    if changed := _git("status", "--porcelain"):
        raise NotReleasable(f"commit these files first, or remove them:\n{changed}")
    if _git("tag", "--list", f"v{version}"):
        raise NotReleasable(f"the tag v{version} exists: set the next version in pyproject.toml.")


def build(version: str) -> tuple[Path, Path]:
    """Build the sdist, and from it the wheel, into dist/; return both."""
    for old in DIST.glob("sharequeue-*"):
        old.unlink()
    hatch = [sys.executable, "-m", "hatchling", "build", "--directory", str(DIST), "--target"]
    _run("building the sdist", [*hatch, "sdist"], ROOT)
    sdist = DIST / f"sharequeue-{version}.tar.gz"
    with tempfile.TemporaryDirectory() as folder:
        _run("unpacking it", ["tar", "-xzf", str(sdist), "-C", folder], ROOT)
        _run("building the wheel from it", [*hatch, "wheel"], Path(folder) / f"sharequeue-{version}")
    (wheel,) = DIST.glob(f"sharequeue-{version}-*.whl")
    return sdist, wheel


def require_contents(wheel: Path) -> None:
    """Raise NotReleasable if the wheel lacks the schema or the licence, or has other packages."""
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    outside = sorted({name.split("/")[0] for name in names} - {"sharequeue"})
    if [name for name in outside if not name.endswith(".dist-info")]:
        raise NotReleasable(
            f"the wheel must have the package sharequeue alone, and has {', '.join(outside)}."
        )
    for wanted in ("sharequeue/_sql/migrations/0100_baseline.sql", "sharequeue/py.typed", "licenses/LICENSE"):
        if not any(name.endswith(wanted) for name in names):
            raise NotReleasable(f"the wheel lacks {wanted}: see [tool.hatch.build] in pyproject.toml.")


def try_out(wheel: Path) -> None:
    """Install the wheel into an empty environment, and do the first tutorial there. Raises NotReleasable."""
    with fresh_home(clone=False) as reader:
        home = reader.folder
        programs = home / "venv" / "bin"
        _run("making an empty environment", [sys.executable, "-m", "venv", str(home / "venv")], home)
        _run(
            f"installing {wheel.name}[{EXTRAS}] into it (some minutes)",
            [str(programs / "pip"), "install", "--quiet", f"{wheel}[{EXTRAS}]"],
            home,
            shown=True,
        )
        print("doing the first tutorial there", flush=True)
        try:
            reader.shell.run(f'export PATH="{programs}:$PATH"\nmkdir queue && cd queue\n')
            for block in blocks(TUTORIAL):
                if block.language in RUN:
                    reader.paste(block)
            reader.shell.run("sharequeue down\n")
        except AssertionError as error:
            raise NotReleasable(f"the tutorial fails with the wheel:\n{error}") from None


def build_site() -> None:
    """Build the documentation, as `make docs` does. Raises NotReleasable if a link leads nowhere."""
    _run("building the documentation", _docs("mkdocs", "build", "--quiet", "--strict"), ROOT)


def commit_site(version: str) -> None:
    """Commit the documentation of a version to the branch gh-pages, in a folder named after its first two numbers;
    `latest`, which readers without a version see, becomes this one. Raises NotReleasable.
    """
    series = ".".join(version.split(".")[:2])
    deploy = _docs("mike", "deploy", "--update-aliases", "--title", version, series, "latest")
    _run(f"committing the documentation of {series} to gh-pages", deploy, ROOT)
    _run("making it the one that is shown", _docs("mike", "set-default", "latest"), ROOT)


def _docs(program: str, *arguments: str) -> list[str]:
    folder = Path(sys.prefix) / "docs" / "bin"
    with_path = ["env", "NO_MKDOCS_2_WARNING=1", f"PATH={folder}:{os.environ['PATH']}", str(folder / program)]
    return [*with_path, *arguments, "--config-file", str(ROOT / "docs" / "site" / "mkdocs.yml")]


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _run(what: str, command: list[str], folder: Path, *, shown: bool = False) -> None:
    print(what, flush=True)
    output = None if shown else subprocess.PIPE
    ran = subprocess.run(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, text=True, check=False)
    if ran.returncode != 0:
        raise NotReleasable(
            f"{what} failed ({shutil.which(command[0]) or command[0]}):\n{ran.stdout or '(see above)'}"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
