"""A mapping whose secret values are not printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["Hidden"]


class Hidden(Mapping[str, str]):
    """An immutable mapping that prints its names and hides its values."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: '***'" for name in self._values) + "}"
