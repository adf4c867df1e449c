"""Let a downstream asset take the accepted records of a share group, or one of its summaries, as its input.

The type of the input decides what it gets: a DataFrame of pandas or Spark, or a table or dataset of Arrow. Only
Spark's DataFrame starts Spark. An input has the rows that count when the step begins, each record once.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg

from sharequeue.dagster.names import LAUNCHED, PIPELINE, SUMMARY, dagster_name
from sharequeue.dagster.references import Reference
from sharequeue.dagster.resources import SettingsResource, SparkResource
from sharequeue.database import Database
from sharequeue.domain.errors import first_line
from sharequeue.domain.names import nearest
from sharequeue.domain.settings import Settings
from sharequeue.outputs.dataset import OpenOutput, open_output, parquet_format
from sharequeue.outputs.errors import NotFiles, OutputDamaged
from sharequeue.outputs.manifest import newest_sink
from sharequeue.outputs.stores import filesystem_of
from sharequeue.outputs.summaries import summary_file
from sharequeue.state import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GROUP = "share_group"
COLUMNS = "columns"
"""The metadata of an input that names its columns, as in Dagster's other IO managers."""

_LIKE = 0.85
"""The similarity from which on another key of the metadata is taken for a misspelt one."""

_KINDS: Mapping[tuple[str, str], Callable[[OpenOutput], Any]] = {
    ("pandas", "DataFrame"): lambda found: found.table().to_pandas(),
    ("pyarrow", "Table"): lambda found: found.table(),
    ("pyarrow", "Dataset"): lambda found: found.rows,
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
        """Return the rows of the asset upstream, in the type of the input. Raises dg.Failure for an unknown type or
        column, and for an output that is not in files.
        """
        kind, columns = _kind(context), _columns(context)
        of_asset = context.upstream_output.definition_metadata if context.upstream_output else None
        if not of_asset or not {_GROUP, PIPELINE} <= set(of_asset):
            raise dg.Failure(
                f"{context.asset_key.to_user_string()} is not the output of a share group: the input "
                f"{context.name} needs another IO manager",
                allow_retries=False,
            )
        try:
            return self._load(kind, of_asset, columns)
        except (NotFiles, _NotLoaded) as error:
            raise dg.Failure(f"{context.asset_key.to_user_string()}: {error}", allow_retries=False) from error

    def _load(self, kind: tuple[str, str], of_asset: Mapping[str, Any], columns: Sequence[str] | None) -> Any:
        settings, group, launched = self.settings.load(), str(of_asset[_GROUP]), LAUNCHED in of_asset
        if SUMMARY in of_asset:
            root = summaries_root(settings, launched=launched)
            return self._load_summary(kind, root, dagster_name(group), str(of_asset[SUMMARY]), columns)
        with Database.open(settings) as database:
            state = State(database)
            sink = sink_of(str(of_asset[PIPELINE]), group, state, launched=launched)
            if kind != _SPARK:
                return _KINDS[kind](_chosen(open_output(state, group, sink, known=[sink]), columns))
            from sharequeue.spark import read_output

            session = self.spark.session(f"{group} output")
            return _selected(session, read_output(session, state, group, sink, known=[sink]), columns)

    def _load_summary(
        self, kind: tuple[str, str], root: str, output: str, summary: str, columns: Sequence[str] | None
    ) -> Any:
        from pyarrow import ArrowInvalid
        from pyarrow.dataset import dataset
        from pyarrow.fs import FileType

        store, path = filesystem_of(root)
        file, shown = summary_file(path, output, summary), summary_file(root, output, summary)
        if store.get_file_info(file).type == FileType.NotFound:
            raise _NotLoaded(f"there is no file {shown} yet: materialize the summary first")
        if kind == _SPARK:
            session = self.spark.session("summary")
            return _selected(session, session.read.parquet(shown), columns)
        try:
            rows = dataset(file, format=parquet_format(), filesystem=store)
            return _KINDS[kind](_chosen(OpenOutput(rows, rows, {file: "the summary"}), columns))
        except (ArrowInvalid, OSError, OutputDamaged) as error:
            raise _NotLoaded(
                f"{shown} cannot be read: materialize the summary again. The error: {first_line(error)}"
            ) from error


class _NotLoaded(Exception):
    """An input that cannot be loaded; the message has the reason."""


def summaries_root(settings: Settings, *, launched: bool) -> str:
    """Return the root of the files of summaries: the outputs, if a driver elsewhere writes them, which may have no
    folder of this machine.
    """
    return settings.output if launched else str(settings.local_output)


def _columns(context: dg.InputContext) -> Sequence[str] | None:
    """Return the columns that the metadata of an input names; None for all. Raises dg.Failure for another value than
    a list of names, and for a misspelt key.
    """
    metadata = context.definition_metadata
    what = f"the metadata of the input {context.name} of {context.asset_key.to_user_string()}"
    for key in metadata:
        if key != COLUMNS and difflib.get_close_matches(key.lower(), [COLUMNS], cutoff=_LIKE):
            raise dg.Failure(f"{what} has {key!r}: did you mean {COLUMNS!r}?", allow_retries=False)
    given = metadata.get(COLUMNS)
    if given is None:
        return None
    is_list = isinstance(given, list | tuple) and all(isinstance(each, str) for each in given)
    if not is_list or not given or len({*given}) < len(given):
        raise dg.Failure(
            f"{what} has {given!r} as {COLUMNS!r}: expected a list of different names, such as ['note']",
            allow_retries=False,
        )
    return tuple(given)


def _chosen(found: OpenOutput, columns: Sequence[str] | None) -> OpenOutput:
    """Return an output with these columns only."""
    if columns is None:
        return found
    import pyarrow as pa
    from pyarrow.dataset import dataset

    schema = found.rows.schema
    if not schema.names:
        return replace(found, rows=dataset(pa.schema([(each, pa.null()) for each in columns]).empty_table()))
    _check(columns, schema.names)
    return replace(found, rows=found.rows.replace_schema(pa.schema([schema.field(each) for each in columns])))


def _selected(session: "SparkSession", rows: "DataFrame", columns: Sequence[str] | None) -> "DataFrame":
    """Return the same of Spark's rows."""
    if columns is None:
        return rows
    from sharequeue.spark.sql_texts import quoted

    if not rows.columns:
        return session.createDataFrame([], ", ".join(f"{quoted(each)} void" for each in columns))
    _check(columns, rows.columns)
    return rows.select(*map(quoted, columns))


def _check(columns: Sequence[str], known: Sequence[str]) -> None:
    for each in columns:
        if each not in known:
            raise _NotLoaded(f"it has no column {each!r}. {nearest(each, known, 'columns')}")


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


def sink_of(pipeline: str, group: str, state: State, *, launched: bool) -> str:
    """Return the sink of a pipeline; a plain handler has the output of its group. The pipeline is imported, which
    does not start Spark, unless its driver is launched elsewhere: then the state has the sink.
    """
    if launched:
        return newest_sink(state, group) or dagster_name(group)
    from sharequeue.spark import Pipeline

    found = Reference.parse(pipeline).load()
    return found.sink if isinstance(found, Pipeline) else dagster_name(group)


__all__ = ["OutputIOManager", "sink_of", "summaries_root"]
