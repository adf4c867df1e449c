"""Prometheus's text format.

It is written without prometheus_client, which takes seconds for the series of 10,000 share-partitions: here the
labels of a row are formatted once for all its metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Family", "Series", "labelled", "written"]

Kind = Literal["gauge", "counter", "untyped"]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name in a scrape, its type, labels and meaning. Kafka's counters whose names do not end in
    `_total` are untyped."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


Series = tuple[str, float | None]
"""Labels as text, and the value; None if unknown: then there is no series."""


def labelled(names: Sequence[str], values: Sequence[str]) -> str:
    """Return labels as text, with quotes, backslashes and line ends escaped, so that a value cannot forge a line."""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def written(family: Family, series: Iterable[Series]) -> str:
    """Return a metric as text, with its meaning."""
    meaning = family.meaning.replace("\\", "\\\\").replace("\n", "\\n")
    lines = [f"# HELP {family.name} {meaning}", f"# TYPE {family.name} {family.kind}"]
    lines += [f"{family.name}{labels} {float(value)!r}" for labels, value in series if value is not None]
    return "\n".join(lines) + "\n"
