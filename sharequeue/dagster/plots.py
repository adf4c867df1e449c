"""How does a report look as a picture in Dagster?

A PNG inside Markdown, as Dagster's UI shows it beside the table. Matplotlib is imported inside, and its
object interface is used: no global state, nothing to close, safe in any thread.
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from io import BytesIO
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Series = Mapping[str, Sequence[tuple[datetime, int]]]
"""Values over time by name; the times are UTC."""


def lines(series: Series, *, title: str, unit: str) -> dg.MarkdownMetadataValue:
    """One line per name over time, as steps: a value holds until the next report."""
    import numpy as np

    figure = _figure()
    axes = figure.subplots()
    for name, points in sorted(series.items()):
        at = np.array([moment.replace(tzinfo=None) for moment, _ in points], dtype="datetime64[us]")
        axes.step(at, [value for _, value in points], where="post", label=name, marker=".")
    axes.set_title(title)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    if series:
        axes.legend(fontsize="small")
    figure.autofmt_xdate()
    return _markdown(figure, title)


def bars(counts: Mapping[str, Mapping[int, int]], *, title: str, across: str) -> dg.MarkdownMetadataValue:
    """Stacked bars: ``counts[name][x]`` records, logarithmic, for one outcome dwarfs the others."""
    figure = _figure()
    axes = figure.subplots()
    positions = sorted({x for heights in counts.values() for x in heights})
    width = 0.8 / max(1, len(counts))
    for number, (name, heights) in enumerate(sorted(counts.items())):
        at = [x + (number - (len(counts) - 1) / 2) * width for x in positions]
        drawn = axes.bar(at, [heights.get(x, 0) for x in positions], width=width, label=name)
        axes.bar_label(
            drawn, labels=[f"{heights[x]:,}" if heights.get(x) else "" for x in positions], fontsize=7
        )
    axes.set_yscale("symlog", linthresh=1)
    axes.margins(y=0.1)
    axes.set_xticks(positions)
    axes.set_xlabel(across)
    axes.set_ylabel("records")
    axes.set_title(title)
    if counts:
        axes.legend(fontsize="small")
    return _markdown(figure, title)


def _figure() -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(8, 4), layout="constrained")


def _markdown(figure: "Figure", title: str) -> dg.MarkdownMetadataValue:
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=80)
    return dg.MetadataValue.md(
        f"![{title}](data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()})"
    )
