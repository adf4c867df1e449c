"""Draw pictures that fit into a line of metadata.

A picture is an SVG in a `data:` address in Markdown, of fewer than a thousand characters: Dagster's page of an asset
shows Markdown of that length in place, and hides longer text behind a button. A picture that would be longer is drawn
with less detail.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from urllib.parse import quote

from sharequeue.reports.drawing import STATE_COLOURS, number, strip_paths, window_text
from sharequeue.reports.read import OffsetWindow

MOST_CHARACTERS = 999
_WIDTH, _HEIGHT = 320, 60
"""As wide as the column of values on Dagster's page of an asset, in a window of 1,440 pixels."""
_LINE = 40
"""Characters in a line of words: longer lines are cut off beside the picture."""


def line(points: Sequence[tuple[datetime, float]], *, unit: str) -> str:
    """Return Markdown: one line over time, with its highest and its latest value in words."""
    if not points:
        return "no reports yet"
    highest, latest = max(value for _, value in points), points[-1][1]
    words = f"now {number(latest)}, highest {number(highest)} {unit}"
    begin, seconds = points[0][0], (points[-1][0] - points[0][0]).total_seconds() or 1

    def drawn(detail: int) -> str:
        chosen = _thinned(points, detail)
        at = [
            (
                round(_WIDTH * (moment - begin).total_seconds() / seconds),
                round(2 + (_HEIGHT - 4) * (1 - value / (highest or 1))),
            )
            for moment, value in chosen
        ]
        path = f"M{at[0][0]} {at[0][1]}" + "".join(f"H{x}V{y}" for x, y in at[1:]) + f"H{_WIDTH}"
        return f"<path d='{path}' fill='none' stroke='#0072B2' stroke-width='2'/>"

    return _fitting(drawn, words, min(60, len(points)))


def bars(counts: Mapping[int, int], *, unit: str) -> str:
    """Return Markdown: a bar for each delivery count, logarithmic, with the numbers in words."""
    if not counts:
        return "no record has ended yet"
    highest = max(counts.values())
    words = ", ".join(f"{number(counts[count])} at {count}" for count in sorted(counts)[:6])
    last = max(counts)

    def drawn(detail: int) -> str:
        # Counts beyond the detail are added to the last bar.
        heights: dict[int, int] = {}
        for count, records in counts.items():
            at = min(count, detail)
            heights[at] = heights.get(at, 0) + records
        wide = _WIDTH // (min(last, detail) + 1)
        path = ""
        for count in sorted(heights):
            tall = max(
                2,
                round(
                    (_HEIGHT - 2) * math.log1p(heights[count]) / math.log1p(max(highest, *heights.values()))
                ),
            )
            path += f"M{count * wide} {_HEIGHT}v-{tall}h{max(1, wide - 3)}v{tall}z"
        return f"<path d='{path}' fill='#0072B2'/>"

    return _fitting(drawn, f"{words} {unit}", min(30, last))


def columns(groups: Sequence[Mapping[str, int]], colours: Mapping[str, str], *, unit: str) -> str:
    """Return Markdown: a column for each group, its parts stacked in their colours; the sums in words."""
    if not groups:
        return "none"
    highest = max(sum(parts.values()) for parts in groups)
    sums = {name: sum(parts.get(name, 0) for parts in groups) for name in colours}

    def drawn(detail: int) -> str:
        wide, paths = _WIDTH // detail, dict.fromkeys(colours, "")
        for index, parts in enumerate(groups[-detail:]):
            bottom = _HEIGHT
            for name in colours:
                if count := parts.get(name, 0):
                    tall = max(2, round((_HEIGHT - 6) * count / highest))
                    paths[name] += f"M{index * wide} {bottom}v-{tall}h{max(1, wide - 2)}v{tall}z"
                    bottom -= tall
        return "".join(f"<path fill='{colours[name]}' d='{path}'/>" for name, path in paths.items() if path)

    words = ", ".join(f"{number(records)} {name}" for name, records in sums.items() if records)
    return _fitting(drawn, f"{words} {unit}", len(groups))


def strip(window: OffsetWindow | None) -> str:
    """Return Markdown: the in-flight window of a share-partition, with its numbers in words."""
    if window is None:
        return "nothing in flight"

    def drawn(detail: int) -> str:
        return "".join(
            f"<path fill='{STATE_COLOURS[state]}' d='{path}'/>"
            for state, path in strip_paths(window, detail, _WIDTH, 24).items()
        )

    return _fitting(drawn, f"{window.topic}-{window.partition}, {window_text(window)}", 90, height=24)


def _fitting(drawn: Callable[[int], str], words: str, detail: int, *, height: int = _HEIGHT) -> str:
    """Return the picture and the words, with as much detail as fits; only the words if no picture fits."""
    words = _plain(words)
    below = "  \n".join(textwrap.wrap(words, _LINE))
    while detail:
        svg = f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}'>{drawn(detail)}</svg>"
        text = f"![{words}](<data:image/svg+xml,{quote(svg, safe=_SAFE)}>)\n\n{below}"
        if len(text) <= MOST_CHARACTERS:
            return text
        detail = detail * 3 // 4
    return words[:MOST_CHARACTERS]


_SAFE = " '=/:,;.-"


def _plain(words: str) -> str:
    """Return the words without Markdown's special characters: topics may have any name."""
    return "".join(" " if each in "[]<>`*\\!#|\n" else each for each in words)[:200]


def _thinned(points: Sequence[tuple[datetime, float]], most: int) -> list[tuple[datetime, float]]:
    """Return about `most` points: the highest of each piece of the line, and always the last point."""
    if len(points) <= most:
        return list(points)
    size = len(points) / most
    pieces = [points[int(size * n) : int(size * (n + 1))] for n in range(most)]
    return [*(max(piece, key=lambda point: point[1]) for piece in pieces if piece), points[-1]]
