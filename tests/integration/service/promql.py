"""Evaluate the PromQL of alerts and dashboards over scrapes.

As much of the language as our files use; anything else is refused, so that nothing passes unread. A rate or an
increase is that between two scrapes, which stand for the ends of its range.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = dict[str, Vector]

_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}
_COMPUTED: Mapping[str, Callable[[float, float], float]] = {"-": operator.sub, "/": operator.truediv}
_AGGREGATED: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "count": lambda values: float(len(values)),
}


def samples(*scrapes: str) -> Samples:
    """Return the samples of scrapes by name and labels. Where a later one has the same, it counts."""
    found: Samples = {}
    for scrape in scrapes:
        for family in text_string_to_metric_families(scrape):
            for each in family.samples:
                found.setdefault(each.name, {})[frozenset(each.labels.items())] = each.value
    return found


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """Return each metric that a query names, with the labels that it asks for, in matchers and in `by`."""
    yield from _selectors(promql.parse(query), set())


def _selectors(expression: Any, grouped: set[str]) -> Iterator[tuple[str, set[str]]]:
    if isinstance(expression, promql.VectorSelector):
        assert expression.offset is None, f"{expression}: no offset is used here"
        assert expression.name is not None, f"{expression} names no metric"
        yield expression.name, grouped | {each.name for each in expression.matchers.matchers}
    elif isinstance(expression, promql.MatrixSelector):
        yield from _selectors(expression.vector_selector, grouped)
    elif isinstance(expression, promql.SubqueryExpr):
        yield from _selectors(expression.expr, grouped)
    elif isinstance(expression, promql.AggregateExpr):
        yield from _selectors(expression.expr, grouped | set(_by(expression)))
    elif isinstance(expression, promql.Call):
        for each in expression.args:
            yield from _selectors(each, grouped)
    elif isinstance(expression, promql.BinaryExpr):
        yield from _selectors(expression.lhs, grouped)
        yield from _selectors(expression.rhs, grouped)
    elif isinstance(expression, promql.ParenExpr):
        yield from _selectors(expression.expr, grouped)
    else:
        assert isinstance(expression, promql.NumberLiteral), f"{expression} is not read here"


def _by(expression: Any) -> list[str]:
    if expression.modifier is None:
        return []
    assert "By" in str(expression.modifier.type), f"{expression}: only `by` is read here"
    return list(expression.modifier.labels)


def evaluated(query: str, before: Samples, now: Samples) -> Vector:
    """Return what a query returns, where rates are between these scrapes."""
    found = _value(promql.parse(query), before, now)
    assert isinstance(found, dict), f"{query} is a number"
    return found


def _value(expression: Any, before: Samples, now: Samples) -> Any:
    if isinstance(expression, promql.NumberLiteral):
        return float(expression.val)
    if isinstance(expression, promql.ParenExpr):
        return _value(expression.expr, before, now)
    if isinstance(expression, promql.VectorSelector):
        return _selected(expression, now)
    if isinstance(expression, promql.AggregateExpr):
        return _aggregated(expression, _value(expression.expr, before, now))
    if isinstance(expression, promql.Call):
        return _called(expression, before, now)
    assert isinstance(expression, promql.BinaryExpr), f"{expression} is not read here"
    _refuse_other_matching(expression)
    left, right = (_value(each, before, now) for each in (expression.lhs, expression.rhs))
    how = str(expression.op)
    if how == "or":
        return right | left
    if how == "unless":
        everything = expression.modifier is not None and expression.modifier.matching is not None
        return {
            labels: value
            for labels, value in left.items()
            if labels not in right and not (everything and right)
        }
    if how == "and" or how in _COMPUTED:
        return {
            labels: value if how == "and" else _COMPUTED[how](value, right[labels])
            for labels, value in left.items()
            if labels in right
        }
    compare = _COMPARED[how]
    return {labels: value for labels, value in left.items() if compare(value, right)}


def _refuse_other_matching(expression: Any) -> None:
    """Refuse to match by anything but all labels, or, where something must be missing, by none (`unless on ()`)."""
    matching = None if expression.modifier is None else expression.modifier.matching
    if matching is not None:
        assert str(expression.op) == "unless", f"{expression} is not read here"
        assert "Include" in str(matching.type), f"{expression} is not read here"
        assert matching.labels == [], f"{expression} is not read here"


def _selected(selector: Any, of: Samples) -> Vector:
    matchers = [
        (each.name, str(each.op).rpartition(".")[2], each.value) for each in selector.matchers.matchers
    ]
    return {
        labels: value
        for labels, value in of.get(selector.name, {}).items()
        if all(_matches(dict(labels).get(name, ""), how, wanted) for name, how, wanted in matchers)
    }


def _matches(value: str, how: str, wanted: str) -> bool:
    found = re.fullmatch(wanted, value) is not None if how in ("Re", "NotRe") else value == wanted
    return found == (how in ("Re", "Equal"))


def _aggregated(expression: Any, vector: Vector) -> Vector:
    by = set(_by(expression))
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        groups.setdefault(frozenset(pair for pair in labels if pair[0] in by), []).append(value)
    return {labels: _AGGREGATED[str(expression.op)](values) for labels, values in groups.items()}


def _called(expression: Any, before: Samples, now: Samples) -> Vector:
    name = expression.func.name
    if name == "absent":
        return {} if _value(expression.args[0], before, now) else {frozenset(): 1.0}
    if name in ("rate", "increase"):
        (ranged,) = expression.args
        seconds = ranged.range.total_seconds() if name == "rate" else 1.0
        inner = ranged.expr if isinstance(ranged, promql.SubqueryExpr) else ranged.vector_selector
        first, last = (_value(inner, before, of) for of in (before, now))
        return {
            labels: (value - first[labels]) / seconds for labels, value in last.items() if labels in first
        }
    assert name == "histogram_quantile", f"{name} is not read here"
    quantile, buckets = expression.args[0].val, _value(expression.args[1], before, now)
    series: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in buckets.items():
        bound = float(dict(labels)["le"])
        series.setdefault(frozenset(pair for pair in labels if pair[0] != "le"), []).append((bound, value))
    found = {}
    for labels, steps in series.items():
        wanted = quantile * max(value for _, value in steps)
        if wanted > 0:
            # The bucket's upper bound: enough to say on which side of a threshold it is.
            found[labels] = min(bound for bound, value in steps if value >= wanted)
    return found
