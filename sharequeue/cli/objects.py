"""Objects that an argument names as MODULE:NAME: jobs, and functions."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from sharequeue.cli.failures import CommandRefused
from sharequeue.domain.modules import no_module
from sharequeue.domain.names import nearest

if TYPE_CHECKING:
    from sharequeue.spark import Pipeline

NO_SUCH_JOB = "NO_SUCH_JOB"


def load_job(named: str) -> Pipeline:
    """Import MODULE:JOB. Raises CommandRefused if the job does not exist, BadParameter for another form."""
    from sharequeue.spark import Pipeline

    module, attribute = _imported(named)
    found = getattr(module, attribute, None)
    if isinstance(found, Pipeline):
        return found
    jobs = [each for each, value in vars(module).items() if isinstance(value, Pipeline)]
    if found is None:
        raise CommandRefused(
            f"module {module.__name__} has no job {attribute}. {nearest(attribute, jobs, 'jobs')}",
            NO_SUCH_JOB,
        )
    raise CommandRefused(
        f"{named} is not a job, but of type {type(found).__name__}: make one with `@sharequeue.spark.pipeline(…)`. "
        f"{nearest(attribute, jobs, 'jobs')}",
        NO_SUCH_JOB,
    )


def load_object(named: str) -> Any:
    """Import MODULE:NAME. Raises CommandRefused if it does not exist, BadParameter for another form."""
    module, attribute = _imported(named)
    try:
        return getattr(module, attribute)
    except AttributeError:
        names = [name for name in vars(module) if not name.startswith("_")]
        raise CommandRefused(
            f"module {module.__name__} has no {attribute}. {nearest(attribute, names, 'names')}", NO_SUCH_JOB
        ) from None


def _imported(named: str) -> tuple[ModuleType, str]:
    """Import the module of MODULE:NAME, also from the working directory; return it, and the name."""
    name, _, attribute = named.partition(":")
    if not name or not attribute:
        raise click.BadParameter(
            f"{named!r} does not have the form MODULE:JOB, such as my_module:orders", param_hint="MODULE:JOB"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name), attribute
    except (ImportError, SyntaxError) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            package = sys.modules.get(str(error.name).rpartition(".")[0])
            reason = no_module(str(error.name), getattr(package, "__path__", ()))
        else:
            reason = f"module {name} cannot be imported: {type(error).__name__}: {error}"
        raise CommandRefused(reason, NO_SUCH_JOB) from error
