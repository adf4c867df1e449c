"""The state, the schema and the Postgres sink on Postgres 15, 16 and 17. All other tests have 18, the embedded one.

The servers come from the central repository, once, beside the broker's jars. The tests are repeated with each, in a
process of their own.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from sharequeue.local import jars
from sharequeue.local.preflight import find_java
from tests.deep.repeated import passed
from tests.fixtures.stack import jars_folder, say

pytestmark = [pytest.mark.deep, pytest.mark.timeout(2400)]

SERIES = ("15", "16", "17")
LISTS = Path(__file__).parent / "postgres_lists"
TESTS = (
    "tests/integration/database",
    "tests/integration/state",
    "tests/integration/groups",
    "tests/integration/reports",
    "tests/integration/spark/test_run.py",
    "tests/integration/spark/test_postgres_sink.py",
    "tests/integration/spark/test_dead_letters.py",
)


def binaries(series: str) -> tuple[str, Path]:
    """Return the version of a server, and the folder with its programs."""
    archive = jars.JarSet(f"postgres-{series}", f"Postgres {series}", 10, LISTS)
    given = os.environ.get("SHAREQUEUE_IVY_SETTINGS")
    jars.ensure(jars_folder(), find_java(), Path(given) if given else None, say, archive)
    ((_, _, name, version),) = archive.modules
    folder = jars_folder().parent / "postgres" / version
    if not folder.exists():
        part = folder.with_suffix(".part")
        with ZipFile(jars_folder() / archive.name / f"{name}-{version}.jar") as jar:
            jar.extract("postgres-linux-x86_64.txz", part)
        with tarfile.open(part / "postgres-linux-x86_64.txz") as files:
            files.extractall(part, filter="data")
        part.rename(folder)
    return version, folder / "bin"


@pytest.mark.parametrize("series", SERIES)
def test_the_state_and_the_sink_work_on_this_postgres(series: str, told: list[str]) -> None:
    """What passes on the newest Postgres passes on this one."""
    version, programs = binaries(series)
    count = passed(TESTS, SHAREQUEUE_TEST_POSTGRES=str(programs))
    told.append(f"Postgres {version}: {count} tests passed")
