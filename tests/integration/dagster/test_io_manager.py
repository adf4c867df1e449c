"""An asset downstream takes the accepted records of a queue, or a summary, as its input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import Dataset
from pyspark.sql import DataFrame, SparkSession

from pipelines.flights.pipeline import flight_delays
from sharequeue.dagster import share_group_defs, share_group_resources
from sharequeue.database import Database
from sharequeue.domain.values import AcknowledgeType, LeaseOutput, SharePartition
from sharequeue.outputs.manifest import ELSEWHERE
from sharequeue.state import State
from tests import single
from tests.fixtures.dagster import share_group

SINK = flight_delays.sink
SUMMARY = "delays"

Loads = Callable[..., Any]


@pytest.fixture
def loads(
    private_database: Database, at: SharePartition, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Loads:
    """Give a function that materializes an asset with one input of a type, and returns what it got."""
    url = private_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("SHAREQUEUE_DATABASE_URL", url)
    monkeypatch.setenv("SHAREQUEUE_HOME", str(tmp_path))
    monkeypatch.setenv("SHAREQUEUE_OUTPUT", str(tmp_path / "output"))
    group = share_group(at.group_id, summaries={SUMMARY: "pipelines.flights.pipeline:merged_delays"})

    def load(kind: Any, name: str = "accepted", **metadata: Any) -> Any:
        got = []
        given = dg.AssetIn(key=[*group.prefix, name], metadata=metadata or None)

        def look(rows: Any) -> None:
            got.append(list(rows.columns) if isinstance(rows, pd.DataFrame) else rows)
            if isinstance(rows, DataFrame):
                got[0] = rows.toArrow()

        look.__annotations__["rows"] = kind
        defs = dg.Definitions.merge(
            share_group_defs(group),
            share_group_resources(),
            dg.Definitions(
                assets=[dg.asset(name="look", ins={"rows": given})(look)],
                jobs=[dg.define_asset_job("looking", selection=["look"])],
            ),
        )
        defs.resolve_job_def("looking").execute_in_process()
        return got[0]

    return load


@pytest.fixture
def accepted(private_database: Database, at: SharePartition, tmp_path: Path) -> State:
    """Give the state after ten records were accepted, and ten more written and not acknowledged."""
    state = State(private_database)
    for counts in (True, False):
        lease = single.acquire(state, at, "member", None, 10)
        assert lease is not None
        folder = tmp_path / "output" / SINK / "leases=0-1-0" / f"sharequeue_lease={lease.lease_id}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"offset": range(10), "note": ["x"] * 10}), folder / "part-0.parquet")
        if counts:
            output = LeaseOutput(SINK, str(folder), lease.offsets.count)
            single.acknowledge(state, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=[output])
    return state


def test_the_type_of_an_input_decides_what_it_gets(
    loads: Loads, accepted: State, spark: SparkSession
) -> None:
    """Each type has the same rows, those that were acknowledged; `columns` chooses some of the columns."""
    assert loads(pa.Table).num_rows == 10
    assert loads(pd.DataFrame) == ["offset", "note"]
    assert loads(pd.DataFrame, columns=["note"]) == ["note"]
    assert loads(Dataset).count_rows() == 10
    assert loads(Dataset, columns=["note"]).to_table().to_pydict() == {"note": ["x"] * 10}
    assert loads(pa.Table, columns=["note", "offset"]).column_names == ["note", "offset"]
    rows = loads(DataFrame, columns=["offset"])
    assert (rows.num_rows, rows.column_names) == (10, ["offset"])
    assert spark.range(1).count() == 1  # It still runs: the run did not start it.


def test_a_queue_without_a_run_is_an_empty_input(loads: Loads) -> None:
    """Before anything was accepted there are no rows, and no error; the columns that are chosen have no type."""
    assert loads(pa.Table).num_rows == 0
    assert loads(pd.DataFrame, columns=["note"]) == ["note"]
    assert loads(DataFrame, columns=["the note"]).schema.names == ["the note"]


def test_a_summary_is_its_merged_file(loads: Loads, tmp_path: Path, at: SharePartition) -> None:
    """The file of the last materialization is read as a whole."""
    file = tmp_path / "output" / at.group_id / f"{SUMMARY}.parquet"
    with pytest.raises(dg.Failure, match=r"there is no file .*: materialize the summary first"):
        loads(pa.Table, SUMMARY)
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"carrier": ["UA"], "flights": [3]}), file)
    assert loads(pa.Table, SUMMARY).to_pylist() == [{"carrier": "UA", "flights": 3}]
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(dg.Failure, match=r"cannot be read: materialize the summary again"):
        loads(pa.Table, SUMMARY)


def test_what_cannot_be_loaded_says_why(loads: Loads, accepted: State, at: SharePartition) -> None:
    """An input without a type that is known, and rows that are in a table, end the step with what to do."""
    with pytest.raises(dg.Failure, match=r"has the type Any: give the argument the type pandas\.DataFrame, "):
        loads(Any)
    for metadata, said in (
        ({"columns": "note"}, "has 'note' as 'columns': expected a list of different names"),
        ({"columns": ["note", "note"]}, "expected a list of different names"),
        ({"column": ["note"]}, "has 'column': did you mean 'columns'"),
        ({"columns": ["nota"]}, r"g/accepted: it has no column 'nota'\. Did you mean note\?"),
    ):
        with pytest.raises(dg.Failure, match=said):
            loads(pa.Table, **metadata)
    lease = single.acquire(accepted, at, "member", None, 10)
    assert lease is not None
    output = LeaseOutput(SINK, f"{ELSEWHERE}sales.orders", 10)
    single.acknowledge(accepted, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=[output])
    with pytest.raises(dg.Failure, match=r"g/accepted: the output of .* was written to sales\.orders"):
        loads(pa.Table)
