"""Open the output of a sink with Arrow: the files that count, with the columns of all of them.

The rows are those of `sharequeue.spark.read_output`: each file counts once its lease's acknowledgement has committed.
A column that was added later is null in the older files, and a column whose type was widened has the wider type
(`columns`). Nothing of the rows is read before the caller asks for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sharequeue.domain.errors import first_line
from sharequeue.domain.names import whole_number
from sharequeue.outputs.errors import damaged, named_leases
from sharequeue.outputs.manifest import leases_by_folder
from sharequeue.outputs.stores import filesystem_of, path_in
from sharequeue.state import State

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs
    from pyarrow.dataset import Dataset, ParquetFileFormat

MOST_READERS = 32
"""The most folders whose files are looked up at the same time."""
LEASE_ID = "lease_id"
_OF_RECORDS = {"outcome", LEASE_ID, "offset"}
"""The columns of files whose rows are those of records."""
_PIECE_BYTES = 1 << 20


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

    Works for `<sink>-exceptions` and `<sink>-<summary>` too. `schema` names the columns instead of the files, which
    are not opened then. Where nothing was accepted, the dataset is empty, and has columns only if `schema` names
    them. `filesystem` is used in place of Arrow's own client of the store. With `leases`, the ids of leases, only
    their rows are in it.

    Raises ColumnChanged for a column with incompatible types, OutputDamaged for files that are missing or have
    another number of rows than the manifest, NotFiles if the rows are not in files, NoSuchSink for a sink that never
    had an output, unless it is one of those `known` to exist, TypeError for a lease that is not a number, and
    ValueError if rows of `leases` cannot be told from those of others.
    """
    return open_output(state, group, sink, schema, filesystem=filesystem, known=known, leases=leases).rows


@dataclass(frozen=True, slots=True)
class OpenOutput:
    """The rows of an output, and what each of their files has."""

    rows: Dataset
    files: Dataset
    """All rows of the files: Arrow names no files of rows that are filtered."""
    named: Mapping[str, str]
    """The leases and the folder of each file, as a text."""

    def table(self) -> pa.Table:
        """Read all rows. Raises OutputDamaged for a file whose rows cannot be read."""
        with self.naming_damage():
            return self.rows.to_table()

    @contextmanager
    def naming_damage(self) -> Iterator[None]:
        """Raise OutputDamaged, with the leases, for a file whose rows cannot be read in the block."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowInvalid, OSError):
            # The error does not have the file.
            for file in self.files.get_fragments():
                try:
                    for _ in file.to_batches(schema=self.rows.schema):
                        pass
                except (pa.ArrowInvalid, OSError) as error:
                    if is_damage(error, file.filesystem, file.path):
                        named = self.named[file.path]
                        raise damaged(named, f"{file.path}: {first_line(error)}") from error
            raise


def open_output(
    state: State,
    group: str,
    sink: str,
    schema: pa.Schema | None = None,
    *,
    filesystem: fs.FileSystem | None = None,
    known: Collection[str] = (),
    leases: Collection[int] | None = None,
) -> OpenOutput:
    """Return the rows of `output_dataset`, with the leases of each file."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    from sharequeue.outputs.columns import read_footer, together

    folders = leases_by_folder(state, group, sink, known=known)
    if leases is not None:
        leases = {whole_number("a lease of `leases`", each) for each in leases}
        folders = {folder: of for folder, of in folders.items() if not leases.isdisjoint(of)}
    if not folders:
        empty = ds.dataset((schema or pa.schema([])).empty_table())
        return OpenOutput(empty, empty, {})
    named = {folder: f"{named_leases(of)} in {folder}" for folder, of in folders.items()}
    stores: list[tuple[fs.FileSystem, list[str]]] = []
    folder_of: dict[str, str] = {}
    footers: list[tuple[str, tuple[pa.Schema, int]]] = []
    with ThreadPoolExecutor(min(MOST_READERS, 4 * (os.cpu_count() or 1))) as pool:
        for store, paths in _by_store(folders, filesystem):
            listed = pool.map(partial(_files, store), paths, [named[folder] for folder in paths.values()])
            here = {
                file: folder for files, folder in zip(listed, paths.values(), strict=True) for file in files
            }
            if schema is None:
                whose = [named[folder] for folder in here.values()]
                read = pool.map(partial(_readable, read_footer, store), here, whose)
                footers += zip(here.values(), read, strict=True)
            stores.append((store, list(here)))
            folder_of |= here
    if schema is None:
        _check_rows(sink, folders, named, footers)
        schema = together([columns for _, (columns, _) in footers])
    whole = _of_files(stores, schema)
    rows = whole if leases is None else _only(whole, leases, folders)
    return OpenOutput(rows, whole, {file: named[folder] for file, folder in folder_of.items()})


def parquet_format() -> ParquetFileFormat:
    """Return how the Parquet files of an output are read."""
    import pyarrow.dataset as ds

    return ds.ParquetFileFormat(
        # Spark may write times as INT96, which Arrow would read as nanoseconds: these end in the year 2262.
        coerce_int96_timestamp_unit="us",
        # Without it, most flipped bytes are other values, and no error.
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True),
    )


def _of_files(stores: Iterable[tuple[fs.FileSystem, list[str]]], schema: pa.Schema) -> Dataset:
    """Return the rows of Parquet files in one or several stores."""
    import pyarrow.dataset as ds

    parquet = parquet_format()
    parts = [ds.dataset(files, schema=schema, format=parquet, filesystem=store) for store, files in stores]
    return parts[0] if len(parts) == 1 else ds.dataset(parts)


def _only(rows: Dataset, leases: Collection[int], folders: Mapping[str, Mapping[int, int]]) -> Dataset:
    """Return the rows of some leases: a folder that was compacted has rows of other leases, too. Raises ValueError if
    it does, and its rows do not have their lease.
    """
    import pyarrow.dataset as ds

    if LEASE_ID in rows.schema.names:
        return rows.filter(ds.field(LEASE_ID).isin([*leases]))
    for folder, of in folders.items():
        if others := of.keys() - {*leases}:
            raise ValueError(
                f"{folder} also has rows of {named_leases(others)}, and there is no column {LEASE_ID} to tell them "
                "apart: read all leases, or leave that column in the schema"
            )
    return rows


def _check_rows(
    sink: str,
    folders: Mapping[str, Mapping[int, int]],
    named: Mapping[str, str],
    footers: Iterable[tuple[str, tuple[pa.Schema, int]]],
) -> None:
    """Raise OutputDamaged for a folder with another number of rows than the manifest: files were removed, added or
    replaced. A summary counts the records that were summed, so its rows are not compared. Of an exception, a handler
    may have made several rows.
    """
    found: dict[str, int] = {}
    for folder, (columns, rows) in footers:
        if {*columns.names} >= _OF_RECORDS:
            found[folder] = found.get(folder, 0) + rows
    for folder, rows in found.items():
        expected = sum(folders[folder].values())
        if rows < expected or (rows > expected and not sink.endswith("-exceptions")):
            raise damaged(named[folder], f"the files have {rows:,} rows, and {expected:,} were acknowledged")


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
    read: Callable[[fs.FileSystem, str], tuple[pa.Schema, int]], store: fs.FileSystem, file: str, named: str
) -> tuple[pa.Schema, int]:
    """Return the footer of a file. Raises OutputDamaged if it is not a Parquet file any more."""
    import pyarrow as pa

    try:
        return read(store, file)
    except (pa.ArrowInvalid, OSError) as error:
        if not is_damage(error, store, file):
            raise
        raise damaged(named, f"{file}: {first_line(error)}") from error


def is_damage(error: Exception, store: fs.FileSystem, file: str) -> bool:
    """Return whether an error comes from the content of a file, or its absence, and not from its store."""
    if isinstance(error, FileNotFoundError) or not isinstance(error, OSError):
        return True
    try:
        with store.open_input_stream(file) as opened:
            while opened.read(_PIECE_BYTES):
                pass
    except OSError:
        return False
    return True
