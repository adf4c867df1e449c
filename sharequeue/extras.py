"""Is what a part of the library needs beyond the library itself installed?"""

from __future__ import annotations

import importlib.util

__all__ = ["ExtraMissing", "require"]


class ExtraMissing(ImportError):
    """A part of the library needs packages that are not installed; the message names the extra that installs them."""


def require(extra: str, *modules: str) -> None:
    """Raise `ExtraMissing` where a module that comes with the extra is not installed."""
    missing = [module for module in modules if not _found(module)]
    if missing:
        raise ExtraMissing(
            f"sharequeue.{extra} needs more than the library: pip install 'sharequeue[{extra}]' "
            f"(not found: {', '.join(missing)})"
        )


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # somebody has put None into sys.modules
        return False
