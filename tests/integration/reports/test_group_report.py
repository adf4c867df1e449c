"""The figures of a group's report, against an independent count of what was done."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.domain.errors import GroupIdNotFound
from sharequeue.domain.figures import GroupFigures
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, SharePartition
from sharequeue.reports.history import Reports
from sharequeue.reports.read import read_figures, read_report
from sharequeue.state import State
from tests import single
from tests.reported import reported_lags
from tests.waiting import pass_time

pytestmark = pytest.mark.usefixtures("standing_clock")

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@pytest.fixture
def at_configs() -> Mapping[str, str | int]:
    """Released records come again at once."""
    return {"sharequeue.retry.backoff.ms": 0}


def work(state: State, at: SharePartition, records: int, **kinds: tuple[int, int]) -> None:
    lease = single.acquire(state, at, "m", None, records)
    assert lease is not None
    single.acknowledge(
        state, lease, {AcknowledgeType[kind]: OffsetSet.of(run) for kind, run in kinds.items()}
    )


def test_throughput_and_time_to_drain(private_database: Database, at: SharePartition) -> None:
    """100 records of 1,000 end in 2,000 seconds: one in 20 seconds, and 18,000 seconds for the rest. Each interval
    between two reports has its own rate."""
    state, reports = State(private_database), Reports(private_database)
    assert read_figures(private_database, at.group_id).throughput is None
    pass_time(private_database, 3700)  # It came to life more than an hour ago.
    reports.record(at.group_id)
    pass_time(private_database, 1000)
    work(state, at, 100, ACCEPT=(0, 90), REJECT=(90, 100))
    reports.record(at.group_id)
    pass_time(private_database, 1000)
    batch = state.dead_letters.open(at, 100)
    assert batch is not None
    state.dead_letters.close(batch)
    figures = read_figures(private_database, at.group_id)
    assert (figures.finished_records, figures.lag, figures.accepted, figures.rejected) == (100, 900, 90, 10)
    assert figures.throughput == pytest.approx(0.05)
    assert figures.time_to_drain_seconds == pytest.approx(18_000)
    reports.record(at.group_id)
    report = read_report(private_database, at.group_id)
    assert [moment.lag for moment in report.moments] == [1000, 910, 900]
    assert [rate for _, rate in report.rates()] == pytest.approx([0.09, 0.01, 0.01])
    # Nothing ended since the only report of the last hour: no rate, and no time to drain.
    pass_time(private_database, 3550)
    reports.record(at.group_id)
    pass_time(private_database, 100)
    figures = read_figures(private_database, at.group_id)
    assert (figures.finished_records, figures.throughput, figures.time_to_drain_seconds) == (0, None, None)


def test_throughput_of_a_first_run(private_database: Database, at: SharePartition) -> None:
    """Before any report, it counts from when the share-partitions came to life."""
    pass_time(private_database, 1000)
    work(State(private_database), at, 100, ACCEPT=(0, 100))
    figures = read_figures(private_database, at.group_id)
    assert figures.finished_records == 100
    assert figures.window_seconds == pytest.approx(1000)
    assert figures.throughput == pytest.approx(0.1)


def test_the_window_is_that_of_the_state(private_database: Database, at: SharePartition) -> None:
    """Each offset between SPSO and SPEO is in exactly one state, the one that its acknowledgement asked for."""
    state = State(private_database)
    work(state, at, 20, ACCEPT=(5, 10), REJECT=(10, 12), RELEASE=(12, 15))
    (window,) = read_report(private_database, at.group_id).windows
    assert (window.spso, window.speo) == (0, 20)
    assert window.states == {
        "acquired": OffsetSet.of((0, 5), (15, 20)),
        "acknowledged": OffsetSet.of((5, 10)),
        "archiving": OffsetSet.of((10, 12)),
        "available": OffsetSet.of((12, 15)),
    }
    rows = private_database.rows(sa.text("select sum(records) as records from sharequeue.in_flight_windows"))
    assert rows[0]["records"] == 20


def test_the_oldest_record_waits_since_a_report_saw_it(
    private_database: Database, at: SharePartition
) -> None:
    """Its age is that of the first report with it in the log; a finished record takes its age with it."""
    state, reports = State(private_database), Reports(private_database)
    reports.record(at.group_id)
    pass_time(private_database, 100)
    single.observe(state, at, "id", 0, 1500, 1500)
    reports.record(at.group_id)
    pass_time(private_database, 100)
    (oldest,) = read_report(private_database, at.group_id).oldest
    assert (oldest.oldest_offset, oldest.oldest_state) == (0, "fresh")
    assert oldest.age_seconds == pytest.approx(200)
    work(state, at, 1000, ACCEPT=(0, 1000))
    (oldest,) = read_report(private_database, at.group_id).oldest
    assert oldest.oldest_offset == 1000
    assert oldest.age_seconds == pytest.approx(100)
    work(state, at, 500, ACCEPT=(1000, 1500))
    report = read_report(private_database, at.group_id)
    assert (report.oldest, report.figures.oldest_age_seconds) == ([], None)


def test_stuck_leases_say_why(private_database: Database, at: SharePartition) -> None:
    """A lock that lapsed long ago and was not settled, and one whose member is gone; a lease at work is none."""
    state = State(private_database)
    assert single.acquire(state, at, "silent", None, 10) is not None
    assert read_report(private_database, at.group_id).stuck == []
    pass_time(private_database, 700)
    report = read_report(private_database, at.group_id)
    (stuck,) = report.stuck
    assert (stuck.member_id, stuck.records, report.figures.stuck_leases) == ("silent", 10, 1)
    assert stuck.stuck_reason == "its lock lapsed, and it was not swept"
    # The next acquire settles it. That this lease has a member, who is gone, is written by hand.
    assert single.acquire(state, at, "gone", None, 10) is not None
    with private_database.transaction() as connection:
        connection.exec_driver_sql("update sharequeue.leases set member_epoch = 3")
    (stuck,) = read_report(private_database, at.group_id).stuck
    assert (stuck.member_id, stuck.stuck_reason) == ("gone", "its member is gone")


def test_causes_by_day(private_database: Database, at: SharePartition) -> None:
    """Dead letters are counted on the day on which they were written, by cause, the dropped ones apart."""
    state = State(private_database)
    first = state.now().astimezone(UTC).date()
    for dropped in (False, True):
        lease = single.acquire(state, at, "m", None, 4)
        assert lease is not None
        single.acknowledge(state, lease, {REJECT: lease.offsets})
        batch = state.dead_letters.open(at, 100)
        assert batch is not None
        state.dead_letters.close(batch, dropped=dropped)
        pass_time(private_database, 86_400)
    causes = read_report(private_database, at.group_id).causes
    assert [(c.cause, c.written_records, c.dropped_records) for c in causes] == [
        ("rejected", 4, 0),
        ("rejected", 0, 4),
    ]
    assert causes[0].day == first


def test_the_command_writes_a_page(
    private_database: Database,
    at: SharePartition,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the day's file, to a file of one's own, or to stdout; a group that is not there is an error."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    monkeypatch.setenv("SHAREQUEUE_HOME", str(tmp_path))
    invoke = CliRunner().invoke
    done = invoke(command, ["report", "--group", at.group_id, "--record"])
    path = Path(done.stdout.strip())
    assert path.parent == tmp_path / "output" / "reports" / at.group_id
    assert path.read_text().startswith("<!doctype html>")
    assert len(reported_lags(private_database, at.group_id)) == 1
    own = tmp_path / "own.html"
    assert invoke(command, ["report", "--group", at.group_id, "--file", str(own)]).stdout == f"{own}\n"
    assert "1,000" in own.read_text()
    assert (
        invoke(command, ["report", "--group", at.group_id, "--file", str(own)]).exit_code == 0
    )  # a page again
    own.write_text("something else")
    assert invoke(command, ["report", "--group", at.group_id, "--file", str(own)]).exit_code == 2
    assert own.read_text() == "something else"
    assert invoke(command, ["report", "--group", at.group_id, "--file", "-"]).stdout.endswith("</html>\n")
    assert isinstance(invoke(command, ["report", "--group", "nobody"]).exception, GroupIdNotFound)


def test_a_group_without_anything(private_database: Database) -> None:
    """An unknown group has a report of zeros, and nothing is divided by nothing."""
    report = read_report(private_database, "nobody")
    assert report.figures == GroupFigures("nobody")
    assert (report.rates(), report.windows, report.causes) == ([], [], [])
