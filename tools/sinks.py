"""The sinks that `sharequeue.spark` exports: tests and generated tables take their list from here."""

from __future__ import annotations

import inspect
from typing import TypeGuard

from sharequeue import spark
from sharequeue.spark.sinks.interface import Sink


def registered() -> list[type[Sink]]:
    """Return the classes of all sinks, by name."""
    exported = (getattr(spark, name) for name in spark.__all__)
    return [each for each in exported if _is_sink(each)]


def _is_sink(value: object) -> TypeGuard[type[Sink]]:
    return inspect.isclass(value) and Sink in value.__mro__
