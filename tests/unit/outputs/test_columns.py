"""The columns of an output by Arrow: those of all files, with types that hold the values of each."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sharequeue.outputs.columns import together
from sharequeue.outputs.errors import ColumnChanged
from sharequeue.outputs.stores import filesystem_of, path_in


def decimal(digits: int, scale: int) -> pa.DataType:
    return pa.decimal128(digits, scale)


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(fields.items())


A, AB = struct(a=pa.int32()), struct(a=pa.int32(), b=pa.string())


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.date32(), pa.timestamp("us"), pa.timestamp("us")),
        (decimal(5, 2), decimal(6, 4), decimal(7, 4)),
        (pa.null(), pa.string(), pa.string()),
        (struct(a=pa.int32()), struct(b=pa.int32()), struct(a=pa.int32(), b=pa.int32())),
        (pa.list_(A), pa.list_(AB), pa.list_(AB)),
        (pa.map_(pa.string(), A), pa.map_(pa.string(), AB), pa.map_(pa.string(), AB)),
        (struct(s=pa.list_(struct(s=A))), struct(s=pa.list_(struct(s=AB))), struct(s=pa.list_(struct(s=AB)))),
    ],
)
def test_a_wider_type_holds_both(one: pa.DataType, other: pa.DataType, both: pa.DataType) -> None:
    """A column that was widened, or got a field anywhere in it, has the type of both, whichever file comes first."""
    for kinds in ((one, other), (other, one)):
        found = together([pa.schema({"n": kind}.items()) for kind in kinds])
        if pa.types.is_struct(both):
            assert {each.name for each in found.field("n").type} == {each.name for each in both}
        else:
            assert found.field("n").type == both


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.string()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (decimal(38, 0), decimal(38, 2)),
        (struct(a=pa.int32()), struct(a=pa.string())),
        (struct(a=pa.int32()), struct(a=pa.int64())),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.list_(A), A),
        (pa.map_(pa.string(), A), pa.map_(pa.int32(), A)),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
    ],
)
def test_another_type_is_an_error(one: pa.DataType, other: pa.DataType) -> None:
    """Where no type holds both without a loss, the error names the column and both types."""
    with pytest.raises(ColumnChanged, match=r"column n is .* in some folders and .* in others"):
        together([pa.schema({"n": kind}.items()) for kind in (one, other)])


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/out/orders", "/data/out/orders"),
        ("file:/data/my out", "/data/my out"),
        ("file:///data/my out, 50%20#?", "/data/my out, 50%20#?"),
        ("hdfs://namenode:8020/out/orders", "/out/orders"),
        ("s3a://bucket/out/orders", "bucket/out/orders"),
        ("gs://bucket/out", "bucket/out"),
        ("abfs://container@account.dfs.core.windows.net/out", "container/out"),
    ],
)
def test_a_location_has_a_path_in_the_callers_file_system(location: str, path: str) -> None:
    """A client of an object store names the bucket in the path, one of HDFS has its host in the client."""
    assert path_in(location) == path


@pytest.mark.parametrize("path", ["/data/my out, 50%20#?", "/däta/[a]"])
def test_a_location_is_a_path_of_spark_and_no_encoded_address(path: str) -> None:
    """Arrow reads where Spark has written: no character of a folder's name has a meaning."""
    for location in (path, f"file:{path}", f"file://{path}"):
        assert filesystem_of(location)[1] == path_in(location) == path
