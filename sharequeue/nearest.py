"""Which name did somebody mean? For the error that a misspelt name gets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Return the sentence that helps with a name that is not known: the names most like it, else how many there are.

    `what` is the plural of what the names are of, as in "share groups".
    """
    names = sorted(set(known))
    if not names:
        return f"There are no {what} yet."
    like = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if like:
        return f"Did you mean {' or '.join(like)}?"
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"The {what} are {shown}."
