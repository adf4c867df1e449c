"""The outcomes in a file are read, however it was encoded."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sharequeue.domain.offsets import OffsetSet
from sharequeue.spark.outcomes.offset_sets import offset_sets_in

BY = ("lease_id", "outcome")


@pytest.mark.parametrize("text", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"])
def test_a_file_without_dictionaries_is_read(tmp_path: Path, text: str) -> None:
    """As Parquet's writer of version 2 makes it if dictionaries are switched off, a setting of many platforms."""
    rows = {"lease_id": [7] * 4, "outcome": ["accept", "reject"] * 2, "offset": [1, 2, 3, 4]}
    file = tmp_path / "part-0.parquet"
    encoding = {"lease_id": "DELTA_BINARY_PACKED", "outcome": text, "offset": "DELTA_BINARY_PACKED"}
    pq.write_table(
        pa.table(rows), file, use_dictionary=False, column_encoding=encoding, data_page_version="2.0"
    )
    found = {key: (offsets, rows) for key, offsets, rows in offset_sets_in([file], *BY)}
    assert found == {
        (7, "accept"): (OffsetSet.of((1, 2), (3, 4)), 2),
        (7, "reject"): (OffsetSet.of((2, 3), (4, 5)), 2),
    }


def test_the_error_names_a_file_that_arrow_cannot_read(tmp_path: Path) -> None:
    """The caller then lets Spark read it."""
    file = tmp_path / "part-0.parquet"
    file.write_bytes(b"PARE" * 10)
    with pytest.raises(pa.ArrowInvalid, match=r"part-0\.parquet cannot be read: "):
        offset_sets_in([file], *BY)
