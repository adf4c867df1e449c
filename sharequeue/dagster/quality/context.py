"""The Great Expectations context: suites, checkpoints, validation results and Data Docs.

It is a context on disk, as Great Expectations creates it: `<home>/great_expectations/<group>/gx`. It has our suite
as JSON next to the user's own, one checkpoint that validates both, all validation results, and Data Docs, which the
service shows.
Open it with `great_expectations.get_context(mode="file", project_root_dir=…)`.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharequeue.dagster.quality.expectations import Expectation, Verdict, verdict
from sharequeue.reports.data_docs import site_folder

if TYPE_CHECKING:
    import pandas as pd

BUILT_IN = "built_in"
USERS = "users"
SITE, COPY = "local_site", "copy"
"""The Data Docs in the context, and a second site if the user names a folder."""
_ROWS = {
    "result_format": "SUMMARY",
    "unexpected_index_column_names": ["dlq_partition", "dlq_offset"],
    "partial_unexpected_count": 20,
}
KEPT_VALIDATIONS = 100
"""The number of validation results, and of their pages, to keep; older ones are removed."""


@dataclass(frozen=True, slots=True)
class QualityContext:
    """The context of one group. `user_suite` is the user's JSON; `data_docs` is the folder of a copy of the site."""

    folder: Path
    built_in: Sequence[Expectation]
    user_suite: Path | None = None
    users: Sequence[Expectation] = ()
    data_docs: Path | None = None

    @property
    def sites(self) -> dict[str, Path]:
        """The folders of the Data Docs, by the names of the sites."""
        copies = {} if self.data_docs is None else {COPY: self.data_docs}
        return {SITE: site_folder(self.folder), **copies}

    @contextmanager
    def open(self) -> Iterator["Validator"]:
        """Open the context for some validations. Only one process at a time may use its files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Validator(self, _checkpoint(self))
            for kept in (self.folder / "gx" / "uncommitted", *self.sites.values()):
                _remove_old(kept / "validations")


class Validator:
    """Validates batches with the group's checkpoint."""

    def __init__(self, context: QualityContext, checkpoint: Any) -> None:
        self._context = context
        self._checkpoint = checkpoint
        self._number = 0

    def validate(self, frame: "pd.DataFrame", run_name: str) -> dict[str, Verdict]:
        """Validate one batch with both suites, store the results and update the Data Docs. Return them by check."""
        from great_expectations.core.run_identifier import RunIdentifier

        self._number += 1
        result = self._checkpoint.run(
            batch_parameters={"dataframe": frame},
            run_id=RunIdentifier(run_name=f"{run_name}-{self._number}"),
        )
        found: dict[str, Verdict] = {}
        for validated in result.run_results.values():
            names = _names(self._context) if validated.suite_name == USERS else None
            for each in validated.results:
                config = each.expectation_config
                name = names[str(config.id)] if names else str((config.meta or {})["check"])
                found[name] = verdict(each)
        return found


def _names(context: QualityContext) -> dict[str, str]:
    """Map the id of each user expectation in the context's copy of the suite to its check."""
    stored = json.loads((context.folder / "gx" / "expectations" / f"{USERS}.json").read_text())
    return {
        str(each["id"]): expectation.check
        for each, expectation in zip(stored["expectations"], context.users, strict=True)
    }


def _checkpoint(given: QualityContext) -> Any:
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    import great_expectations.expectations as gxe
    from great_expectations.checkpoint.actions import UpdateDataDocsAction
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="file", project_root_dir=given.folder)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    for name, folder in given.sites.items():
        known = name in context.list_data_docs_sites()
        put = context.update_data_docs_site if known else context.add_data_docs_site
        put(name, _site(folder))
    source = context.data_sources.add_or_update_pandas("dead_letters")
    batch = source.add_dataframe_asset("letters").add_batch_definition_whole_dataframe("batch")

    def built(expectation: Expectation) -> Any:
        return getattr(gxe, expectation.kind)(
            **expectation.arguments,
            severity=expectation.severity,
            description=expectation.description,
            meta={"check": expectation.check},
        )

    suites = [gx.ExpectationSuite(name=BUILT_IN, expectations=[built(each) for each in given.built_in])]
    if given.user_suite is not None:
        read = json.loads(given.user_suite.read_text())
        suites.append(gx.ExpectationSuite(name=USERS, expectations=read["expectations"]))
    definitions = [
        context.validation_definitions.add_or_update(
            gx.ValidationDefinition(name=suite.name, data=batch, suite=context.suites.add_or_update(suite))
        )
        for suite in suites
    ]
    return context.checkpoints.add_or_update(
        gx.Checkpoint(
            name="dead_letters",
            validation_definitions=definitions,
            actions=[UpdateDataDocsAction(name="data_docs", site_names=list(given.sites))],
            result_format=_ROWS,
        )
    )


def _site(folder: Path) -> Any:
    """Return the config of a site. Without `show_how_to_buttons` each page would open with a tour."""
    return {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)},
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }


def _remove_old(folder: Path) -> None:
    """Remove all but the newest results: one folder for each run, in one for each suite."""
    runs = sorted(
        (path for path in folder.glob("*/*") if path.is_dir()), key=lambda path: path.stat().st_mtime
    )
    for path in runs[:-KEPT_VALIDATIONS]:
        shutil.rmtree(path, ignore_errors=True)
