"""The page and the small pictures, on made-up figures."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.dom.minidom import parseString

import pytest

from sharequeue.domain.figures import GroupFigures, SharePartitionStatus
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import DeliveryCount, LeaseRow
from sharequeue.reports import inline_pictures
from sharequeue.reports.drawing import divided, strip
from sharequeue.reports.files import page_path, write_page
from sharequeue.reports.page import report_page
from sharequeue.reports.parts import duration
from sharequeue.reports.read import (
    CausesOfDay,
    GroupReport,
    OffsetWindow,
    OldestRecord,
    ReportedMoment,
)

NOW = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\"'&"


def status(partition: int, topic: str = "orders") -> SharePartitionStatus:
    """A share-partition with something of everything."""
    return SharePartitionStatus(
        *("g", topic, partition, 100, 200, 0, 1_000, 800, 100),
        acquired=30,
        available=40,
        archiving=10,
        observed_at=NOW,
        paused_reason=HOSTILE,
    )


def window(partition: int, topic: str = "orders", span: int = 100) -> OffsetWindow:
    """Every state in turn."""
    fifth = span // 5
    states = ("available", "acquired", "acknowledged", "archiving", "archived")
    return OffsetWindow(
        topic,
        partition,
        100,
        100 + span,
        {s: OffsetSet.of((100 + n * fifth, 100 + (n + 1) * fifth)) for n, s in enumerate(states)},
    )


def report(partitions: int, name: str = "orders") -> GroupReport:
    """A report on a group of so many share-partitions, with a name of its group, topic, member and reason."""
    figures = GroupFigures(name, partitions, 800 * partitions, 100, stuck_leases=1, throughput=12.5)
    moments = [ReportedMoment(NOW + timedelta(minutes=n), 500 - n, 1, 2, 3, 100 * n) for n in range(300)]
    return GroupReport(
        NOW,
        figures,
        [status(partition, name) for partition in range(partitions)],
        moments,
        [DeliveryCount(name, 0, "accepted", 1, 90), DeliveryCount(name, 0, "exhausted", 5, 2)],
        [window(partition, name) for partition in range(min(50, partitions))],
        [OldestRecord(name, 0, 100, "fresh", 90.0)],
        [LeaseRow(7, name, 0, name, 10, NOW, NOW, 0.0, held_seconds=4000.0, stuck_reason=name)],
        [CausesOfDay(date(2026, 11, 22), "rejected", 3, 0)],
    )


class Reader(HTMLParser):
    """What a browser would take for tags, and where they lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.leads: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.leads += [value for name, value in attrs if name in ("src", "href", "onload", "onerror")]


def test_every_value_is_escaped() -> None:
    """Names of groups, topics and members, and reasons, are other people's text: none of it becomes a tag."""
    text = report_page(report(2, HOSTILE))
    read = Reader(text)
    assert "script" not in read.tags
    assert "&lt;script&gt;" in text
    assert (read.leads, "http://" in text, "https://" in text) == ([], False, False)


@pytest.mark.parametrize("partitions", [0, 1, 1_000])
def test_a_page_is_whole_and_small(partitions: int) -> None:
    """Nothing, one share-partition, a thousand: one document, below 400 KB, and what is left out is named."""
    text = report_page(report(partitions) if partitions else GroupReport(NOW, GroupFigures("nobody")))
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert len(text.encode()) < 400_000
    for svg in re.findall(r"<svg.*?</svg>", text):
        parseString(svg)  # noqa: S318 (our own)
    assert ("950 more are in the view" in text) == (partitions == 1_000)
    assert ("The first 200 of 1,000." in text) == (partitions == 1_000)
    assert ("Nothing is in flight." in text) == (partitions == 0)


def test_a_strip_says_what_it_shows() -> None:
    """For those who do not see it, and each offset is in exactly one cell, also where a cell has many of them."""
    assert "orders-0, offsets 100 up to 200: 20 available, 20 acquired" in strip(window(0))
    for cells in (7, 190):
        for span in (5, 100, 1_000_000):
            parts = divided(window(0, span=span), cells)
            assert len(parts) == min(cells, span)
            assert sum(sum(part.values()) for part in parts) == span
    assert divided(OffsetWindow("t", 0, 5, 5), 10) == []


def test_small_pictures_are_shown_where_they_stand() -> None:
    """Below a thousand characters of Markdown, with an SVG that can be read, however much there is to draw."""
    points = [(NOW + timedelta(minutes=n), float(n * n % 977) * 1e6) for n in range(1_440)]
    ragged = OffsetSet.of(*((100 + 2 * n, 101 + 2 * n) for n in range(5_000)))
    rest = OffsetSet.of((100, 10_100)) - ragged
    crowded = OffsetWindow("[x](y)" + "t" * 240, 0, 100, 10_100, {"acquired": ragged, "available": rest})
    for text in (
        inline_pictures.line(points, unit="records"),
        inline_pictures.line(points[:1], unit="records"),
        inline_pictures.bars({count: 10**count for count in range(1, 16)}, unit="records"),
        inline_pictures.strip(window(0)),
        inline_pictures.strip(crowded),
    ):
        assert len(text) < 1_000
        found = re.search(r"\(<data:image/svg\+xml,([^>]*)>\)", text)
        assert found is not None
        parseString(unquote(found[1]))  # noqa: S318 (our own)
    assert inline_pictures.line([], unit="records") == "no reports yet"
    assert inline_pictures.bars({}, unit="records") == "no record has ended yet"
    assert inline_pictures.strip(None) == "nothing in flight"


def test_a_duration_has_two_units() -> None:
    """People read hours and minutes; what is not known is called so."""
    said = [duration(seconds) for seconds in (None, 0, 0.25, 59, 3_600, 3_661, 90_061)]
    assert said == ["unknown", "0 s", "0.2 s", "59 s", "1 h", "1 h 1 min", "1 d 1 h"]


@pytest.mark.parametrize("group", ["orders", "..", "a/b", "../../etc", "ä" * 200])
def test_a_page_lies_below_the_output(group: str, tmp_path: Path) -> None:
    """Whatever the group's id is; a second page of a day replaces the first."""
    settings = Settings.load(tmp_path, output=str(tmp_path / "output"))
    for _ in range(2):
        path = write_page(settings, GroupReport(NOW, GroupFigures(group)))
    assert path == page_path(settings, group, NOW.date())
    assert path.resolve().parents[1] == (tmp_path / "output" / "reports").resolve()
    assert [each.name for each in path.parent.iterdir()] == ["2026-11-22.html"]
