"""Open the output of a sink with Arrow: the files that count, with the columns of all of them.

The rows are those of `sharequeue.spark.read_output`: each file counts once its lease's acknowledgement has committed.
A column that was added later is null in the older files, and a column whose type was widened has the wider type
(`columns`). Nothing of the rows is read before the caller asks for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from sharequeue.domain.errors import first_line
from sharequeue.outputs.errors import damaged, named_leases
from sharequeue.outputs.manifest import leases_by_folder
from sharequeue.outputs.stores import filesystem_of, path_in
from sharequeue.state import State

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs
    from pyarrow.dataset import Dataset

MOST_READERS = 32
"""The most folders whose files are looked up at the same time."""


def output_dataset(
    state: State,
    group: str,
    sink: str,
    schema: pa.Schema | None = None,
    *,
    filesystem: fs.FileSystem | None = None,
    known: Collection[str] = (),
    leases: Collection[int] | None = None,
) -> Dataset:
    """Return the current rows of a sink as an Arrow dataset: rows of acknowledged leases only, each record once.

    Works for `<sink>-exceptions` and `<sink>-<summary>` too. `schema` names the columns instead of the files. Where
    nothing was accepted, the dataset is empty, and has columns only if `schema` names them. `filesystem` is used in
    place of Arrow's own client of the store. With `leases`, only rows of these leases are in it.

    Raises ColumnChanged for a column with incompatible types, OutputDamaged for missing files, NotFiles if the rows
    are not in files, and NoSuchSink for a sink that never had an output, unless it is one of those `known` to exist.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    from sharequeue.outputs.columns import read_columns, together

    folders = leases_by_folder(state, group, sink, known=known)
    if leases is not None:
        folders = {folder: ids for folder, ids in folders.items() if not {*leases}.isdisjoint(ids)}
    if not folders:
        return ds.dataset((schema or pa.schema([])).empty_table())
    found: list[tuple[fs.FileSystem, list[str]]] = []
    shapes: list[pa.Schema] = []
    with ThreadPoolExecutor(min(MOST_READERS, 4 * (os.cpu_count() or 1))) as pool:
        for store, paths in _by_store(folders, filesystem):
            named = {path: f"{named_leases(folders[folder])} in {folder}" for path, folder in paths.items()}
            listed = list(pool.map(partial(_files, store), named, named.values()))
            files = {file: of for some, of in zip(listed, named.values(), strict=True) for file in some}
            if schema is None:
                shapes += pool.map(partial(_readable, read_columns, store), files, files.values())
            found.append((store, list(files)))
    whole = together(shapes) if schema is None else schema
    # Spark may write times as INT96, which Arrow would read as nanoseconds: these end in the year 2262.
    parquet = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    parts = [ds.dataset(files, schema=whole, format=parquet, filesystem=store) for store, files in found]
    rows = parts[0] if len(parts) == 1 else ds.dataset(parts)
    # A folder that was compacted has rows of other leases, too.
    return rows if leases is None else rows.filter(ds.field("lease_id").isin([*leases]))


def _by_store(
    folders: Collection[str], given: fs.FileSystem | None
) -> list[tuple[fs.FileSystem, Mapping[str, str]]]:
    """Return the file systems of folders, each with the folders in it by their paths there."""
    if given is not None:
        return [(given, {path_in(folder): folder for folder in folders})]
    stores: dict[str, tuple[fs.FileSystem, dict[str, str]]] = {}
    roots: dict[str, tuple[str, str]] = {}
    for folder in folders:
        root = _root(folder)
        if root not in roots:
            # One client for all sinks of a store: an output may have moved to another folder of it.
            store, path = filesystem_of(root)
            name = f"{store.type_name} {root.removesuffix(path)}"
            stores.setdefault(name, (store, {}))
            roots[root] = (name, path)
        name, path = roots[root]
        stores[name][1][path + folder.removeprefix(root)] = folder
    return list(stores.values())


def _root(folder: str) -> str:
    """Return the folder of the sink: the rest has one name after a compaction, else two."""
    root, _, name = folder.rpartition("/")
    return root if name.startswith("compacted=") else root.rpartition("/")[0]


def _files(store: fs.FileSystem, path: str, named: str) -> Sequence[str]:
    """Return the data files in a folder. Raises OutputDamaged if there is none."""
    from pyarrow.fs import FileSelector, FileType

    try:
        entries = store.get_file_info(FileSelector(path))
    except FileNotFoundError as error:
        raise damaged(named, first_line(error)) from error
    files = [each.path for each in entries if each.type == FileType.File and each.base_name[0] not in "._"]
    if not files:
        raise damaged(named, "there is no file in it")
    return sorted(files)


def _readable(
    read: Callable[[fs.FileSystem, str], pa.Schema], store: fs.FileSystem, file: str, named: str
) -> pa.Schema:
    """Return the columns of a file. Raises OutputDamaged if it is not a Parquet file any more."""
    import pyarrow as pa

    try:
        return read(store, file)
    except (pa.ArrowInvalid, FileNotFoundError) as error:
        raise damaged(named, f"{file}: {first_line(error)}") from error
