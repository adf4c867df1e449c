"""Is what a part of the library needs beyond the library itself installed?"""

from __future__ import annotations

import importlib.util

__all__ = ["require"]


def require(extra: str, *modules: str) -> None:
    """Raise ImportError, which says what to install, where a module that comes with the extra is missing."""
    missing = [module for module in modules if not _found(module)]
    if missing:
        raise ImportError(
            f"sharequeue.{extra} needs more than the library: pip install 'sharequeue[{extra}]' "
            f"(not found: {', '.join(missing)})"
        )


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # somebody has put None in its place
        return False
