"""The library without its extras: what needs one says which, and nothing else needs one."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.waiting import PATIENCE_S

EXTRAS = {
    "service": ("starlette", "uvicorn", "prometheus_client"),
    "spark": ("pyspark", "pandas"),
    "dagster": ("dagster", "great_expectations"),
}
WITHOUT = textwrap.dedent(
    """
    import importlib, pkgutil, sys
    sys.modules.update(dict.fromkeys(sys.argv[1].split()))  # None: an import fails as if it was not installed
    """
)


def run(program: str, *missing: str) -> subprocess.CompletedProcess[str]:
    """Run a program as if the packages given were not installed."""
    arguments = [sys.executable, "-c", WITHOUT + textwrap.dedent(program), " ".join(missing)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_the_library_and_its_command_need_no_extra() -> None:
    """Every module outside `spark`, `dagster` and `service` is imported, and the command shows its help."""
    ran = run(
        """
        import sharequeue
        for module in pkgutil.walk_packages(sharequeue.__path__, "sharequeue."):
            if module.name.split(".")[1] not in ("spark", "dagster", "service", "cli"):
                importlib.import_module(module.name)
        sys.argv = ["sharequeue", "--help"]
        from sharequeue.cli import main
        main()
        """,
        *(name for names in EXTRAS.values() for name in names),
    )
    assert ran.returncode == 0, ran.stderr
    assert "Commands:" in ran.stdout


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_needs_an_extra_names_it(extra: str) -> None:
    """The error of an import says what to install."""
    ran = run(f"import sharequeue.{extra}", *EXTRAS[extra])
    assert ran.returncode != 0
    assert f"sharequeue.{extra} needs additional packages: pip install 'sharequeue[{extra}]'" in ran.stderr


def test_the_client_of_spark_connect_is_not_enough() -> None:
    """It is named, with what it lacks, before anything is imported that it lacks."""
    ran = run(
        """
        sys.argv = ["sharequeue", "run", "queues.orders:orders"]
        from sharequeue.cli import main
        main()
        """,
        "pyspark.core",
    )
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran.stderr
    assert "only the client of Spark Connect is installed" in ran.stderr


def test_a_command_that_needs_an_extra_names_it_in_one_line() -> None:
    """`sharequeue serve` without the service's packages ends with exit code 1, and no traceback."""
    ran = run(
        """
        sys.argv = ["sharequeue", "serve"]
        from sharequeue.cli import main
        main()
        """,
        *EXTRAS["service"],
    )
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran.stderr
    assert "pip install 'sharequeue[service]'" in ran.stderr
