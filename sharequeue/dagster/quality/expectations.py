"""How does one Great Expectations suite become Dagster asset checks?

One ``AssetCheckSpec`` per expectation, known without importing Great Expectations (3 s, and Dagster loads
definitions often); one validation of one pandas batch checks them all. Severity belongs to the expectation:
``critical`` ends as ERROR, ``warning`` as WARN. What is expected of which asset is in the modules beside
this one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg

if TYPE_CHECKING:
    import pandas as pd

Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation: the check's name, its description for a reader, and the core expectation with its
    arguments.

    ``kind`` is the class's name in ``great_expectations.expectations``. ``only_if`` is a ``(column, value)``
    pair: rows with another value in that column are left out.
    """

    check: str
    description: str
    kind: str
    arguments: Arguments = field(default_factory=dict)
    severity: Literal["critical", "warning"] = "critical"
    only_if: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one expectation; ``unexpected`` holds examples, at most twenty."""

    expectation: Expectation
    passed: bool
    elements: int
    unexpected_count: int
    unexpected: tuple[str, ...]
    problem: str | None

    def to_check_result(self, asset: dg.AssetKey) -> dg.AssetCheckResult:
        """The asset check's result: ERROR for a critical expectation, WARN for the others."""
        expectation = self.expectation
        metadata: dict[str, Any] = {
            "elements_records": self.elements,
            "unexpected_records": self.unexpected_count,
            "expectation": expectation.kind,
        }
        if self.unexpected:
            metadata["unexpected_examples"] = dg.MetadataValue.table(
                records=[dg.TableRecord({"value": value}) for value in self.unexpected],
                schema=dg.TableSchema(columns=[dg.TableColumn("value", "string")]),
            )
        if self.problem:
            metadata["problem"] = self.problem
        return dg.AssetCheckResult(
            passed=self.passed,
            asset_key=asset,
            check_name=expectation.check,
            severity=_SEVERITY[expectation.severity],
            description=expectation.description if self.passed else self._what_failed(),
            metadata=metadata,
        )

    def _what_failed(self) -> str:
        if self.problem:
            return f"could not be evaluated: {self.problem}"
        broken = f"{self.unexpected_count} of {self.elements} records break it."
        return f"{broken} Expected: {self.expectation.description}"


_SEVERITY = {"critical": dg.AssetCheckSeverity.ERROR, "warning": dg.AssetCheckSeverity.WARN}


def check_specs(
    asset: dg.AssetKey, expectations: Sequence[Expectation], after: Sequence[dg.AssetKey] = ()
) -> list[dg.AssetCheckSpec]:
    """One spec per expectation of ``asset``; ``after`` names assets that a run makes before it checks."""
    return [
        dg.AssetCheckSpec(
            name=expectation.check,
            asset=asset,
            description=expectation.description,
            additional_deps=list(after),
            metadata={"severity": expectation.severity},
        )
        for expectation in expectations
    ]


def validate(frame: "pd.DataFrame", name: str, expectations: Sequence[Expectation]) -> tuple[Verdict, ...]:
    """Validate ``frame`` against the suite ``name`` made of ``expectations``; one verdict each, in their
    order.
    """
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    batch = (
        context.data_sources.add_pandas(name)
        .add_dataframe_asset(name)
        .add_batch_definition_whole_dataframe(name)
        .get_batch(batch_parameters={"dataframe": frame})
    )
    suite = gx.ExpectationSuite(name=name, expectations=[_build(expectation) for expectation in expectations])
    outcome = batch.validate(suite, result_format="BASIC")
    by_check = {_check_name(result): result for result in outcome.results}
    return tuple(_verdict(expectation, by_check[expectation.check]) for expectation in expectations)


def evaluate(
    frame: "pd.DataFrame",
    asset: dg.AssetKey,
    expectations: Sequence[Expectation],
    log: Callable[[str], None],
) -> Iterator[dg.AssetCheckResult]:
    """The asset-check results of one validation; every failure is logged with its examples."""
    for verdict in validate(frame, asset.to_user_string().replace("/", "_"), expectations):
        if not verdict.passed:
            log(f"check {verdict.expectation.check} failed: {verdict.problem or list(verdict.unexpected)}")
        yield verdict.to_check_result(asset)


def _build(expectation: Expectation) -> Any:
    import great_expectations.expectations as gxe
    from great_expectations.expectations.row_conditions import Column

    arguments = dict(expectation.arguments)
    if expectation.only_if is not None:
        column, value = expectation.only_if
        arguments["row_condition"] = Column(column) == value
    return getattr(gxe, expectation.kind)(
        **arguments,
        severity=expectation.severity,
        description=expectation.description,
        meta={"check": expectation.check},
    )


def _check_name(result: Any) -> str:
    return str(result.expectation_config.meta["check"])


def _verdict(expectation: Expectation, result: Any) -> Verdict:
    outcome = result.result or {}
    return Verdict(
        expectation=expectation,
        passed=bool(result.success),
        elements=int(outcome.get("element_count") or 0),
        unexpected_count=int(outcome.get("unexpected_count") or 0),
        unexpected=tuple(str(value) for value in outcome.get("partial_unexpected_list") or ()),
        problem=_problem(result.exception_info),
    )


def _problem(exception_info: Any) -> str | None:
    """An expectation that raised is no verdict on the data; GX hides that in the result, in two shapes."""
    if not exception_info:
        return None
    for info in [exception_info, *(value for value in exception_info.values() if isinstance(value, dict))]:
        if info.get("raised_exception"):
            return str(info.get("exception_message") or "unknown error")
    return None
