"""Warn of environment variables with our prefix that nothing reads: a misspelt setting would be ignored silently.

Each variable is named once in a process.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Iterable, Mapping

__all__ = ["warn_of_unknown_configs", "warn_of_unknown_settings"]

PREFIX = "SHAREQUEUE_"
CONFIGS = ("GROUP_SHARE_", "ERRORS_DEADLETTERQUEUE_", "SHARE_COORDINATOR_", "JOURNAL_", "DELETED_TOPICS_")
"""How the names of the service's configs begin."""
_PASSED_ON = ("KAFKA_", "REGISTRY_")
"""Settings of other clients, which refuse those that they do not know."""
_NO_SETTINGS = re.compile(
    # The mark of a component of the embedded stack, what the tests read, and Kubernetes' variables of a Service.
    r"COMPONENT|TEST_.*|(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_.*)?)?)"
)

_log = logging.getLogger(__name__)
_warned: set[str] = set()


def warn_of_unknown_settings(known: Iterable[str]) -> None:
    """Log each variable that is neither one of the `known` settings nor for another reader."""
    elsewhere = (*CONFIGS, *_PASSED_ON)
    found = [name for name in _names(os.environ) if not name.startswith(elsewhere)]
    _warn([name for name in found if not _NO_SETTINGS.fullmatch(name)], _names(known))


def warn_of_unknown_configs(known: Iterable[str], environ: Mapping[str, str]) -> None:
    """Log each variable that looks like a config of the service and is not one of the `known` ones."""
    _warn([name for name in _names(environ) if name.startswith(CONFIGS)], _names(known))


def _names(variables: Iterable[str]) -> list[str]:
    """Return the names of our variables, without the prefix."""
    return [name.removeprefix(PREFIX) for name in variables if name.startswith(PREFIX)]


def _warn(found: list[str], known: list[str]) -> None:
    for name in sorted({*found} - {*known} - _warned):
        _warned.add(name)
        like = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"Did you mean {PREFIX}{like[0]}?" if like else "See the settings in the documentation."
        _log.warning("the variable %s%s is not a setting and is ignored. %s", PREFIX, name, hint)
