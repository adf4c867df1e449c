"""Decode JSON; reject records that are not JSON.

Spark parses the first value of a text and ignores the rest, so a text is also read as the first of two items of an
array. The second item has a random text: a record that closes the array itself does not know it.

A decimal is the one type whose parser may work without bound: `1e100000000` has twenty bytes, and a hundred million
digits. So a value that would be read as a decimal is refused before it is parsed if its exponent has four digits or
if it is longer than a number may be; also in a text that ends in an error behind it, which Spark finds later. Spark's
parser itself limits the length of numbers and the depth of nesting (1,000 each).

Spark reads some numbers as others without an error, and two entries of a map with the same key. They are looked for
where the schema has such a type: a byte beyond 127, seconds that do not fit into a timestamp, a fraction in a string.

All of it is SQL in texts: as Column objects, the expressions for 19 fields are 4,700 calls to the JVM, in each trial
and each round.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sharequeue.spark.formats.decoded_column import (
    DECODED,
    FIELDS,
    TEXT,
    after_registry,
    decided,
    of_registry,
    shown,
)
from sharequeue.spark.nested_parts import any_part, parts_of
from sharequeue.spark.sql_texts import quoted, text_literal

_MALFORMED = "sharequeue_malformed"
_END = "sharequeue_end"
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _MALFORMED,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}

MOST_DIGITS = 1000
"""The longest number, as for numbers in JSON that are not in quotes."""
_NOT_ASCII = r"[^\x00-\x7f]"
# Java takes digits of any script, but only those in quotes are read.
_LONG_EXPONENT = rf"[eE][-+]?(?:0*[1-9][0-9]{{3}}|[0-9]*{_NOT_ASCII})"
# Java ignores commas in a decimal in quotes; \\u may hide any character of it. A text without a match needs no look.
_SUSPECT = rf"[eE][-+,]*[0-9][0-9,]{{3}}|[eE][-+,0-9]*(?:{_NOT_ASCII}|\\u)|\\u00|[-+0-9.,]{{{MOST_DIGITS}}}"
_LONG_NUMBER = r"[:\[,]\s*-?[0-9]+(?:\.[0-9]+)?[eE][-+]?0*[1-9][0-9]{3}"
MOST_SECONDS = 2**63 // 1_000_000
"""The most seconds since 1970, before or after, that a timestamp can hold."""
_LONG_WHOLE_NUMBER = r"[:\[,]\s*-?[0-9]{13}"


_BLANKS = " \t\n\r"
_BLANK = r"\A\s*\z"
_ESCAPED = "\\u"
_TWO_BACKSLASHES = r"\\\\"
_HIGH, _LOW = r"\\u[dD][89aAbB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = f"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"
_HUGE = "[0-9][eE][+]?[0-9]{3}|[0-9]{309}"
_AS_SPARK_WRITES = r"\A-?[0-9]+\.[0-9]+(E-?[0-9]+)?\z"
_TOO_LONG = f"a number with an exponent of four digits, or more than {MOST_DIGITS:,} characters"
_LOST_DIGITS = "a number with more digits than Spark keeps in a string: read it as a decimal"
_AS_SPARK_WRITES_HUGE = ('"Infinity"', '"-Infinity"')


def json(records: DataFrame, schema: str | StructType, *, column: str = "value") -> DataFrame:
    """Decode a column of JSON objects in place, as a struct of `schema`, a DDL string or a type.

    The rows get `outcome` and `error`: accept, or reject with the reason where the bytes are empty or not JSON, where
    a field has another type, or where the value is null. `NaN` and `Infinity` are not JSON; a number that does not
    fit into its type (1e400), a map with equal keys, and half a surrogate pair (`"\\ud800"`), are refused. So is a
    number with an exponent of four digits, or more than 1,000 characters, if the schema has a decimal. A missing
    field is null. The five bytes that the serializer of a schema registry puts before JSON are skipped: JSON never
    begins with a zero byte.
    """
    wanted: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    raw = quoted(column)
    text = f"cast(if({of_registry(raw)}, {after_registry(raw)}, {raw}) as string)"
    parsed, refused = _parsed(TEXT, _as(ShortType(), ByteType, wanted)), _without_bound(TEXT, wanted)
    cases = [
        (f"{FIELDS} is not null", _reason(raw, TEXT, wanted)),
        (_is_too_large(DECODED, wanted, TEXT), "'a number that is too large for its type'"),
        (_has_lost_digits(DECODED, wanted, TEXT), f"'{_LOST_DIGITS}'"),
        (_has_equal_keys(DECODED, wanted), "'a map with equal keys'"),
    ]
    if refused is not None:
        parsed = f"if(not {refused}, {parsed}, null)"
        cases.insert(0, (f"{DECODED} is null and {refused}", f"'{_TOO_LONG}'"))
    # Each is a column of its own because others need it more than once.
    whole = f"coalesce({_is_whole(TEXT)}, false)"
    fields = f"if({whole}, null, coalesce({_from_json(TEXT, 'map<string, string>')}, map()))"
    made = {TEXT: text, DECODED: parsed, FIELDS: fields}
    read = reduce(lambda read, each: read.withColumn(each, fn.expr(made[each])), made, records)
    parts = (f"{text_literal(each.name)}, {_as_wanted(each)}" for each in wanted.fields)
    return decided(read, column, f"named_struct({', '.join(parts)})", _case(cases))


def _case(cases: Iterable[tuple[str, str]], otherwise: str = "null") -> str:
    """Return the value of the first condition that holds."""
    return f"case {' '.join(f'when {holds} then {value}' for holds, value in cases)} else {otherwise} end"


def _matches(text: str, pattern: str) -> str:
    return f"({text} rlike {text_literal(pattern)})"


def _is_whole(text: str) -> str:
    """Return whether a text is one object and nothing else, and the object was read. Patterns are slow: they are only
    for what a text seldom has.
    """
    is_one = _is_one_value(text, StructType([StructField(_END, StringType())]))
    return (
        f"({DECODED} is not null and {DECODED}.{_MALFORMED} is null"
        f" and {_is_object(text)} and is_valid_utf8({text}) and not {_has_lone_surrogate(text)}"
        f" and ({_has_one_brace(text)} or {is_one}))"
    )


def _is_object(text: str) -> str:
    return f"startswith(ltrim({text_literal(_BLANKS)}, {text}), '{{')"


def _has_one_brace(text: str) -> str:
    """Return whether an object has none inside it, and no braces in its texts: its first one ends the text."""
    return f"(octet_length(substring_index({text}, '}}', 1)) = octet_length({text}) - 1)"


def _without_bound(text: str, wanted: StructType) -> str | None:
    """Return whether a text has a decimal that cannot be parsed in a bounded time; None if no part is a decimal."""
    if not _has(wanted, DecimalType):
        return None

    def too_long(part: str, _: DataType) -> str:
        plain = f"replace({part}, ',', '')"
        return f"(length({part}) > {MOST_DIGITS} or {_matches(plain, _LONG_EXPONENT)})"

    in_quotes = any_part(_as_texts(text, DecimalType, wanted), wanted, _is(DecimalType), too_long)
    # A condition, so that no other text is parsed twice.
    long = f"if({_matches(text, _SUSPECT)}, {_matches(text, _LONG_NUMBER)} or {in_quotes}, null)"
    return f"coalesce({long}, false)"


def _is(*kinds: type[DataType]) -> Callable[[DataType], bool]:
    return lambda kind: isinstance(kind, kinds)


def _has(kind: DataType, chosen: type[DataType]) -> bool:
    """Return whether a type, or a part of it at any depth, is a `chosen` one."""
    return any(map(_is(chosen), parts_of(kind)))


def _as(other: DataType, chosen: type[DataType], kind: DataType) -> Any:
    """Return a type with another one in place of each `chosen` one, but not in keys of maps."""
    if isinstance(kind, chosen):
        return other
    if isinstance(kind, ArrayType):
        return ArrayType(_as(other, chosen, kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _as(other, chosen, kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType(
            [
                StructField(each.name, _as(other, chosen, each.dataType), each.nullable, each.metadata)
                for each in kind.fields
            ]
        )
    return kind


def _as_texts(text: str, chosen: type[DataType], wanted: StructType) -> str:
    """Return the object at the beginning of a text, with texts in place of the values of one type."""
    return _parsed(text, _as(StringType(), chosen, wanted))


def _as_wanted(field: StructField) -> str:
    """Return a field of the decoded value in its own type: bytes were read as short numbers."""
    value = f"{DECODED}.{quoted(field.name)}"
    return f"cast({value} as {_in_sql(field.dataType)})" if _has(field.dataType, ByteType) else value


def _in_sql(kind: DataType) -> str:
    """Return a type in SQL. Spark's own text of it does not quote names."""
    if isinstance(kind, StructType):
        return (
            f"struct<{', '.join(f'{quoted(each.name)}: {_in_sql(each.dataType)}' for each in kind.fields)}>"
        )
    if isinstance(kind, ArrayType):
        return f"array<{_in_sql(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_in_sql(kind.keyType)}, {_in_sql(kind.valueType)}>"
    return kind.simpleString()


def _from_json(text: str, schema: str) -> str:
    options = ", ".join(f"'{name}', '{value}'" for name, value in _OPTIONS.items())
    return f"from_json({text}, {text_literal(schema)}, map({options}))"


def _parsed(text: str, kind: StructType) -> str:
    """Return the object at the beginning of a text, and `_MALFORMED`, which is null if it could be read."""
    return _from_json(text, StructType([*kind.fields, StructField(_MALFORMED, StringType())]).json())


def _is_one_value(text: str, kind: DataType) -> str:
    """Return whether a text is one JSON value and nothing else: of any kind if it is read as a text, otherwise an
    object.
    """
    secret = secrets.token_hex(16)
    end = f'{{"{_END}":"{secret}"}}'
    both = _from_json(f"concat('[', {text}, ',{end}]')", ArrayType(kind).json())
    last = f"'{end}'" if isinstance(kind, StringType) else f"named_struct('{_END}', '{secret}')"
    # Once: Spark evaluates what is there twice beforehand, for each record, behind an `or`, too.
    return f"coalesce(slice({both}, 2, 2) = array({last}), false)"


def _has_lone_surrogate(text: str) -> str:
    """Return whether a text in a text is not Unicode. Spark would read a question mark."""
    without_backslashes = f"regexp_replace({text}, {text_literal(_TWO_BACKSLASHES)}, '_')"
    return (
        f"(contains({text}, {text_literal(_ESCAPED)}) and {_matches(text, f'{_HIGH}|{_LOW}')}"
        f" and {_matches(without_backslashes, _LONE)})"
    )


def _is_too_large(value: str, wanted: StructType, text: str) -> str:
    """Return whether a number was too large for its type, or for the text that Spark makes of a number."""

    def special(part: str, kind: DataType) -> str:
        if isinstance(kind, ByteType):
            return f"{part} not between -128 and 127"
        if isinstance(kind, StringType):
            huge = ", ".join(f"'{each}'" for each in _AS_SPARK_WRITES_HUGE)
            return f"({part} in ({huge}) and {_matches(text, _HUGE)})"
        return f"abs({part}) = double('Infinity')"

    def late(part: str, _: DataType) -> str:
        whole = _matches(part, r"\A-?[0-9]{1,38}\z")
        return f"if({whole}, abs(cast({part} as decimal(38, 0))) > {MOST_SECONDS}, length({part}) > 38)"

    found = any_part(value, wanted, _is(DoubleType, FloatType, StringType, ByteType), special)
    if not _has(wanted, TimestampType):
        return found
    times = any_part(_as_texts(text, TimestampType, wanted), wanted, _is(TimestampType), late)
    return f"({found} or if({_matches(text, _LONG_WHOLE_NUMBER)}, {times}, false))"


def _has_lost_digits(value: str, wanted: StructType, text: str) -> str:
    """Return whether a number was read as a text with other digits: Spark writes one with a fraction as a double.
    Then no number in the text has these digits.
    """

    def lost(part: str, _: DataType) -> str:
        digits = part
        for pattern in ("E.*|[.-]", "^0+|0+$"):
            digits = f"regexp_replace({digits}, {text_literal(pattern)}, '')"
        digits = f"coalesce(nullif({digits}, ''), '0')"
        same = f"concat('(^|[^0-9])0*', {digits}, {text_literal('0*([^0-9]|$)')})"
        # Plain comparisons first, because a pattern is slow.
        is_number = f"({part} < ':' and contains({part}, '.') and {_matches(part, _AS_SPARK_WRITES)})"
        return f"({is_number} and not replace({text}, '.', '') rlike {same})"

    return any_part(value, wanted, _is(StringType), lost)


def _has_equal_keys(value: str, wanted: DataType) -> str:
    """Return whether a map has a key twice."""

    def equal(part: str, kind: DataType) -> str:
        assert isinstance(kind, MapType)  # noqa: S101 - no other is chosen
        keys = f"map_keys({part})"
        inside = _has_equal_keys(f"map_values({part})", ArrayType(kind.valueType))
        return f"(size({keys}) > size(array_distinct({keys})) or {inside})"

    return any_part(value, wanted, _is(MapType), equal)


def _reason(raw: str, text: str, wanted: StructType) -> str:
    """Return why a text is not an object of the schema. Spark parses such a text twice more, and no other.

    Spark gives null for a field that does not fit. It does not tell which part of a field.
    """

    def named(chosen: Iterable[tuple[StructField, str]]) -> str:
        """Return the names of the fields that the text has, if their condition holds."""
        names = ["', '"]
        for field, condition in chosen:
            name = text_literal(f"{field.name} ({field.dataType.typeName()})")
            names.append(_case([(f"{FIELDS}[{text_literal(field.name)}] is not null and {condition}", name)]))
        return f"nullif(concat_ws({', '.join(names)}), '')"

    unfit = named((each, f"{DECODED}.{quoted(each.name)} is null") for each in wanted.fields)
    of_parts = (StructType, ArrayType, MapType)
    with_parts = named((each, "true") for each in wanted.fields if isinstance(each.dataType, of_parts))
    of_other, of_part = (
        f"a {what} of another type than the schema's{where}: "
        for what, where in (("field", ""), ("part", ", in one of these fields"))
    )
    return _case(
        [
            (_matches(text, _BLANK), "'empty: expected a JSON object'"),
            (f"not is_valid_utf8({text})", f"concat('not UTF-8: ', {shown(raw)})"),
            (f"not {_is_one_value(text, StringType())}", f"concat('not JSON: ', {shown(raw)})"),
            (_has_lone_surrogate(text), "'not Unicode: half of a surrogate pair'"),
            (f"not {_is_object(text)}", "'JSON, but not an object'"),
        ],
        otherwise=f"coalesce(concat({text_literal(of_other)}, {unfit}),"
        f" concat({text_literal(of_part)}, {with_parts}), 'a field twice, once with a value of another type')",
    )
