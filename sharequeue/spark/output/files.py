"""List, move, flush and remove the files of an output, from the driver.

This uses Hadoop's file system, which Spark itself writes with, so the output can be any storage that Spark can reach:
a folder on this machine, `hdfs:`, `s3a:`. All such calls of the driver are in this module: existence, listing,
removal, rename (replays only), small text files, the number of rows, and the flush to disk that a local file system
does not do by itself.
"""

from __future__ import annotations

import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sharequeue.outputs.stores import ONE_TREE
from sharequeue.spark.output.reachable import class_of, failed_by_disk, not_reachable, reach

FLUSHED_AT_ONCE = 8
_GLOB = re.compile(r"([\\{}\[\]*?])")


def literal(path: str) -> str:
    """Return a path for Spark's readers, which would treat `[`, `{`, `*` and `?` in it as a pattern."""
    return _GLOB.sub(r"\\\1", path)


class Files:
    """The file system that holds `root`, as the session's driver sees it. Raises OutputNotReachable if Hadoop has no
    such file system.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self.alone = str(spark.sparkContext.master).startswith("local")
        """Whether Spark works on this machine only."""
        # By its whole name: for `jvm.org.apache`, the JVM would search each jar for a class `org`, and so on.
        self._path: Any = getattr(jvm, "org.apache.hadoop.fs.Path")
        path = self._path(root)
        session: Any = spark._jsparkSession
        self._conf: Any = session.sessionState().newHadoopConf()
        self._parents: dict[str, Path | None] = {}
        try:
            self._fs: Any = path.getFileSystem(self._conf)
        except Py4JJavaError as error:
            raise not_reachable(self._conf, root, error) from None

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return bool(self._fs.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of a folder's entries; an empty list if there is no folder."""
        if (local := self._local(folder)) is not None:
            # Listed without the JVM, which would take two calls for each entry; Hadoop's checksum files are left out.
            return sorted(path.name for path in local.iterdir() if not _is_checksum(path.name))
        try:
            found = self._fs.listStatus(self._path(folder))
        except Py4JJavaError as error:
            if _is_absent(error):
                return []
            raise
        return sorted(str(status.getPath().getName()) for status in found)

    def listing(self, folder: str) -> str:
        """Return the paths of all files under a folder, in one text, because a call for each path would take longer
        than the listing. The text is empty if there is no folder.
        """
        if (local := self._local(folder)) is not None:
            # Hadoop starts a program for each local file, to find its owner.
            found = (f"{at}/{name}" for at, _, names in os.walk(local) for name in names)
            return "\n".join(path for path in found if not _is_checksum(path.rpartition("/")[2]))
        try:
            found = self._fs.listFiles(self._path(folder), True)
            iterators = getattr(self._jvm, "org.apache.hadoop.util.functional.RemoteIterators")
            return str(iterators.toList(found).toString())
        except Py4JJavaError as error:
            if _is_absent(error):
                return ""
            raise

    def size(self, path: str) -> int:
        """Return the total size in bytes of all files under a folder."""
        return int(self._fs.getContentSummary(self._path(path)).getLength())

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its contents; do nothing if it does not exist."""
        self._fs.delete(self._path(path), True)

    def replace(self, source: str, target: str) -> None:
        """Move a folder to a path; an existing folder at the path is removed first."""
        self.remove(target)
        self._fs.mkdirs(self._path(target).getParent())
        if not self._fs.rename(self._path(source), self._path(target)):
            raise OSError(
                f"{source} could not be moved to {target}: check that the folder is writable and on one file system"
            )

    def remove_if_empty(self, folder: str) -> None:
        """Remove a folder if it is empty."""
        if not self.names(folder):
            self.remove(folder)

    def read_text(self, path: str) -> str | None:
        """Return the text of a small file, None if it does not exist."""
        try:
            stream = self._fs.open(self._path(path))
        except Py4JJavaError as error:
            if _is_absent(error):
                return None
            raise
        try:
            return str(getattr(self._jvm, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Write a small file; replace an existing one."""
        folder, _, name = path.rpartition("/")
        if (local := self._local(folder)) is not None:
            # Hadoop starts a program to set the rights of a local file.
            with failed_by_disk(folder, "written to"):
                (local / name).write_text(text, encoding="utf-8")
            return
        stream = self._fs.create(self._path(path), True)
        try:
            stream.write(bytearray(text, "utf-8"))
        finally:
            stream.close()

    def put(self, source: Path, target: str) -> None:
        """Copy a file of this machine to a path, in place of the one that is there. A reader sees the old file or the
        new one: an object store has a file once it is complete, and elsewhere it is moved into place.
        """
        if urlsplit(target).scheme not in ONE_TREE:
            self._copy(source, target)
            return
        folder, _, name = target.rpartition("/")
        staged = f"{folder}/.{name}-{uuid4().hex}"
        self._copy(source, staged)
        context = getattr(self._jvm, "org.apache.hadoop.fs.FileContext").getFileContext(
            self._fs.getUri(), self._conf
        )
        option = getattr(self._jvm, "org.apache.hadoop.fs.Options$Rename")
        gateway: Any = SparkContext._gateway
        options = gateway.new_array(option, 1)
        options[0] = option.OVERWRITE
        context.rename(self._path(staged), self._path(target), options)

    def _copy(self, source: Path, target: str) -> None:
        opened = getattr(self._jvm, "java.io.FileInputStream")(str(source))
        created = self._fs.create(self._path(target), True)
        getattr(self._jvm, "org.apache.hadoop.io.IOUtils").copyBytes(opened, created, self._conf, True)

    def flush(self, *folders: str) -> None:
        """Flush the files and directory entries of folders to disk, if the folders are on this machine.

        A distributed file system does this when a file is closed; a local one only after fsync. An acknowledgement
        that survives a power failure must not count files that are lost in it. Raises OutputFull and
        OutputNotReachable.
        """
        paths: dict[Path, None] = {}
        for folder in folders:
            local = self._local(folder)
            if local is not None:
                paths |= dict.fromkeys((*local.iterdir(), local))
        paths |= dict.fromkeys(
            above for path in [*paths] for above in [*path.parents][:2] if above not in paths
        )
        with failed_by_disk(", ".join(folders)), ThreadPoolExecutor(FLUSHED_AT_ONCE) as pool:
            for _ in pool.map(_flush, paths):
                pass

    def rows(self, *folders: str) -> int:
        """Return the number of rows in the Parquet files of folders, as this process sees them."""
        found = 0
        for folder in folders:
            for name in self.names(folder):
                if not name.startswith(("_", ".")):
                    found += self._rows_in(f"{folder}/{name}")
        return found

    def here(self, *folders: str) -> list[Path] | None:
        """Return the data files of folders, if this process can read them and Spark works on this machine only."""
        local = [self._local(folder) for folder in folders]
        if not self.alone or None in local:
            return None
        files = (file for folder in local if folder for file in folder.iterdir())
        return sorted(file for file in files if not file.name.startswith(("_", ".")))

    def is_path(self, folder: str) -> bool:
        """Return whether a folder is on a file system of one machine, as far as its name shows."""
        return urlsplit(str(self._fs.makeQualified(self._path(folder)).toString())).scheme == "file"

    def refuse_read_only(self, folder: str) -> None:
        """Raise OutputNotReachable for an existing folder on this machine in which no file can be created."""
        if (local := self._local(folder)) is not None:
            with failed_by_disk(folder, "written to"):
                descriptor, probe = tempfile.mkstemp(prefix="_probe-", dir=local)
                os.close(descriptor)
                Path(probe).unlink()

    def reach(self, folder: str) -> None:
        """Raise OutputNotReachable unless this process can write into a folder on another machine or in an object
        store.
        """
        if not self.is_path(folder):
            reach(self._jvm, self._conf, folder)

    def _rows_in(self, file: str) -> int:
        input_file = getattr(self._jvm, "org.apache.parquet.hadoop.util.HadoopInputFile")
        parquet_reader = getattr(self._jvm, "org.apache.parquet.hadoop.ParquetFileReader")
        reader = parquet_reader.open(input_file.fromPath(self._path(file), self._conf))
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    def _local(self, folder: str) -> Path | None:
        parent, _, name = folder.rpartition("/")
        if not parent or parent.endswith((":", "/")):
            local = self._on_this_machine(folder)
        else:
            # A write may have a thousand folders in one parent: the parent's URI is requested once.
            known = self._parents
            if parent not in known:
                known = self._parents = {parent: self._on_this_machine(parent)}
            above = known[parent]
            local = above / name if above is not None else None
        return local if local is not None and local.is_dir() else None

    def _on_this_machine(self, folder: str) -> Path | None:
        # Made from the parts of a URI: in its text, a `#`, `?` or `%` of a folder's name would be ambiguous.
        uri = self._fs.makeQualified(self._path(folder)).toUri()
        return Path(str(uri.getPath())) if uri.getScheme() == "file" else None


def _is_checksum(name: str) -> bool:
    return name.startswith(".") and name.endswith(".crc")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_absent(error: Py4JJavaError) -> bool:
    return class_of(error.java_exception) == "java.io.FileNotFoundException"
