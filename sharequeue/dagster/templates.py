"""The templates of a `defs.yaml`: a variable that does not exist is an error.

Dagster fills in nothing for it if the text has anything else, as `key: raw/{{ topc }}` has.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sharequeue.domain.names import nearest

__all__ = ["require_known_variables"]


def require_known_variables(path: str, value: Any, known: Collection[str]) -> None:
    """Raise ValueError for a template in a value, at any depth, that is not one, or has an unknown variable.

    `path` is the name of the field, for the message.
    """
    if isinstance(value, Mapping):
        for name, each in value.items():
            require_known_variables(f"{path}.{name}", each, known)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for number, each in enumerate(value):
            require_known_variables(f"{path}[{number}]", each, known)
    elif isinstance(value, str) and ("{{" in value or "{%" in value):
        _require_known(path, value, known)


def _require_known(path: str, text: str, known: Collection[str]) -> None:
    # What Dagster itself fills templates in with; it imports it late, too.
    from jinja2 import TemplateSyntaxError, meta
    from jinja2.nativetypes import NativeEnvironment

    environment = NativeEnvironment()
    try:
        found = meta.find_undeclared_variables(environment.parse(text))
    except TemplateSyntaxError as error:
        raise ValueError(f"{path} is {text!r}, which is not a template: {error.message}") from error
    if unknown := sorted(found - {*known, *environment.globals}):
        raise ValueError(
            f"{path} is {text!r}: there is no variable {unknown[0]!r}. {nearest(unknown[0], known, 'variables')}"
        )
