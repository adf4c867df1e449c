"""The rows of the ledger of ordered keys, from files or from a table, with the number of the commit that made each of
them readable; and somebody who reads while the rows come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlparse

import fastavro
import pyarrow.parquet as pq
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.local import optional_jars
from sharequeue.outputs.manifest import PENDING, read_manifest
from sharequeue.state import State
from tests.fixtures.stack import say
from tests.ordered_journal import History

Kind = Literal["files", "postgres", "delta", "iceberg"]
_ADDED = 1
"""The status of a file in a manifest of Iceberg that its snapshot has added."""
_COLUMNS = ("partition", "offset", "number", "of_key", "lease_id")
_CREATE = sa.text(
    'create table if not exists public.ordered_rows (topic text, "partition" integer, "offset" bigint,'
    " lease_id bigint, number integer, of_key bytea)"
)
_ROWS = sa.text(
    'select "partition", "offset", number, of_key, lease_id, cast(cast(xmin as text) as bigint) as made'
    " from public.ordered_rows"
)
_SEEN = sa.text(
    'select "partition", of_key, count(*) as records, max("offset") as last from public.ordered_rows'
    " where of_key is not null group by 1, 2"
)
_SCHEMA = {
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "lease_id": "long",
    "number": "integer",
    "of_key": "binary",
}


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A row, and the commit with which it appeared: of commits of one share-partition, a later one has a higher
    number."""

    partition: int
    appeared: int
    offset: int
    number: int
    key: bytes | None
    lease_id: int


@dataclass
class Output:
    """Where the runs write."""

    kind: Kind
    name: str
    database: Database
    folder: Path
    looks: set[tuple[int, bytes, int, int]] = field(default_factory=set)
    """What a reader has seen: of a key in a partition, how many rows, and the last offset."""
    times: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)
    _reader: threading.Thread | None = None

    def prepare(self, settings: Settings) -> dict[str, str]:
        """Make the table, and return what the workers' environment needs."""
        if self.kind == "postgres":
            with self.database.transaction() as connection:
                connection.execute(_CREATE)
            self._reader = threading.Thread(target=self._read)
            self._reader.start()
            return {"ORDERED_TABLE": "postgres:public.ordered_rows"}
        if self.kind == "delta":
            optional_jars.ensure(settings, ["delta"], say)
            self._create_delta()
            return {"ORDERED_TABLE": f"delta:{self.table}", "SHAREQUEUE_SPARK_JARS": "delta"}
        if self.kind == "iceberg":
            optional_jars.ensure(settings, ["iceberg"], say)
            return {"ORDERED_TABLE": "iceberg:lake.db.ordered", **self._create_iceberg(settings)}
        return {}

    @property
    def table(self) -> Path:
        """The folder of the table of a lakehouse."""
        return self.folder / ("table" if self.kind == "delta" else "warehouse/db/ordered")

    def pending(self) -> int:
        """Return how many outputs wait for their transfer into a table of a lakehouse."""
        rows = State(self.database).outputs.counted(self.name, self.name)
        return sum(row.location.startswith(PENDING) for row in rows)

    def rows(self, replayed: Mapping[int, History]) -> list[Row]:
        """Return all rows that count, by partition and commit. In a Postgres table each must have come with the
        acknowledgement of its record, which is in the journal."""
        if self.kind == "files":
            found = [(*row, row[-1]) for row in self._files()]
        elif self.kind == "delta":
            found = list(self._delta())
        elif self.kind == "iceberg":
            found = list(self._iceberg())
        else:
            found = []
            for row in self.database.rows(_ROWS):
                finish = replayed[row["partition"]].accepted.get(row["offset"])
                assert finish is not None, f"{dict(row)} without an acknowledgement"
                assert finish.transaction == row["made"], f"{dict(row)} is not of {finish}"
                found.append((*(row[each] for each in _COLUMNS), finish.commit))
        return sorted(
            (
                Row(partition, appeared, offset, number, None if key is None else bytes(key), lease_id)
                for partition, offset, number, key, lease_id, appeared in found
            ),
            key=lambda row: (row.partition, row.appeared, row.offset),
        )

    def stop(self) -> None:
        """Read no more."""
        self._stopped.set()
        if self._reader is not None:
            self._reader.join()

    def seen_too_early(self, rows: list[Row]) -> list[tuple[int, bytes, int, int]]:
        """Return what the reader has seen while a row of an earlier offset of the key was to come."""
        offsets: dict[tuple[int, bytes], list[int]] = {}
        for row in rows:
            if row.key is not None:
                offsets.setdefault((row.partition, row.key), []).append(row.offset)
        return [
            (partition, key, records, last)
            for partition, key, records, last in sorted(self.looks)
            if sum(offset <= last for offset in offsets[partition, key]) != records
        ]

    def _read(self) -> None:
        while not self._stopped.wait(0.3):
            try:
                rows = self.database.rows(_SEEN)
            except SQLAlchemyError:
                continue
            self.times += 1
            self.looks.update(
                (row["partition"], bytes(row["of_key"]), row["records"], row["last"]) for row in rows
            )

    def _files(self) -> Iterator[tuple[Any, ...]]:
        for folder in read_manifest(State(self.database), self.name, self.name):
            for file in Path(folder.removeprefix("file://")).rglob("*.parquet"):
                yield from _of_file(file)

    def _delta(self) -> Iterator[tuple[Any, ...]]:
        """Read each version's files: what a version has added appeared with it."""
        for log in sorted((self.table / "_delta_log").glob("*.json")):
            for line in log.read_text().splitlines():
                action = json.loads(line)
                assert "remove" not in action
                if "add" in action:
                    path = self.table / unquote(urlparse(action["add"]["path"]).path)
                    yield from ((*row, int(log.stem)) for row in _of_file(path))

    def _iceberg(self) -> Iterator[tuple[Any, ...]]:
        """Read the files that each snapshot has added, in the order in which the snapshots became current."""
        metadata = self.table / "metadata"
        version = (metadata / "version-hint.text").read_text().strip()
        table = json.loads((metadata / f"v{version}.metadata.json").read_text())
        snapshots = {each["snapshot-id"]: each for each in table["snapshots"]}
        files = 0
        for number, at in enumerate(each["snapshot-id"] for each in table["snapshot-log"]):
            for manifest in _avro(snapshots[at]["manifest-list"]):
                if manifest["added_snapshot_id"] != at:
                    continue
                for entry in _avro(manifest["manifest_path"]):
                    assert entry["status"] == _ADDED
                    files += 1
                    file = _path(entry["data_file"]["file_path"])
                    yield from ((*row, number) for row in _of_file(file))
        current = snapshots[table["current-snapshot-id"]]
        assert files == int(current["summary"]["total-data-files"])

    def _create_iceberg(self, settings: Settings) -> dict[str, str]:
        """Make the table, in a process of its own, and return what a session needs to find it."""
        folder = self.folder / "spark"
        folder.mkdir()
        conf = {
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(self.folder / "warehouse"),
        }
        (folder / "spark-defaults.conf").write_text("".join(f"{name} {of}\n" for name, of in conf.items()))
        environment = {"SHAREQUEUE_SPARK_JARS": "iceberg", "SPARK_CONF_DIR": str(folder)}
        columns = ", ".join(f"`{name}` {kind}" for name, kind in _SCHEMA.items()).replace(" long", " bigint")
        create = (
            f"create table lake.db.ordered ({columns}) using iceberg"
            " tblproperties ('write.wap.enabled'='true')"
        )
        program = (
            "from sharequeue.domain.settings import Settings; from sharequeue.spark.session import spark_session;"
            f' spark_session(Settings.load(), "made").sql("{create}")'
        )
        home = {"SHAREQUEUE_HOME": str(settings.home), "SHAREQUEUE_JARS": str(settings.jars)}
        subprocess.run([sys.executable, "-c", program], env=os.environ | home | environment, check=True)
        return environment

    def _create_delta(self) -> None:
        """Write the first version of the table: no session of Spark is needed."""
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _SCHEMA.items()
        ]
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {
                "metaData": {
                    "id": str(uuid.uuid4()),
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps({"type": "struct", "fields": fields}),
                    "partitionColumns": [],
                    "configuration": {},
                    "createdTime": 0,
                }
            },
        ]
        log = self.table / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").write_text("".join(json.dumps(each) + "\n" for each in actions))


def _path(location: str) -> Path:
    return Path(unquote(urlparse(location).path))


def _avro(location: str) -> list[Any]:
    with _path(location).open("rb") as file:
        return list(fastavro.reader(file))


def _of_file(file: Path) -> Iterator[tuple[Any, ...]]:
    table = pq.ParquetFile(file).read(list(_COLUMNS))
    yield from zip(*(table.column(name).to_pylist() for name in _COLUMNS), strict=True)


def doubled(rows: list[Row]) -> list[tuple[int, int]]:
    """Return the records with several rows."""
    return [at for at, number in Counter((row.partition, row.offset) for row in rows).items() if number > 1]
