"""What every test relies on: fixtures by subject in `fixtures/`, an environment of its own, and no skipped
tests.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import archive
from tests.spark_workers import SparkInHalf

# What may be given from outside: a shared set of jars, how to fetch them, how many random histories to run, and from
# which seed, which PgBouncer to try beside our own pooler, which Postgres to run on, how many writers to kill, and
# how many drivers that keep records, how much to put in order by key, and how long to attack.
KEPT = (
    *("SHAREQUEUE_JARS", "SHAREQUEUE_IVY_SETTINGS", "SHAREQUEUE_TEST_HISTORIES", "SHAREQUEUE_TEST_SEED"),
    *("SHAREQUEUE_TEST_PGBOUNCER", "SHAREQUEUE_TEST_KILLS", "SHAREQUEUE_TEST_SECONDS"),
    *("SHAREQUEUE_TEST_POSTGRES", "SHAREQUEUE_TEST_ORDER", "SHAREQUEUE_TEST_KEPT_KILLS"),
)

LONGEST_FIRST = (
    *("e2e", "conformance/test_two_engines.py", "integration/spark/test_cluster.py", "integration/local"),
    *(
        "docs",
        "integration/cli/test_cli.py",
        "integration/dagster",
        "integration/spark",
        "chaos",
        "conformance",
    ),
    *("integration/starter", "integration/service", "integration/state"),
)
"""Files, and folders of files, in the order of what a file of theirs takes; all others follow."""

pytest_plugins = [
    f"tests.fixtures.{path.stem}" for path in sorted((Path(__file__).parent / "fixtures").glob("[a-z]*.py"))
]
# Before any is imported: they import one another, and a module imported already is not rewritten any more.
pytest.register_assert_rewrite(*pytest_plugins)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the shell's own stack out: no test may reach a live demo or somebody's servers."""
    for name in [name for name in os.environ if name.startswith("SHAREQUEUE_") and name not in KEPT]:
        del os.environ[name]
    os.environ.pop("DAGSTER_HOME", None)
    # A shell's background job ignores Ctrl-C, and whatever it starts does. Tests send the signal themselves.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    archive.use(generated_code=config.getoption("--deep"))
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        archive.make(config.add_cleanup)
    # A run that decides about a merge draws the same examples as the one before, however long one takes on a busy
    # machine.
    settings.register_profile(
        "tests",
        deadline=None,
        derandomize=not config.getoption("--deep"),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have `--deep`, which `make test/deep` gives."""
    parser.addoption("--deep", action="store_true", help="run the deep tests, and no others")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the deep tests, or all others. Run what takes longest first, so that the workers end together;
    within a folder the order stays."""
    deep, left_out = config.getoption("--deep"), []
    for item in list(items):
        marked = item.get_closest_marker("deep") is not None
        if marked != deep and not item.path.name.startswith("deep_"):
            items.remove(item)
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    root = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        file = item.path.relative_to(root)
        found = [
            LONGEST_FIRST.index(name)
            for name in map(Path.as_posix, (file, *file.parents))
            if name in LONGEST_FIRST
        ]
        return min(found, default=len(LONGEST_FIRST))

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while there is hardly any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let a worker start no JVM before there are archives for it. What collecting has made stays to the end: to look
    for garbage in it again and again was a tenth of a worker's CPU time, so the rest is searched seldom, too."""
    gc.freeze()
    gc.set_threshold(7_000, 10, 10)
    if hasattr(session.config, "workerinput"):
        archive.wait()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have few sessions of Spark in a run of several workers."""
    return SparkInHalf(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run in which a test was skipped: what is not run is not known."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = len(reporter.stats.get("skipped", [])) if reporter is not None else 0
    if skipped and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why a run with skipped tests fails."""
    skipped = len(terminalreporter.stats.get("skipped", []))
    if skipped:
        terminalreporter.write_line(f"{skipped} tests were skipped: no test of this project may be", red=True)


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Give an environment without any `SHAREQUEUE_*` variable, and the means to set some."""
    for name in [name for name in os.environ if name.startswith("SHAREQUEUE_")]:
        monkeypatch.delenv(name)
    return monkeypatch
