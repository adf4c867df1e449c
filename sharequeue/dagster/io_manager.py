"""Let a downstream asset take the accepted records of a share group, or one of its summaries, as its input.

The type of the input decides what it gets: a DataFrame of pandas or Spark, or a table or dataset of Arrow. Only
Spark's DataFrame starts Spark. An input has the rows that count when the step begins, each record once.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from sharequeue.dagster.names import PIPELINE, SUMMARY, dagster_name
from sharequeue.dagster.references import Reference
from sharequeue.dagster.resources import SettingsResource, SparkResource
from sharequeue.database import Database
from sharequeue.domain.names import folder_name
from sharequeue.domain.settings import Settings
from sharequeue.outputs import output_dataset
from sharequeue.outputs.errors import NotFiles
from sharequeue.state import State

if TYPE_CHECKING:
    from pathlib import Path

    from pyarrow.dataset import Dataset

_GROUP = "share_group"
COLUMNS = "columns"
"""The metadata of an input that names its columns, as in Dagster's other IO managers."""

_Rows = Callable[["Dataset", list[str] | None], Any]
_KINDS: Mapping[tuple[str, str], _Rows] = {
    ("pandas", "DataFrame"): lambda rows, columns: rows.to_table(columns=columns).to_pandas(),
    ("pyarrow", "Table"): lambda rows, columns: rows.to_table(columns=columns),
    ("pyarrow", "Dataset"): lambda rows, columns: rows,
}
_SPARK = ("pyspark", "DataFrame")
_KNOWN = "pandas.DataFrame, pyarrow.Table, pyarrow.dataset.Dataset or pyspark.sql.DataFrame"


class OutputIOManager(dg.ConfigurableIOManager):
    """Loads the output of a share group for an asset downstream. It stores nothing: a run of the group does."""

    settings: dg.ResourceDependency[SettingsResource]
    spark: dg.ResourceDependency[SparkResource]

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Refuse a value: only a run of a share group writes its output."""
        raise dg.Failure(
            f"{context.asset_key.to_user_string()} returned a value for the IO manager of share groups, which only "
            "loads their output: give the asset another `io_manager_key`",
            allow_retries=False,
        )

    def load_input(self, context: dg.InputContext) -> Any:
        """Return the rows of the asset upstream, in the type of the input. Raises dg.Failure for a type that it does
        not know, and for an output that is not in files.
        """
        kind = _kind(context)
        of_asset = context.upstream_output.definition_metadata if context.upstream_output else None
        if not of_asset or not {_GROUP, PIPELINE} <= set(of_asset):
            raise dg.Failure(
                f"{context.asset_key.to_user_string()} is not the output of a share group: the input "
                f"{context.name} needs another IO manager",
                allow_retries=False,
            )
        columns = context.definition_metadata.get(COLUMNS)
        chosen = None if columns is None else list(columns)
        try:
            return self._load(kind, of_asset, chosen)
        except NotFiles as error:
            raise dg.Failure(f"{context.asset_key.to_user_string()}: {error}", allow_retries=False) from error

    def _load(self, kind: tuple[str, str], of_asset: Mapping[str, Any], columns: list[str] | None) -> Any:
        settings, group = self.settings.load(), str(of_asset[_GROUP])
        if SUMMARY in of_asset:
            return self._load_summary(kind, summary_file(settings, group, of_asset[SUMMARY]), columns)
        sink = sink_of(str(of_asset[PIPELINE]), group)
        with Database.open(settings) as database:
            if kind != _SPARK:
                return _KINDS[kind](output_dataset(State(database), group, sink, known=[sink]), columns)
            from sharequeue.spark import read_output

            session = self.spark.session(f"{group} output")
            rows = read_output(session, State(database), group, sink, known=[sink])
        return rows if columns is None else rows.select(*columns)

    def _load_summary(self, kind: tuple[str, str], file: "Path", columns: list[str] | None) -> Any:
        if kind == _SPARK:
            rows = self.spark.session("summary").read.parquet(str(file))
            return rows if columns is None else rows.select(*columns)
        from pyarrow.dataset import dataset

        return _KINDS[kind](dataset(str(file), format="parquet"), columns)


def summary_file(settings: Settings, group: str, name: str) -> "Path":
    """Return the file of a merged summary."""
    return settings.local_output / folder_name(dagster_name(group)) / f"{name}.parquet"


def _kind(context: dg.InputContext) -> tuple[str, str]:
    """Return the library and the name of an input's type."""
    wanted = context.dagster_type.typing_type
    kind = (
        str(getattr(wanted, "__module__", "")).partition(".")[0],
        str(getattr(wanted, "__name__", wanted)),
    )
    if kind not in (*_KINDS, _SPARK):
        raise dg.Failure(
            f"the input {context.name} of {context.asset_key.to_user_string()} has the type {kind[1]}: give the "
            f"argument the type {_KNOWN}",
            allow_retries=False,
        )
    return kind


def sink_of(pipeline: str, group: str) -> str:
    """Return the sink of a pipeline; a plain handler has the output of its group. The pipeline is imported, which
    does not start Spark.
    """
    from sharequeue.spark import Pipeline

    found = Reference.parse(pipeline).load()
    return found.sink if isinstance(found, Pipeline) else dagster_name(group)


__all__ = ["OutputIOManager", "sink_of", "summary_file"]
