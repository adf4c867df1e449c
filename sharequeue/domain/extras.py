"""Check that the packages of an optional part of the library are installed."""

from __future__ import annotations

import importlib.util

__all__ = ["ExtraMissing", "require", "require_classic_spark"]


class ExtraMissing(ImportError):
    """An optional part of the library needs packages that are not installed; the message names the extra."""


def require(extra: str, *modules: str) -> None:
    """Raise `ExtraMissing` if a module of the extra is not installed."""
    missing = [module for module in modules if not _found(module)]
    if missing:
        raise ExtraMissing(
            f"sharequeue.{extra} needs additional packages: pip install 'sharequeue[{extra}]' "
            f"(not found: {', '.join(missing)})"
        )


def require_classic_spark() -> None:
    """Raise `ExtraMissing` if only the client of Spark Connect is installed."""
    if not _found("pyspark.core"):
        raise ExtraMissing(
            "only the client of Spark Connect is installed (pyspark-client, databricks-connect). It has no JVM, "
            "through which a lease reaches Spark's jobs, the files and Kafka's connector: run where the whole of "
            "Spark is (pip install 'sharequeue[spark]'). Nothing was leased."
        )


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # sys.modules has None for it
        return False
