"""Draw figures as SVG, without a drawing library.

Each picture has a description in words (`aria-label`), for readers who cannot see it. The colours are those of Okabe
and Ito, which colour-blind people can distinguish. Text and lines have the colour of the page.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sharequeue.reports.html import Html, each, element, joined
from sharequeue.reports.read import STATES, OffsetWindow

STATE_COLOURS = {
    "available": "#56B4E9",
    "acquired": "#E69F00",
    "acknowledged": "#009E73",
    "archiving": "#D55E00",
    "archived": "#CC79A7",
}
OUTCOME_COLOURS = {"accepted": "#009E73", "rejected": "#D55E00", "exhausted": "#CC79A7", "gap": "#999999"}
CAUSE_COLOURS = {"rejected": "#D55E00", "exhausted": "#CC79A7", "dropped": "#999999"}

WIDTH, HEIGHT = 760, 200
_LEFT, _BOTTOM, _TOP = 64, 22, 30
STRIP_HEIGHT = 24
_LEAST_HEIGHT = 4
"""The least height of a state in a strip, so that one record among millions is visible."""


def lines(points: Sequence[tuple[datetime, float]], *, title: str, unit: str) -> Html:
    """Draw one line over time, as steps: a value holds until the next report."""
    (first, _), (last, latest) = points[0], points[-1]
    highest = max(value for _, value in points)
    seconds = (last - first).total_seconds() or 1
    wide, high = WIDTH - _LEFT - 8, HEIGHT - _BOTTOM - _TOP

    def at(moment: datetime, value: float) -> tuple[str, str]:
        x = _LEFT + wide * (moment - first).total_seconds() / seconds
        return f"{x:.1f}", f"{_TOP + high * (1 - value / (highest or 1)):.1f}"

    x, y = at(*points[0])
    path = f"M{x} {y}" + "".join(f"H{x}V{y}" for x, y in (at(*point) for point in points[1:]))
    words = (
        f"{title}: {number(latest)} {unit} at {moment(last)}, at most {number(highest)} since {moment(first)}"
    )
    return _svg(
        words,
        HEIGHT,
        _axes(highest, unit),
        element("path", d=f"{path}H{WIDTH - 8}", fill="none", stroke="#0072B2", stroke_width=2),
        element("text", moment(first), x=_LEFT, y=HEIGHT - 6),
        element("text", moment(last), x=WIDTH - 8, y=HEIGHT - 6, text_anchor="end"),
    )


def bars(
    groups: Sequence[tuple[str, Mapping[str, int]]],
    colours: Mapping[str, str],
    *,
    title: str,
    logarithmic: bool = False,
) -> Html:
    """Draw bars side by side, a group for each label; logarithmic if one is much larger than the others."""
    names = [name for name in colours if any(values.get(name) for _, values in groups)]
    highest = max((value for _, values in groups for value in values.values()), default=0)
    wide, high = (WIDTH - _LEFT - 8) / max(1, len(groups)), HEIGHT - _BOTTOM - _TOP
    width = min(60.0, wide * 0.8 / max(1, len(names)))
    parts = [_axes(highest, "records", logarithmic=logarithmic)]
    every = math.ceil(len(groups) / 16)
    for index, (label, values) in enumerate(groups):
        middle = _LEFT + wide * (index + 0.5)
        if index % every == 0:
            parts.append(element("text", label, x=f"{middle:.1f}", y=HEIGHT - 6, text_anchor="middle"))
        for place, name in enumerate(names):
            if not (value := values.get(name, 0)):
                continue
            tall = max(2.0, high * _share(value, highest, logarithmic))
            x, y = middle + (place - len(names) / 2) * width, _TOP + high - tall
            parts.append(
                element(
                    "rect",
                    x=f"{x:.1f}",
                    y=f"{y:.1f}",
                    width=f"{width * 0.92:.1f}",
                    height=f"{tall:.1f}",
                    fill=colours[name],
                )
            )
            if width >= 24:
                middle_of_bar = f"{x + width * 0.46:.1f}"
                parts.append(
                    element("text", number(value), x=middle_of_bar, y=f"{y - 3:.1f}", text_anchor="middle")
                )
    words = "; ".join(
        f"{label}: " + ", ".join(f"{number(values[name])} {name}" for name in names if values.get(name))
        for label, values in groups
    )
    return joined(_svg(f"{title}: {words}", HEIGHT, *parts), legend({name: colours[name] for name in names}))


def strip(window: OffsetWindow, cells: int = 190) -> Html:
    """Draw the in-flight window of a share-partition by offset. A cell of many offsets is divided."""
    return _svg(
        f"{window.topic}-{window.partition}, {window_text(window)}",
        STRIP_HEIGHT,
        *(
            element("path", fill=STATE_COLOURS[state], d=path)
            for state, path in strip_paths(window, cells, WIDTH, STRIP_HEIGHT).items()
        ),
        # If it is shown narrower, it keeps its height.
        preserveAspectRatio="none",
    )


def window_text(window: OffsetWindow) -> str:
    """Describe the window in words: its bounds, and how many offsets are in which state."""
    counts = ", ".join(
        f"{number(window.states[state].count)} {state}" for state in STATES if state in window.states
    )
    return f"offsets {window.spso:,} up to {window.speo:,}: {counts or 'nothing in flight'}"


def strip_paths(window: OffsetWindow, cells: int, width: int, height: int) -> dict[str, str]:
    """Return the strip as one path for each state in it."""
    paths: dict[str, str] = {}
    parts = divided(window, cells)
    runs: list[tuple[int, int, list[tuple[str, int]]]] = []
    for index, counts in enumerate(parts):
        heights = _heights(counts, height)
        if runs and runs[-1][2] == heights:
            runs[-1] = (runs[-1][0], index + 1, heights)
        else:
            runs.append((index, index + 1, heights))
    for begin, end, heights in runs:
        x, right, y = width * begin // len(parts), width * end // len(parts), 0
        for state, tall in heights:
            paths[state] = paths.get(state, "") + f"M{x} {y}h{right - x}v{tall}h{x - right}z"
            y += tall
    return paths


def divided(window: OffsetWindow, cells: int) -> list[dict[str, int]]:
    """Divide the window into at most `cells` cells of nearly equal length; return their offset counts by state."""
    span = window.speo - window.spso
    cells = min(cells, span)
    bounds = [window.spso + span * index // cells for index in range(cells + 1)] if cells else []
    found: list[dict[str, int]] = [{} for _ in range(cells)]
    for state in STATES:
        for first, end in window.states[state].ranges if state in window.states else ():
            cell = bisect_right(bounds, first) - 1
            while first < end:
                inside = min(end, bounds[cell + 1]) - first
                found[cell][state] = found[cell].get(state, 0) + inside
                first, cell = first + inside, cell + 1
    return found


def legend(colours: Mapping[str, str]) -> Html:
    """Explain each colour with the words beside it."""
    entries = each(
        element(
            "li",
            element(
                "svg",
                element("rect", width=12, height=12, fill=colour),
                width=12,
                height=12,
                aria_hidden="true",
            ),
            " ",
            name,
        )
        for name, colour in colours.items()
    )
    return element("ul", entries, class_="legend")


def number(value: float) -> str:
    """Return a number for readers: without decimals from ten on."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 10 else f"{value:,.2f}"


def moment(at: datetime) -> str:
    """Return a time in UTC, to the minute."""
    return at.astimezone(UTC).strftime("%m-%d %H:%M")


def _heights(counts: Mapping[str, int], height: int) -> list[tuple[str, int]]:
    """Return the height of each state in a cell. Rare states have a least height, the largest state has the rest."""
    total = sum(counts.values())
    if not total:
        return []
    most = max(counts, key=lambda state: counts[state])
    tall = {
        state: max(_LEAST_HEIGHT, round(height * count / total))
        for state, count in counts.items()
        if state != most
    }
    tall[most] = height - sum(tall.values())
    return [(state, tall[state]) for state in STATES if state in tall]


def _share(value: float, highest: float, logarithmic: bool) -> float:
    if not highest:
        return 0
    return math.log1p(value) / math.log1p(highest) if logarithmic else value / highest


def _axes(highest: float, unit: str, *, logarithmic: bool = False) -> Html:
    """Draw zero, the highest value, and on a linear scale half of it."""
    high = HEIGHT - _BOTTOM - _TOP
    parts = [element("text", f"{unit}{', logarithmic' if logarithmic else ''}", x=4, y=11)]
    for value in (0,) if not highest else (0, highest) if logarithmic else (0, highest / 2, highest):
        y = _TOP + high * (1 - (value / highest if highest else 0))
        parts += [
            element("path", d=f"M{_LEFT} {y:.1f}H{WIDTH - 8}", stroke="currentColor", stroke_opacity=".25"),
            element("text", number(value), x=_LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end"),
        ]
    return each(parts)


def _svg(words: str, height: int, *inside: Html, **more: str) -> Html:
    return element(
        "svg",
        *inside,
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
        role="img",
        aria_label=words,
        **more,
    )
