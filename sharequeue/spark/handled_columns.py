"""What a handler's result says of its own columns: their descriptions, and the columns of the record that they are
made of.

The descriptions are the comments of its columns. The sources are read from Spark's analysed plan of the result, where
the columns are selected and computed by expressions. Columns are followed by Spark's ids, because names may be given
anew. Where the plan does anything else, nothing is said of the columns that come from there: those of other tables,
of an aggregation, of a union, or of a function in Python that gets whole rows. It is for a data catalog only, so it
never fails a run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pyspark.sql import DataFrame

from sharequeue.domain.errors import first_line
from sharequeue.spark.handler import KEY_HASH, RAW, RECORD_COLUMNS, RESULT_NAMES, TRACE

_log = logging.getLogger(__name__)

Sources = Mapping[int, frozenset[str]]
"""The columns of the record that columns of a plan are made of, by Spark's ids. It is not known of which the others
are made.
"""
_Json = Mapping[str, Any]

MOST_COLUMNS = 200
"""A result with more columns has no sources: Spark writes the type of a struct at each use, so that the plan of 500
columns from one struct has 16 MB and takes 2 s. That of 100 takes 0.1 s.
"""
_RECORDS = {"class": "records", "num-children": 0}
"""Stands for the plan of the records in the plan of the result."""
_NOT_THE_HANDLERS = frozenset((*RESULT_NAMES, RAW, TRACE))
"""Columns that are for the queue: those of the result are computed anew from the handler's when it is checked."""
_SAME_ROWS = frozenset(
    (
        *("Filter", "SubqueryAlias", "Join", "Sample", "Distinct", "Deduplicate", "ResolvedHint"),
        *("Window", "Sort", "GlobalLimit", "LocalLimit", "Offset"),
        *("Repartition", "RepartitionByExpression", "RebalancePartitions"),
    )
)
"""The nodes of a plan that pass on the columns of their children as they are; those that they add are not known."""


@dataclass(frozen=True, slots=True)
class HandledColumns:
    """The columns of a handler's result."""

    names: tuple[str, ...]
    comments: Mapping[str, str]
    """The comments that the result has on its columns."""
    sources: Mapping[str, tuple[str, ...]]
    """The columns of the record that each column is made of. A column is left out if it is made of none, if it is not
    known, and if it is for the queue.
    """

    @classmethod
    def of(cls, handled: DataFrame, records: DataFrame) -> Self:
        """Return the columns of a checked result for these records. What Spark's plan does not show is left out."""
        schema = handled.schema
        comments = {each.name: each.metadata.get("comment") for each in schema.fields}
        try:
            sources = _sources(handled, records) if len(comments) <= MOST_COLUMNS else {}
        except Exception as error:
            _log.debug("what the handler's columns are made of is not known: %s", first_line(error))
            sources = {}
        return cls(
            names=tuple(schema.names),
            comments={name: words for name, words in comments.items() if words and isinstance(words, str)},
            sources={name: some for name, some in sources.items() if name not in _NOT_THE_HANDLERS},
        )


def _sources(handled: DataFrame, records: DataFrame) -> dict[str, tuple[str, ...]]:
    plan, given = (_analysed(each) for each in (handled, records))
    return column_sources(plan.toJSON(), given.toJSON(), ids_of(given.output().mkString("\n")))


def _analysed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def ids_of(columns: str) -> dict[int, frozenset[str]]:
    """Return the sources of the columns of leased records, which are given line by line as Spark shows them, such as
    `offset#12L`. The lease and the delivery count are not of the record.
    """
    of: dict[int, frozenset[str]] = {}
    for column in columns.split("\n"):
        name, _, number = column.rpartition("#")
        source = "key" if name == KEY_HASH else name
        of[int(number.rstrip("L"))] = frozenset([source] if source in RECORD_COLUMNS else [])
    return of


def column_sources(plan: str, records: str, of_records: Sources) -> dict[str, tuple[str, ...]]:
    """Return the columns of the record that each column of a result is made of, if there are any and they are known.

    `plan` and `records` are the analysed plans of the result and of the records that the handler got, as Spark writes
    them in JSON: a list of nodes, each before its children. Raises ValueError, KeyError, IndexError or TypeError for
    anything else.
    """
    nodes = json.loads(plan.replace(records.strip()[1:-1], json.dumps(_RECORDS)))
    found: list[Sources] = []
    for node in reversed(nodes):
        children = [found.pop() for _ in range(node["num-children"])]
        found.append(of_records if node == _RECORDS else _of_node(node, children))
    (of_result,) = found
    columns = {each[0]["name"]: of_result.get(_id(each[0])) for each in nodes[0].get("projectList", ())}
    return {
        name: tuple(each for each in RECORD_COLUMNS if each in some) for name, some in columns.items() if some
    }


def _of_node(node: _Json, children: Sequence[Sources]) -> Sources:
    """Return the sources of the columns that a node passes on."""
    kind = node["class"].rpartition(".")[2]
    passed_on = {number: some for child in children for number, some in child.items()}
    if kind in _SAME_ROWS:
        return passed_on
    made: Mapping[int, frozenset[str] | None] = {}
    if kind == "Project":
        made = {_id(each[0]): _of_expression(each, passed_on) for each in node["projectList"]}
    elif kind == "Generate":
        exploded = _of_expression(node["generator"], passed_on)
        made = {**passed_on, **{_id(each[0]): exploded for each in node["generatorOutput"]}}
    return {number: some for number, some in made.items() if some is not None}


def _of_expression(parts: Sequence[_Json], given: Sources) -> frozenset[str] | None:
    """Return the sources of an expression; None if they are not known. A part with a plan is a subquery."""
    used = [given.get(_id(part)) for part in parts if part["class"].endswith(".AttributeReference")]
    known = [some for some in used if some is not None]
    if len(known) < len(used) or any("plan" in part for part in parts):
        return None
    return frozenset[str]().union(*known)


def _id(column: _Json) -> int:
    """Return Spark's id of a column."""
    return int(column["exprId"]["id"])
