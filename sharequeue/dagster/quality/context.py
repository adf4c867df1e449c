"""The Great Expectations context: suites, checkpoints, validation results and Data Docs.

It is a context on disk, as Great Expectations creates it: `<home>/great_expectations/<group>/gx`. It has our suite
as JSON next to the user's own, one checkpoint that validates both, all validation results, and Data Docs, which the
service shows.
Open it with `great_expectations.get_context(mode="file", project_root_dir=…)`.
"""

import fcntl
import importlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharequeue.dagster.quality.expectations import Expectation, read_suite
from sharequeue.dagster.quality.findings import SHOWN, Found, LetterFinding
from sharequeue.reports.data_docs import is_of_life, site_folder

if TYPE_CHECKING:
    import pandas as pd

BUILT_IN, USERS = "built_in", "users"
SITE = "local_site"
_ROWS = {
    "result_format": "SUMMARY",
    "unexpected_index_column_names": ["dlq_partition", "dlq_offset"],
    "partial_unexpected_count": SHOWN,
}
REASON_CHARACTERS = 500
"""The length of the reason why a check failed."""
KEPT_VALIDATIONS = 100
"""The number of validation results, and of their pages, to keep; older ones are removed."""


@dataclass(frozen=True, slots=True)
class QualityContext:
    """The context of one group; `user_suite` is the user's JSON, with the expectations `users`."""

    folder: Path
    built_in: Sequence[Expectation]
    user_suite: Path | None = None
    users: Sequence[Expectation] = ()
    created_at: datetime | None = None
    """When the group was created. What is older is of a deleted group of the same name, and is removed."""

    @contextmanager
    def open(self) -> Iterator["Validator"]:
        """Open the context for some validations. Only one process at a time may use its files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            site = site_folder(self.folder)
            if self.created_at and site.exists() and not is_of_life(site, self.created_at):
                shutil.rmtree(self.folder / "gx")
            yield Validator(self)
            for kept in (self.folder / "gx" / "uncommitted", site):
                _remove_old(kept / "validations")


class Validator:
    """Validates batches with the group's checkpoint."""

    def __init__(self, given: QualityContext) -> None:
        self._given = given
        self._problems: dict[str, str] = {}
        """Why an expectation of the user's suite is not in the checkpoint, by its check."""
        self._checkpoint, self._batch, self._users = _checkpoint(given, self._problems)
        self._number = 0

    def validate(
        self, frame: "pd.DataFrame", run_name: str, finding: Callable[[Mapping[str, Any]], LetterFinding]
    ) -> dict[str, Found]:
        """Validate one batch with both suites, store the results and update the Data Docs. Return what each check
        has found; `finding` makes a finding from the cells of a letter. An expectation without a result has failed.
        """
        self._number += 1
        result = self._run({"dataframe": frame}, f"{run_name}-{self._number}")
        found = {
            str(each.expectation_config.meta["check"]): _found(each, finding)
            for validated in result.run_results.values()
            for each in validated.results
        }
        for check in (each.check for each in (*self._given.built_in, *self._given.users)):
            if check not in found:
                found[check] = Found()
                found[check].problem = self._problems.get(
                    check, "Great Expectations returned no result for it"
                )
        return found

    def _run(self, batch: Mapping[str, Any], run_name: str) -> Any:
        """Run the checkpoint on a batch. If that raises, leave out what is at fault in the user's suite."""
        from great_expectations.core.run_identifier import RunIdentifier

        run_id = RunIdentifier(run_name=run_name)
        try:
            return self._checkpoint.run(batch_parameters=batch, run_id=run_id)
        except Exception as error:
            if not self._users:
                raise
            whole = self._batch.get_batch(batch_parameters=batch)
            faults = {each.meta["check"]: _fault(whole, each) for each in self._users}
            found = {check: fault for check, fault in faults.items() if fault}
            # If each is right by itself, none of them can be evaluated.
            self._problems |= found or dict.fromkeys(faults, _reason(error))
            self._checkpoint, self._batch, self._users = _checkpoint(self._given, self._problems)
            return self._run(batch, run_name)


@contextmanager
def imported_ahead() -> Iterator[None]:
    """Import Great Expectations in a thread during the block: that takes seconds, in which a run waits for a broker.
    What is wrong with it, the checks say.

    The block ends after the import: if two threads import from PySpark or pandas at the same time, both may fail.
    """

    def imported() -> None:
        with suppress(Exception):
            _imported()

    thread = threading.Thread(target=imported, name="great-expectations")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _imported() -> Any:
    """Return the package. Raises ImportError."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    try:
        return importlib.import_module("great_expectations")
    except SystemExit:
        # It imports Spark Connect's client, which ends the process if one of its packages is missing.
        raise ImportError(
            "Great Expectations cannot be imported, because packages of Spark Connect are missing: pip install "
            "'pyspark[connect]', in the version of PySpark that is installed."
        ) from None


def _fault(batch: Any, expectation: Any) -> str | None:
    """Return why an expectation alone cannot be evaluated on a batch, or its result not be stored; None if it can."""
    try:
        json.dumps(batch.validate(expectation, result_format=_ROWS).to_json_dict())
    except Exception as error:
        return _reason(error)
    return None


def _reason(error: Exception) -> str:
    """Return why an expectation could not be evaluated."""
    return _shortened(f"could not be evaluated: {type(error).__name__}: {error}")


def _shortened(reason: str) -> str:
    """Return a reason on one line, of a length that can be shown: some have every value of a column."""
    line = " ".join(reason.split())
    return line if len(line) <= REASON_CHARACTERS else f"{line[: REASON_CHARACTERS - 1]}…"


def _found(result: Any, finding: Callable[[Mapping[str, Any]], LetterFinding]) -> Found:
    """Return what an expectation has found, from Great Expectations' result."""
    found, outcome = Found(), result.result or {}
    if not result.success:
        rows = outcome.get("partial_unexpected_index_list") or ()
        found.add("", int(outcome.get("unexpected_count") or 0), map(finding, rows))
        found.problem = _not_evaluated(result.exception_info)
        if found.problem is None and not found.counts:
            # An expectation about the whole table has no rows to show.
            found.problem = _shortened(f"observed {outcome.get('observed_value')}")
    return found


def _not_evaluated(exception_info: Any) -> str | None:
    """Return why an expectation could not be evaluated; None if it was.

    If an expectation raised, that is not a result about the data. GX puts it into the result, in two forms.
    """
    given = exception_info or {}
    for info in [given, *(value for value in given.values() if isinstance(value, dict))]:
        if info.get("raised_exception"):
            return _shortened(f"could not be evaluated: {info.get('exception_message') or 'unknown error'}")
    return None


def _checkpoint(given: QualityContext, problems: dict[str, str]) -> tuple[Any, Any, list[Any]]:
    """Return the group's checkpoint, its batch definition, and the user's expectations in it.

    Those whose checks are in `problems` are not in it, and one that Great Expectations cannot create is added to
    them: each would cost all others their result.
    """
    gx = _imported()
    import great_expectations.expectations as gxe
    from great_expectations.checkpoint.actions import UpdateDataDocsAction
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="file", project_root_dir=given.folder)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    known = SITE in context.list_data_docs_sites()
    site: Any = {
        "class_name": "SiteBuilder",
        # With them each page would open with a tour.
        "show_how_to_buttons": False,
        "store_backend": {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": str(site_folder(given.folder)),
        },
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }
    (context.update_data_docs_site if known else context.add_data_docs_site)(SITE, site)
    source = context.data_sources.add_or_update_pandas("dead_letters")
    batch = source.add_dataframe_asset("letters").add_batch_definition_whole_dataframe("batch")
    built: list[Any] = [
        getattr(gxe, each.kind)(
            **each.arguments,
            severity=each.severity,
            description=each.description,
            meta={"check": each.check},
        )
        for each in given.built_in
    ]
    suites = [gx.ExpectationSuite(name=BUILT_IN, expectations=built)]
    users = [] if given.user_suite is None else _users_expectations(given, problems)
    if given.user_suite is not None:
        suites.append(gx.ExpectationSuite(name=USERS, expectations=users))
    definitions = [
        context.validation_definitions.add_or_update(
            gx.ValidationDefinition(name=suite.name, data=batch, suite=context.suites.add_or_update(suite))
        )
        for suite in suites
    ]
    checkpoint = context.checkpoints.add_or_update(
        gx.Checkpoint(
            name="dead_letters",
            validation_definitions=definitions,
            actions=[UpdateDataDocsAction(name="data_docs", site_names=[SITE])],
            result_format=_ROWS,
        )
    )
    return checkpoint, batch, users


def _users_expectations(given: QualityContext, problems: dict[str, str]) -> list[Any]:
    """Create the expectations of the user's suite; add to `problems` why one cannot be created."""
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    assert given.user_suite is not None  # noqa: S101 - the caller has checked it
    made = []
    for each, expectation in zip(read_suite(given.user_suite), given.users, strict=True):
        if expectation.check in problems:
            continue
        named = {**each, "meta": {**(each.get("meta") or {}), "check": expectation.check}}
        # An id is of the suite in which it was stored.
        named.pop("id", None)
        try:
            made.append(ExpectationConfiguration(**named).to_domain_obj())
        except Exception as error:
            problems[expectation.check] = _reason(error)
    return made


def _remove_old(folder: Path) -> None:
    """Remove all but the newest results: one folder for each run, in one for each suite."""
    runs = sorted(
        (path for path in folder.glob("*/*") if path.is_dir()), key=lambda path: path.stat().st_mtime
    )
    for path in runs[:-KEPT_VALIDATIONS]:
        shutil.rmtree(path, ignore_errors=True)
