"""What can be imported while Spark starts?

Great Expectations alone takes three seconds, and a run that checks its dead letters needs it in the end. The process
waits for Spark's JVM in the beginning, so a thread imports it then. Nothing that is imported here is imported by
PySpark, so the two never wait for each other.
"""

import importlib
import logging
import threading
from collections.abc import Iterable

_log = logging.getLogger(__name__)

_PLOTS = ("matplotlib.figure", "matplotlib.backends.backend_agg")
IMPORTS = {
    "dead_letter_suite": ("great_expectations", "great_expectations.expectations"),
    "spso_and_lag": _PLOTS,
    "delivery_counts": _PLOTS,
}
"""By step, without its group's name."""


def import_ahead(steps: Iterable[str]) -> threading.Thread:
    """Import in a thread what these steps of a run will need; what cannot be imported is for the step to say."""
    modules = [module for step in steps for module in IMPORTS.get(step, ())]
    thread = threading.Thread(target=_import, args=(modules,), name="imports", daemon=True)
    thread.start()
    return thread


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            _log.debug("%s cannot be imported", name, exc_info=True)


__all__ = ["import_ahead"]
