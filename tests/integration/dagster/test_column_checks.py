"""The checks of a queue's columns judge the rows that were accepted since their last result, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.flights.pipeline import flight_delays
from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.database import Database
from sharequeue.domain.values import AcknowledgeType, LeaseOutput, SharePartition
from sharequeue.outputs.manifest import ELSEWHERE
from sharequeue.state import State
from tests import single
from tests.damage import flip
from tests.fixtures.dagster import share_group
from tests.waiting import pass_time

COLUMNS = [
    {"name": "note", "not_null": True, "matches": "[a-z]+"},
    {"name": "state", "accepted_values": ["open", "paid"], "severity": "ERROR"},
    {"name": "price", "min": 0, "max": 100},
    {"name": "missing", "not_null": True},
]
GOOD = {"note": ["text"] * 10, "state": ["open"] * 10, "price": pa.array([5] * 10, pa.int32())}

Results = Callable[[], dict[str, dg.AssetCheckEvaluation]]
Accept = Callable[[dict[str, Any]], None]


@pytest.fixture
def accept(private_database: Database, at: SharePartition, tmp_path: Path) -> Accept:
    """Give a function that accepts ten records with these columns, two minutes after those before."""
    state = State(private_database)

    def write(columns: dict[str, Any]) -> None:
        pass_time(private_database, 120)
        lease = single.acquire(state, at, "member", None, 10)
        assert lease is not None
        folder = tmp_path / "leases=0-1-0" / f"sharequeue_lease={lease.lease_id}"
        folder.mkdir(parents=True)
        place = {
            "topic": [at.topic] * 10,
            "partition": [at.partition] * 10,
            "lease_id": [lease.lease_id] * 10,
        }
        offsets = range(lease.offsets.first, lease.offsets.end)
        rows = pa.table({**place, "offset": offsets, **columns})
        pq.write_table(rows, folder / "part-0.parquet", write_page_checksum=True)
        output = LeaseOutput(flight_delays.sink, str(folder), 10)
        single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=[output])

    return write


@pytest.fixture
def results(
    private_database: Database, at: SharePartition, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Results]:
    """Give a function that executes the checks in one instance."""
    monkeypatch.setenv(
        "SHAREQUEUE_DATABASE_URL", private_database.engine.url.render_as_string(hide_password=False)
    )
    group = share_group(at.group_id, columns=COLUMNS)
    selection = dg.AssetSelection.checks(
        *(dg.AssetCheckKey(dg.AssetKey(["g", "accepted"]), name) for name in NAMES)
    )
    defs = dg.Definitions.merge(
        share_group_defs(group),
        share_group_resources(home=str(tmp_path)),
        dg.Definitions(jobs=[dg.define_asset_job("checking", selection=selection)]),
    )
    with dg.DagsterInstance.ephemeral() as instance:

        def execute() -> dict[str, dg.AssetCheckEvaluation]:
            made = defs.resolve_job_def("checking").execute_in_process(instance=instance)
            return {each.check_name: each for each in made.get_asset_check_evaluations()}

        yield execute


NAMES = (
    *("note_not_null", "note_matches", "state_accepted_values", "price_min", "price_max"),
    "missing_not_null",
)


def test_rows_are_judged_once(accept: Accept, results: Results) -> None:
    """A check fails for rows that violate it, keeps its result without new rows, and passes with new ones."""
    before = results()
    assert all(each.passed for each in before.values())
    accept(GOOD)
    first = results()
    assert {name for name, each in first.items() if not each.passed} == {"missing_not_null"}
    assert "the rows have no column missing: they have topic, " in str(first["missing_not_null"].description)
    assert first["note_not_null"].description == "is not null: 10 new records"
    bad = {
        "note": ["Text", None, *["text"] * 8],
        "state": ["lost", None, *["paid"] * 8],
        "price": pa.array([-1, 101, None, *[1] * 7], pa.int32()),
    }
    accept(bad)
    failed = results()
    unexpected = {
        name: each.metadata["unexpected_records"].value
        for name, each in failed.items()
        if name != "missing_not_null"
    }
    assert unexpected == {
        "note_not_null": 1,
        "note_matches": 1,
        "state_accepted_values": 2,
        "price_min": 1,
        "price_max": 1,
    }
    assert failed["price_max"].metadata["checked_records"].value == 10
    assert failed["state_accepted_values"].severity == dg.AssetCheckSeverity.ERROR
    assert str(failed["price_max"].description).endswith("price is at most 100; the first is t-0@11")
    again = results()
    assert {name: each.description for name, each in again.items()} == {
        name: each.description for name, each in failed.items()
    }
    accept(GOOD)
    assert {name for name, each in results().items() if not each.passed} == {"missing_not_null"}


def test_rows_that_cannot_be_read_are_not_checked(accept: Accept, results: Results, tmp_path: Path) -> None:
    """The check fails with the lease until the file is repaired; then it is of these rows, too."""
    accept(GOOD)
    assert results()["state_accepted_values"].passed
    accept({**GOOD, "state": ["lost"] * 10})
    newest = max(tmp_path.rglob("part-0.parquet"), key=lambda file: int(file.parent.name.partition("=")[2]))
    content = flip(newest, pq.read_schema(newest).get_field_index("state"))
    for _ in range(2):
        found = results()
        assert f"cannot be read: lease {newest.parent.name.partition('=')[2]} in " in str(
            found["state_accepted_values"].description
        )
        assert found["note_not_null"].passed
    newest.write_bytes(content)
    assert results()["state_accepted_values"].metadata["unexpected_records"].value == 10


def test_what_cannot_be_checked_fails(
    accept: Accept, results: Results, private_database: Database, at: SharePartition
) -> None:
    """A limit for a text, and rows that are in a table, are failures with the reason."""
    accept({**GOOD, "price": ["dear"] * 10})
    assert "column price, which is string: " in str(results()["price_min"].description)
    state = State(private_database)
    lease = single.acquire(state, at, "member", None, 10)
    assert lease is not None
    output = LeaseOutput(flight_delays.sink, f"{ELSEWHERE}sales.orders", 10)
    single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=[output])
    found = results()["note_not_null"]
    assert not found.passed
    assert "it was written to sales.orders" in str(found.description)
