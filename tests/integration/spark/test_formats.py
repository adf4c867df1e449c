"""JSON becomes columns; a record that does not decode is a reject with its error, no other is affected.

Avro is in `tests/deep/deep_avro.py`: its jar is a set of its own.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as fn

from sharequeue.spark.formats import json
from sharequeue.spark.handler import RegistryNotAvailable
from sharequeue.spark.leased_records import lease
from sharequeue.spark.row_handlers import by_row
from sharequeue.state import State
from tests import single
from tests.fixtures.pipelines import Assigned, Produce, RunJob, job_of
from tests.fixtures.registry import framed
from tests.fixtures.stack import MakeTopic

COLUMNS = "topic string, partition int, offset long, lease_id long, key binary, value binary"
MALFORMED = "not JSON: 1 bytes, beginning with 0x7b"


def records_of(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [
        ("orders", 0, n, 7, b"1", None if value is None else bytearray(value))
        for n, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, COLUMNS)


def rows_of(decoded: DataFrame) -> list[Row]:
    return decoded.orderBy("offset").collect()


def test_a_record_that_is_not_an_object_of_the_schema_is_rejected(spark: SparkSession) -> None:
    """What is no object of the schema is a reject with the reason, also when another column was decoded before; what
    a registry's serializer puts before JSON is passed over."""
    values = (
        b'{"id": "a", "amount": 2}',
        framed(7, b'{"id": "b"}'),
        b'{"id": "c", "amount": "much"}',
        b"{",
        b"",
        None,
    )
    decoded = json(records_of(spark, *values), "id string, amount int")
    assert decoded.columns == [*COLUMNS.replace(" ", ",").split(",")[0::3], "outcome", "error"]
    found = rows_of(decoded)
    assert [row["value"] and tuple(row["value"]) for row in found[:3]] == [("a", 2), ("b", None), None]
    assert [row["outcome"] for row in found] == ["accept", "accept", "reject", "reject", "reject", "reject"]
    unfit = "a field of another type than the schema's: amount (integer)"
    empty = "empty: expected a JSON object"
    assert [row["error"] for row in found] == [None, None, unfit, MALFORMED, empty, "no value"]
    both = json(json(records_of(spark, b"{", b"{}"), "id string"), "id string", column="key")
    assert [row["error"] for row in rows_of(both)] == [MALFORMED, "key: JSON, but not an object"]


def test_the_reason_tells_what_is_wrong_and_names_the_fields_that_do_not_fit(spark: SparkSession) -> None:
    """Empty, not UTF-8, not JSON, no object, fields of another type by name; of a field inside a struct, only that
    there is one."""
    reasons = {
        b" \n": "empty: expected a JSON object",
        framed(7, b""): "empty: expected a JSON object",
        b'{"id": "\xff"}': "not UTF-8: 11 bytes, beginning with 0x7b226964223a2022",
        b'{"id": "a"} and more': "not JSON: 20 bytes, beginning with 0x7b226964223a2022",
        b'[{"id": "a"}]': "JSON, but not an object",
        b'"a"': "JSON, but not an object",
        b"null": "JSON, but not an object",
        b'{"amount": "much", "at": {"x": 1}, "id": null}': (
            "a field of another type than the schema's: amount (integer), at (timestamp)"
        ),
        b'{"amount": 1.5, "more": {"n": 1}}': "a field of another type than the schema's: amount (integer)",
        b'{"more": {"n": "x"}}': "a part of another type than the schema's, in one of these fields: more (struct)",
        b'{"many": [1, "x"]}': "a field of another type than the schema's: many (array)",
        b'{"more": 1}': "a field of another type than the schema's: more (struct)",
    }
    schema = "id string, amount int, at timestamp, more struct<n: int>, many array<int>"
    found = rows_of(json(records_of(spark, *reasons), schema))
    assert {value: row["error"] for value, row in zip(reasons, found, strict=True)} == reasons
    assert {row["outcome"] for row in found} == {"reject"}


def test_json_is_one_object_and_nothing_else(spark: SparkSession) -> None:
    """Spark reads the first value of a text and passes over the rest; here the rest is somebody's second order."""
    wrong = (
        b'{"id": "a"}{"id": "b"}',
        b'{"id": "a"}, {"id": "b"}',
        b'{"id": "a"} and more',
        b'{"id": "a"}]',
        b'{"id": "a"}}',
        b"{'id': 'a'}",
        b'[{"id": "a"}]',
        b"null",
        b'"a"',
        b'{"id": "\xff"}',
        b'{"id": "a"},"value":{"id": "b"}',
        b'{"id": "a"},{"id": "b"}',
        b'{"id": "a", "more": {}}], [{"id": "b"}',
        b'{"id": "a"},{"sharequeue_end": "x"}],"x":[{}',
        b'{"id": "a"},"sharequeue_malformed":null',
        b'{"id": NaN}',
        b'{"id": "a", "n": NaN}',
        b'{"id": "a", "unknown": -Infinity}',
    )
    right = (
        b' {"id": "a", "more": [{}]}\n',
        '{"id": "\u00e9"}'.encode(),
        b"{}",
        b'{"id": "a", "more": {"x": "}{"}, "sharequeue_end": {}}',
    )
    found = rows_of(json(records_of(spark, *wrong, *right), "id string"))
    assert [row["outcome"] for row in found] == ["reject"] * len(wrong) + ["accept"] * len(right)
    assert [row["value"]["id"] for row in found[len(wrong) :]] == ["a", "\u00e9", None, "a"]


def test_a_value_that_no_type_can_hold_is_refused(spark: SparkSession) -> None:
    """A number that is infinite in its type or that Spark would read as another one, wherever it is, two entries of a
    map with one key, and half of a surrogate pair, which Spark would read as a question mark. Quotes make no number
    of NaN."""
    digits = "a number with more digits than Spark keeps in a string: read it as a decimal"
    large, half = "a number that is too large for its type", "not Unicode: half of a surrogate pair"
    refused = {
        b'{"d": 1e400}': large,
        b'{"d": -1E400}': large,
        b'{"f": 1.5e39}': large,
        b'{"s": 1e400}': large,
        b'{"m": {"a": [1, 1e309]}}': large,
        b'{"b": 128}': large,
        b'{"b": -129}': large,
        b'{"n": {"k": {"x y": 200}}}': large,
        b'{"t": 1577836800000000000}': large,
        b'{"t": -9223372036855}': large,
        b'{"m": {"a": [1], "a": [2]}}': "a map with equal keys",
        b'{"s": "\\ud800"}': half,
        b'{"s": "\\uDC00\\ud800"}': half,
        b'{"s": "a\\\\\\ud83dx"}': half,
        b'{"s": "\\ud83d\\\\\\ude00"}': half,
        b'{"s": "\\\\\\\\ud83d\\ude00"}': half,
        b'{"s": 12345678901234567890.123}': digits,
        b'{"m": {}, "s": -0.12345678901234567891}': digits,
        b'{"s": 0.50000000000000000001}': digits,
        b'{"s": 0.300000000000000044}': digits,
        b'{"s": 100000000000000000000.5}': digits,
        b'{"s": 1e-400}': digits,
        b'{"d": "NaN"}': "a field of another type than the schema's: d (double)",
        b'{"d": "Infinity"}': "a field of another type than the schema's: d (double)",
    }
    read = {
        b'{"d": 1.7976931348623157e308, "f": 3.4e38}': None,
        b'{"s": "\\ud83d\\ude00", "x": 1e400}': "\U0001f600",
        b'{"s": "\\\\ud800"}': "\\ud800",
        b'{"s": "\\"Infinity\\""}': '"Infinity"',
        b'{"s": "NaN"}': "NaN",
        b'{"s": "12345678901234567890.123"}': "12345678901234567890.123",
        b'{"s": 12345678901234567890123}': "12345678901234567890123",
        b'{"s": 3.141592653589793}': "3.141592653589793",
        b'{"s": 1.50}': "1.5",
        b'{"s": 1.5e3}': "1500.0",
        b'{"s": -0.0}': "-0.0",
        b'{"s": 1577836800.123456}': "1.577836800123456E9",
        b'{"s": 0.0001234567890123}': "1.234567890123E-4",
        b'{"b": -128, "t": 253402300799, "n": {"k": {"x y": 127}, "l": {}}, "s": "1577836800000000000"}': (
            "1577836800000000000"
        ),
    }
    schema = (
        "d double, f float, s string, m map<string, array<double>>, b tinyint, t timestamp,"
        " n map<string, struct<`x y`: tinyint>>"
    )
    found = rows_of(json(records_of(spark, *refused, *read), schema))
    assert {value: row["error"] for value, row in zip(refused, found, strict=False)} == refused
    rest = found[len(refused) :]
    assert {value: row["value"]["s"] for value, row in zip(read, rest, strict=True)} == read
    last = rest[-1]["value"]
    assert (last["b"], last["n"]["k"]["x y"], last["t"].year) == (-128, 127, 9999)


def test_a_comment_of_the_schema_stays_with_its_column(spark: SparkSession) -> None:
    """It is the description of the column in a data catalog."""
    decoded = json(
        records_of(spark, b"{}"), "id string comment 'of the order', b tinyint, t timestamp comment 'paid'"
    )
    comments = {each.name: each.metadata.get("comment") for each in decoded.select("value.*").schema}
    assert comments == {"id": "of the order", "b": None, "t": "paid"}


def test_a_number_with_a_huge_exponent_is_refused_before_it_is_parsed(spark: SparkSession) -> None:
    """A decimal with an exponent of four digits, or of more than a thousand characters, is refused before it is
    parsed, wherever it is and however it is written; texts that look like one, and other numbers, are read."""
    refused = (
        b'{"a": 1e100000000}',
        b'{"a": -1.5E-100000000}',
        b'{"a": "1e100000000"}',
        b'{"a": "1,e,1,0,0,0,0,0,0,0,0"}',
        b'{"a": "1\\u0065100000000"}',
        b'{"a": "%s"}' % (b"1" * 200_000),
        b'{"b": [1, 1e00100000000]}',
        b'{"c": {"x": {"d": "1e100000000"}}}',
        b'{"a": 1, "unknown": 1e100000000}',
        b'{"a": 1e100000000 x}',
        b'{"a": 1e100000000\x01, "t": "x"}',
        '{"a": "1e\uff11\uff10\uff10\uff10\uff10\uff10\uff10\uff10\uff10"}'.encode(),
        b'{"a": "1e\\uff11\\uff10\\uff10\\uff10\\uff10\\uff10\\uff10\\uff10"}',
    )
    read = (
        b'{"a": 1.50e1, "t": "12e45678", "x": 1e5}',
        b'{"a": "12", "t": "\\u0031e100000000"}',
        b'{"b": [%s]}' % b",".join([b"1"] * 2_000),
    )
    schema = "a decimal(10, 2), b array<decimal(5, 1)>, c map<string, struct<d: decimal(38, 0)>>, t string, x double"
    *others, first, second, third = rows_of(json(records_of(spark, *refused, *read), schema))
    too_long = "a number with an exponent of four digits, or more than 1,000 characters"
    assert [row["error"] for row in others] == [too_long] * len(refused)
    assert (first["value"]["a"], first["value"]["t"], first["value"]["x"]) == (
        Decimal("15.00"),
        "12e45678",
        1e5,
    )
    assert (second["value"]["a"], second["value"]["t"]) == (Decimal(12), "1e100000000")
    assert len(third["value"]["b"]) == 2_000
    values = (b'{"a": 1e100000000}', b'{"a": %s}' % (b"1" * 200_000), b'{"a": %s}' % (b"[" * 100_000))
    for kind in ("string", "double", "bigint", "timestamp", "map<string,string>"):
        assert len(rows_of(json(records_of(spark, *values), f"a {kind}"))) == len(values)


def test_a_wide_schema_costs_no_more_calls_to_the_jvm_than_a_narrow_one(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver builds one expression, whatever it has to check; a name of a field may have any character."""
    client, records = spark.sparkContext._gateway._gateway_client, records_of(spark, b"{}")  # type: ignore[union-attr]
    send, sent = client.send_command, list[str]()

    def counted(command: str, *rest: Any, **more: Any) -> Any:
        sent.append(command)
        return send(command, *rest, **more)

    def calls(schema: str) -> int:
        with monkeypatch.context() as counting:
            counting.setattr(client, "send_command", counted)
            sent.clear()
            json(records, schema)
        # Objects that Python has dropped are released at any time.
        return sum(not command.startswith("m\nd\n") for command in sent)

    assert calls("s string") == calls(
        ", ".join(f"s{at} string, d{at} decimal(9), m{at} map<string, float>" for at in range(9))
    )
    (row,) = rows_of(
        json(
            records_of(spark, b'{"it\'s": 1, "a\\\\b": "${x}", "`": {}}'), "`it's` int, `a\\b` int, ```` int"
        )
    )
    assert row["error"] == "a field of another type than the schema's: a\\b (integer), ` (integer)"


def test_a_time_is_cut_to_microseconds(spark: SparkSession) -> None:
    """As text, before 1970 too; as a `string` it stays. A number is seconds."""
    fine, old = "2024-01-01T00:00:00.123456789Z", "1969-12-31T23:59:59.999999999Z"
    values = [f'{{"at": "{fine}"}}'.encode(), f'{{"at": "{old}"}}'.encode(), b'{"at": 1700000000}']
    micros = fn.unix_micros("value.at")
    expected = [1_704_067_200_123_456, -1, 1_700_000_000_000_000]
    found = json(records_of(spark, *values), "at timestamp").orderBy("offset")
    assert [row[0] for row in found.select(micros).collect()] == expected
    texts = json(records_of(spark, *values), "at string").orderBy("offset")
    assert [row[0] for row in texts.select("value.at").collect()] == [fine, old, "1700000000"]


def test_by_row_skips_records_that_were_not_decoded(spark: SparkSession) -> None:
    """The function gets decoded values alone, without the outcome; the others keep their error."""

    def double(record: dict[str, Any]) -> dict[str, Any]:
        assert "outcome" not in record
        return {"amount": 2 * record["value"]["amount"]}

    decoded = json(records_of(spark, b'{"amount": 2}', b"{", b"{}"), "amount int")
    found = [
        (row["amount"], row["outcome"], row["error"])
        for row in rows_of(by_row(double, "amount int")(decoded))
    ]
    assert found[:2] == [(4, "accept", None), (None, "reject", MALFORMED)]
    assert found[2][1] == "release"


def no_registry(records: DataFrame) -> DataFrame:
    """Read the records, as for the ids of their schemas, and find no registry that answers."""
    if records.select("offset").count():
        raise RegistryNotAvailable("the schema registry does not answer")
    return records.withColumn("outcome", fn.lit("accept"))


def test_a_registry_that_does_not_answer_costs_no_delivery(
    group: str, make_topic: MakeTopic, produce: Produce, assigned: Assigned, run_job: RunJob, state: State
) -> None:
    """The run ends with its error: nothing is acknowledged, and the records come again as never delivered."""
    topic = make_topic(1)
    produce(topic, 0, range(10))
    holder = assigned(topic)
    with pytest.raises(RegistryNotAvailable):
        run_job(job_of(group, topic, no_registry), holder)
    again = single.acquire(state, holder.assignment[0], holder.member_id, None, 10)
    assert again is not None
    assert [(each.delivery_count, each.offsets.count) for each in again.deliveries] == [(1, 10)]
    state.release([again], refund=True)


def test_an_unavailable_registry_ends_a_lease_without_a_delivery(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    spark: SparkSession,
    state: State,
    output_settings: Any,
) -> None:
    """Its block ends with the error, and the deliveries are given back."""
    topic = make_topic(1)
    produce(topic, 0, range(10))
    holder = assigned(topic)
    with (
        pytest.raises(RegistryNotAvailable),
        lease(group, [topic], settings=output_settings, spark=spark, membership=holder) as leased,
    ):
        no_registry(leased.records)
    again = single.acquire(state, holder.assignment[0], holder.member_id, None, 10)
    assert again is not None
    assert [(each.delivery_count, each.offsets.count) for each in again.deliveries] == [(1, 10)]
