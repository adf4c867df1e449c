"""Great Expectations' suites as Dagster asset checks: one for each expectation.

They are created without importing Great Expectations (3 s, and Dagster loads definitions often). A suite is checked
when it is loaded, by the schemas that Great Expectations ships for its expectations as JSON: it would drop an
expectation of an unknown type, and give no result at all for a suite with an unknown keyword. The expectation has
the severity: ``critical`` becomes ERROR, everything else WARN. Ours are in `dead_letters`, the user's in a JSON file
in Great Expectations' format for suites.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dagster as dg

from sharequeue.domain.names import nearest

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")
SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation: the check's name, its description, and the core expectation with its
    arguments.

    ``kind`` is the class's name in ``great_expectations.expectations``; empty for checks without one.
    """

    check: str
    description: str
    kind: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    severity: str = "critical"

    @property
    def dagster_severity(self) -> dg.AssetCheckSeverity:
        """ERROR if it is critical, else WARN."""
        return dg.AssetCheckSeverity.ERROR if self.severity == "critical" else dg.AssetCheckSeverity.WARN


class SuiteUnreadable(ValueError):
    """The file is not a suite of Great Expectations; the message has the file and the reason."""


def suite_of(path: Path, taken: Collection[str] = ()) -> tuple[Expectation, ...]:
    """Read a user's suite from JSON, each expectation with the name of its check.

    The name is `meta.check` if given, else it is made of the type and the columns. Raises SuiteUnreadable, also for a
    name in `taken`, which are those of our checks.
    """
    found: dict[str, Expectation] = {}
    for number, each in enumerate(read_suite(path)):
        expectation = _given(path, number, each)
        if not expectation.check or expectation.check in taken:
            raise SuiteUnreadable(
                f"{path}: expectation {number} would have the check {expectation.check!r}: give it another name, of "
                'letters, digits and underscores, that no check of ours has: `"meta": {"check": "…"}`'
            )
        if expectation.check in found:
            raise SuiteUnreadable(
                f"{path}: two expectations have the name {expectation.check!r}: give one of them another name, "
                '`"meta": {"check": "…"}`'
            )
        found[expectation.check] = expectation
    return tuple(found.values())


def read_suite(path: Path) -> list[Any]:
    """Return the expectations of a suite as they are written in JSON. Raises SuiteUnreadable."""
    try:
        # Some editors begin a file with a byte order mark.
        text = path.read_text("utf-8-sig")
        read = json.loads(text, object_pairs_hook=_each_once, parse_constant=_refuse_constant)
    except OSError as error:
        raise SuiteUnreadable(f"{path}: {error.strerror}: expected a suite of Great Expectations") from error
    except RecursionError as error:
        raise SuiteUnreadable(f"{path} is nested too deeply") from error
    except ValueError as error:
        raise SuiteUnreadable(f"{path} is not JSON: {error}") from error
    given = read.get("expectations") if isinstance(read, dict) else None
    if not isinstance(given, list) or not given:
        raise SuiteUnreadable(
            f"{path} is not a suite of Great Expectations: expected an object with a list `expectations`, not empty"
        )
    return given


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raises ValueError for a name that it has twice: one would be dropped silently."""
    named = dict(pairs)
    if len(named) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has {max(names, key=names.count)!r} twice")
    return named


def _refuse_constant(text: str) -> None:
    """Raise ValueError for NaN and the infinities, which JSON does not have: no value is below or above NaN."""
    raise ValueError(f"{text} is not a number")


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
    _refuse_unknown(f"{path}: expectation {number}", kind, arguments)
    name = _NOT_IN_NAMES.sub("_", str(meta.get("check") or "_".join(parts))).strip("_")
    return Expectation(name, str(each.get("description") or kind), kind, arguments, severity)


def _refuse_unknown(where: str, kind: str, arguments: Mapping[str, Any]) -> None:
    """Raise SuiteUnreadable for an expectation that the installed Great Expectations does not have, or whose keywords
    it refuses. Without Great Expectations nothing is checked: its checks cannot run either.
    """
    package = find_spec("great_expectations")
    if package is None or package.origin is None:
        return
    core = Path(package.origin).parent / "expectations" / "core"
    known = sorted(path.stem for path in core.glob("*.py") if not path.stem.startswith("_"))
    if kind not in known:
        raise SuiteUnreadable(f"{where}: Great Expectations has no `{kind}`. {nearest(kind, known, 'types')}")
    # A few older expectations have no schema: their keywords are checked when they are executed.
    schemas = {path.stem.lower(): path for path in (core / "schemas").glob("*.json")}
    if (at := schemas.get(kind.replace("_", ""))) is None:
        return
    schema = json.loads(at.read_text())
    if strange := sorted(arguments.keys() - schema["properties"].keys()):
        hint = nearest(strange[0], schema["properties"], "keywords")
        raise SuiteUnreadable(f"{where}: `{kind}` has no keyword {strange[0]!r}. {hint}")
    if absent := sorted(set(schema.get("required", ())) - arguments.keys()):
        raise SuiteUnreadable(f"{where}: `{kind}` needs {', '.join(absent)} in `kwargs`")
