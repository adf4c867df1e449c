"""The data folder: its files, and the lock for changing it.

The folder (`SHAREQUEUE_HOME`) holds everything of the embedded stack, so that one `rm -r` removes it. Its lock
prevents two commands at the same time from starting two brokers. The modules that write the files define their
meaning.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharequeue.local.preflight import StackError

__all__ = ["Home", "Progress", "write_private"]

Progress = Callable[[str], None]

_OWNED = (
    *("postgres", "kafka", "dagster", "great_expectations", "output", "run", "logs"),
    *("ports.json", "stack.json"),
)


@dataclass(frozen=True, slots=True)
class Home:
    """The data folder."""

    path: Path

    @classmethod
    def at(cls, path: Path | str) -> Home:
        """Return the data folder with an absolute path; nothing is created."""
        return cls(Path(path).expanduser().absolute())

    @property
    def stack_file(self) -> Path:
        """Addresses of the running stack; read by `Settings.load`."""
        return self.path / "stack.json"

    @property
    def ports_file(self) -> Path:
        """The ports chosen at the first start."""
        return self.path / "ports.json"

    @property
    def logs(self) -> Path:
        """One log per component."""
        return self.path / "logs"

    @property
    def run(self) -> Path:
        """One record per running component."""
        return self.path / "run"

    @property
    def postgres(self) -> Path:
        """Postgres: the cluster in `data`, and its password."""
        return self.path / "postgres"

    @property
    def kafka(self) -> Path:
        """Kafka: the log in `data`, and its settings."""
        return self.path / "kafka"

    @property
    def broker_settings(self) -> Path:
        """The user's own settings of the embedded broker, if there are any; a reset keeps them."""
        return self.path / "kafka.properties"

    @property
    def dagster(self) -> Path:
        """`DAGSTER_HOME` of the embedded stack."""
        return self.path / "dagster"

    @property
    def output(self) -> Path:
        """The output of pipelines, unless `SHAREQUEUE_OUTPUT` is set."""
        return self.path / "output"

    @property
    def job_lock(self) -> Path:
        """Locked by a process that runs a job in this folder, for the time of its run."""
        return self.path / "job.lock"

    @property
    def at_work(self) -> bool:
        """Whether a job, or the process that launches jobs, is running in this folder."""
        try:
            with self.job_lock.open() as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def create(self) -> None:
        """Create the folder and its fixed subfolders, accessible to the owner only; existing ones are kept."""
        try:
            self._make()
            for folder in (self.logs, self.run, self.postgres, self.kafka, self.dagster, self.output):
                folder.mkdir(exist_ok=True)
                # Also a folder of an earlier release.
                folder.chmod(0o700)
        except OSError as error:
            raise StackError(
                f"{error.filename} cannot be created ({error.strerror}): "
                "set SHAREQUEUE_HOME to a folder of your own."
            ) from error

    def _make(self) -> None:
        # The mode of an existing folder is kept. Root's Postgres runs as another user and must be able to enter.
        if not self.path.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o711 if os.geteuid() == 0 else 0o700)

    @property
    def exists(self) -> bool:
        """Whether a stack was ever set up here."""
        return self.run.is_dir()

    @contextmanager
    def lock(self, progress: Progress) -> Iterator[None]:
        """Lock the folder for one command; a second one reports that and waits. The lock ends with its process."""
        self._make()
        with file_lock(
            self.path / "lock", lambda: progress(f"another command is using {self.path}: waiting")
        ):
            yield

    def owned(self) -> list[Path]:
        """Return everything that a reset removes: all but the jars, which would have to be downloaded again."""
        return [self.path / name for name in _OWNED if (self.path / name).exists()]

    def erase(self) -> None:
        """Remove what `owned` returns. The caller has stopped the stack."""
        for path in self.owned():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextmanager
def file_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold an exclusive lock on `path` between processes; calls `on_wait` once if it has to wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_private(path: Path, content: str) -> None:
    """Replace a file atomically, readable by its owner only: a reader sees the old or the new content."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    staged.replace(path)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as JSON with `write_private`."""
    write_private(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON; None if the file is missing or incomplete."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
