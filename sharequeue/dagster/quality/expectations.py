"""Turn a Great Expectations suite into Dagster asset checks.

There is one ``AssetCheckSpec`` per expectation, created without importing Great Expectations (3 s, and Dagster loads
definitions often). The expectation has the severity: ``critical`` becomes ERROR, everything else WARN. Ours are
in the modules of this package, the user's in a JSON file in Great Expectations' format for suites.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

Arguments = dict[str, Any]
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")
SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation: the check's name, its description, and the core expectation with its
    arguments.

    ``kind`` is the class's name in ``great_expectations.expectations``.
    """

    check: str
    description: str
    kind: str
    arguments: Arguments = field(default_factory=dict)
    severity: str = "critical"


class SuiteUnreadable(ValueError):
    """The file is not a suite of Great Expectations; the message has the file and the reason."""


def suite_of(path: Path) -> tuple[str, tuple[Expectation, ...]]:
    """Read a user's suite from JSON: its name and its expectations, each with the name of its check.

    The name is `meta.check` if given, else it is made of the type and the columns. Raises SuiteUnreadable.
    """
    try:
        read = json.loads(path.read_text())
    except OSError as error:
        raise SuiteUnreadable(f"{path}: {error.strerror}: expected a suite of Great Expectations") from error
    except ValueError as error:
        raise SuiteUnreadable(f"{path} is not JSON: {error}") from error
    given = read.get("expectations") if isinstance(read, dict) else None
    if not isinstance(given, list) or not given:
        raise SuiteUnreadable(
            f"{path} is not a suite of Great Expectations: expected an object with a list `expectations`, not empty"
        )
    found: dict[str, Expectation] = {}
    for number, each in enumerate(given):
        expectation = _given(path, number, each)
        if expectation.check in found:
            raise SuiteUnreadable(
                f"{path}: two expectations have the name {expectation.check!r}: give one of them another name, "
                '`"meta": {"check": "…"}`'
            )
        found[expectation.check] = expectation
    return str(read.get("name") or path.stem), tuple(found.values())


def _given(path: Path, number: int, each: Any) -> Expectation:
    kind = each.get("type") if isinstance(each, dict) else None
    if not isinstance(kind, str) or not kind.startswith(("expect_", "unexpected_")):
        raise SuiteUnreadable(
            f"{path}: expectation {number} has no `type` such as expect_column_values_to_not_be_null"
        )
    arguments, meta = each.get("kwargs") or {}, each.get("meta") or {}
    severity = each.get("severity") or "critical"
    if not isinstance(arguments, dict) or not isinstance(meta, dict) or severity not in SEVERITIES:
        raise SuiteUnreadable(
            f"{path}: expectation {number}: expected `kwargs` and `meta` as objects, and `severity` one of "
            f"{', '.join(SEVERITIES)}"
        )
    columns = [arguments.get(name) for name in ("column", "column_A", "column_B")]
    columns += arguments.get("column_list") or []
    parts = [kind.removeprefix("expect_"), *(str(column) for column in columns if column)]
    name = _NOT_IN_NAMES.sub("_", str(meta.get("check") or "_".join(parts))).strip("_")
    class_name = "".join(part.capitalize() for part in kind.split("_"))
    return Expectation(name, str(each.get("description") or kind), class_name, arguments, severity)


def check_specs(
    asset: dg.AssetKey,
    expectations: Sequence[Expectation],
    after: Sequence[dg.AssetKey] = (),
    *,
    blocking: bool = False,
) -> list[dg.AssetCheckSpec]:
    """Return one spec per expectation of ``asset``.

    ``after`` names assets that a run makes before it checks; ``blocking`` applies to the critical ones.
    """
    return [
        dg.AssetCheckSpec(
            name=expectation.check,
            asset=asset,
            description=expectation.description,
            additional_deps=list(after),
            blocking=blocking and expectation.severity == "critical",
            metadata={"severity": expectation.severity},
        )
        for expectation in expectations
    ]


def severity_of(expectation: Expectation) -> dg.AssetCheckSeverity:
    """Return ERROR for critical expectations, WARN for others."""
    critical = expectation.severity == "critical"
    return dg.AssetCheckSeverity.ERROR if critical else dg.AssetCheckSeverity.WARN


@dataclass(slots=True)
class Verdict:
    """The result of one expectation on one batch; ``unexpected`` has the rows of up to twenty letters."""

    passed: bool
    elements: int = 0
    unexpected_count: int = 0
    unexpected: list[Mapping[str, Any]] = field(default_factory=list)
    problem: str | None = None


def verdict(result: Any) -> Verdict:
    """Return the verdict from Great Expectations' result of one expectation."""
    outcome = result.result or {}
    return Verdict(
        passed=bool(result.success),
        elements=int(outcome.get("element_count") or 0),
        unexpected_count=int(outcome.get("unexpected_count") or 0),
        unexpected=[dict(row) for row in outcome.get("partial_unexpected_index_list") or ()],
        problem=_problem(result.exception_info) or _observed(result, outcome),
    )


def _observed(result: Any, outcome: Mapping[str, Any]) -> str | None:
    """Return the observed value of an expectation about the whole table, which has no rows to show."""
    if result.success or "observed_value" not in outcome:
        return None
    return f"observed {outcome['observed_value']}"


def _problem(exception_info: Any) -> str | None:
    """Return why an expectation could not be evaluated; None if it was.

    If an expectation raised, that is no result about the data. GX puts it into the result, in two forms.
    """
    if not exception_info:
        return None
    for info in [exception_info, *(value for value in exception_info.values() if isinstance(value, dict))]:
        if info.get("raised_exception"):
            return f"could not be evaluated: {info.get('exception_message') or 'unknown error'}"
    return None
