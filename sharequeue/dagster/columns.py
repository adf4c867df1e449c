"""The columns of the handler's result: `columns` of a `defs.yaml`, and what Dagster's catalog shows of them."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import dagster as dg
from pydantic import Field, field_validator, model_validator

from sharequeue.dagster.tables import Columns
from sharequeue.dagster.yaml_values import Finite

OF_A_RECORD: Columns = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestamp_type": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The columns of a topic's records, as a handler gets them."""

_Value = str | int | float | bool


class ColumnFields(dg.Model, dg.Resolvable):
    """A list of columns of the rows that `accepted` has: descriptions, sources, and checks."""

    name: str = Field(description="The column.")
    description: str | None = Field(
        default=None, description="What it contains; default: the comment of the handler's column."
    )
    sources: Sequence[str] = Field(
        default=[],
        description="The columns of the record that it is made of, such as `value`: the lineage of the column; "
        "default: those that Spark's plan of the handler shows.",
    )
    not_null: bool = Field(default=False, description="A check: no row has null.")
    accepted_values: Sequence[_Value] = Field(
        default=[], description="A check: no row has another value, or null."
    )
    min: Finite | None = Field(default=None, description="A check: no row has less.")
    max: Finite | None = Field(default=None, description="A check: no row has more.")
    matches: str | None = Field(
        default=None, description="A check: each text matches this regular expression as a whole."
    )
    severity: Literal["WARN", "ERROR"] = Field(
        default="WARN", description="The severity of its checks, `WARN` or `ERROR`."
    )

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if not name:
            raise ValueError("name must not be empty: expected the name of a column")
        return name

    @field_validator("accepted_values")
    @classmethod
    def _are_values(cls, values: Sequence[_Value]) -> Sequence[_Value]:
        # The default is not checked.
        if not values:
            raise ValueError(
                "accepted_values is empty: expected a value or more; without the field, there is no check"
            )
        if any(isinstance(value, float) and math.isnan(value) for value in values):
            raise ValueError("accepted_values has NaN, which no value is equal to: leave it out")
        if (
            len({next(kind for kind in (str, bool, object) if isinstance(value, kind)) for value in values})
            > 1
        ):
            raise ValueError(
                f"accepted_values has values of different types, and a column has one: {list(values)}. Put texts in "
                "quotes, such as '1'"
            )
        return values

    @model_validator(mode="after")
    def _has_room(self) -> "ColumnFields":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(
                f"min {self.min:g} is more than max {self.max:g}: no row could pass; exchange them"
            )
        return self

    @field_validator("sources")
    @classmethod
    def _are_of_a_record(cls, sources: Sequence[str]) -> Sequence[str]:
        for source in sources:
            if source not in OF_A_RECORD and "{{" not in source:
                raise ValueError(f"sources: a record has no {source!r}: expected {', '.join(OF_A_RECORD)}")
        return sources

    @field_validator("matches")
    @classmethod
    def _is_expression(cls, text: str | None) -> str | None:
        try:
            # Dagster also reads the yaml before it has filled in templates.
            if text is not None and "{{" not in text:
                re.compile(text)
        except re.error as error:
            raise ValueError(f"matches is {text!r}: expected a regular expression ({error})") from error
        return text

    def constraints(self) -> Iterator[tuple[str, str]]:
        """Yield each constraint with the words for it."""
        if self.not_null:
            yield "not_null", "is not null"
        if self.accepted_values:
            yield "accepted_values", f"is one of {', '.join(map(str, self.accepted_values))}"
        if self.min is not None:
            yield "min", f"is at least {self.min:g}"
        if self.max is not None:
            yield "max", f"is at most {self.max:g}"
        if self.matches is not None:
            yield "matches", f"matches {self.matches}"


def schema_of(columns: Columns, words: Mapping[str, str], given: Iterable[ColumnFields]) -> Mapping[str, Any]:
    """Return columns as Dagster's catalog shows them, with the descriptions of the yaml, or else these words; nothing
    without columns.
    """
    if not columns:
        return {}
    known = {each.name: each for each in given}
    return {
        "dagster/column_schema": dg.TableSchema(
            columns=[_column(name, kind, words.get(name), known.get(name)) for name, kind in columns.items()]
        )
    }


def _column(name: str, kind: str, words: str | None, given: ColumnFields | None) -> dg.TableColumn:
    if given is None:
        return dg.TableColumn(name, kind, words)
    others = [words for constraint, words in given.constraints() if constraint != "not_null"]
    limits = dg.TableColumnConstraints(nullable=not given.not_null, other=others)
    return dg.TableColumn(name, kind, given.description or words, limits)


def lineage_of(
    given: Iterable[ColumnFields], seen: Mapping[str, Sequence[str]], topics: Sequence[dg.AssetKey]
) -> Mapping[str, Any]:
    """Return the columns of the topics that each column is made of, as the yaml names them, or else as a run has
    `seen` them; nothing if there are none.
    """
    sources = {**seen, **{each.name: each.sources for each in given if each.sources}}
    found = {
        name: [dg.TableColumnDep(topic, source) for topic in topics for source in some]
        for name, some in sources.items()
    }
    return {"dagster/column_lineage": dg.TableColumnLineage(found)} if found else {}


__all__ = ["OF_A_RECORD", "ColumnFields", "lineage_of", "schema_of"]
