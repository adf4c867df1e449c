"""Read the Dockerfile and the compose file, and run one of our containers without Docker.

Read as Compose and BuildKit read them, as far as these two files go: `${NAME:-default}`, merge keys, `depends_on`
conditions, health checks, secrets; continued lines and heredocs. A container becomes a process: the image's entry
point and its command as written, with the image's and the service's environment and nothing of ours, addresses
replaced by loopback ones, ports by free ones, the image's folders by folders here, databases by others.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from sharequeue.local import ports
from sharequeue.local.preflight import find_java
from tests.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[3]
DOCKER = REPOSITORY / "docker"
MARK = "DOCKER_TEST_MARK"
_HEREDOC = re.compile(r"<<-?'?(\w+)'?")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile: `RUN`, its text on one line, the body of its heredoc."""

    word: str
    text: str
    body: str = ""


def dockerfile() -> list[Instruction]:
    """The Dockerfile's instructions, in order."""
    lines = iter((DOCKER / "Dockerfile").read_text().splitlines())
    found = []
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        text, body = line, []
        while text.endswith("\\"):
            text = text[:-1] + next(lines).strip()
        if heredoc := _HEREDOC.search(text):
            while (inside := next(lines)) != heredoc[1]:
                body.append(inside)
        word, _, rest = text.partition(" ")
        found.append(Instruction(word, rest, "\n".join(body)))
    return found


def image_environment() -> dict[str, str]:
    """What the image sets for every container."""
    pairs = [pair for each in dockerfile() if each.word == "ENV" for pair in each.text.split()]
    return dict(pair.split("=", 1) for pair in pairs)


def mount_points() -> list[str]:
    """The folders that the image makes for its user, to be written."""
    [made] = [each.text for each in dockerfile() if each.word == "RUN" and "mkdir" in each.text]
    return re.findall(r"/\S+", made.partition("&&")[0])


def entry_point() -> list[str]:
    """What the image begins a container with."""
    [text] = [each.text for each in dockerfile() if each.word == "ENTRYPOINT"]
    found: list[str] = json.loads(text)
    return found


def compose() -> dict[str, Any]:
    """The compose file, as written."""
    content: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return content


def ours() -> dict[str, Any]:
    """The services that run our own image."""
    return {name: service for name, service in compose()["services"].items() if "build" in service}


def variables(text: str) -> set[str]:
    """The names that are looked up in the environment when this text is used."""
    return set(re.findall(r"\$\{(\w+)", text))


def interpolate(text: str, given: Mapping[str, str]) -> str:
    """Put values for `${NAME:-default}`; a default may hold another one."""
    done, position = "", 0
    while (start := text.find("${", position)) >= 0:
        depth, end = 1, start + 2
        while depth:
            depth += {"{": text[end - 1] == "$", "}": -1}.get(text[end], 0)
            end += 1
        name, _, default = text[start + 2 : end - 1].partition(":-")
        done += text[position:start] + (given.get(name) or interpolate(default, given))
        position = end
    return done + text[position:]


def environment(service: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """What a service sets, after interpolation; a name without a value is passed through when it is given."""
    values: dict[str, Any] = service.get("environment", {})
    passed = {name: given[name] for name, value in values.items() if value is None and name in given}
    return passed | {
        name: interpolate(str(value), given) for name, value in values.items() if value is not None
    }


@dataclass(slots=True)
class Containers:
    """Our containers as processes. `given` is the deployer's environment, `root` the place of their folders,
    `secrets` that of the files of `secrets.sh`, `prefix` what stands before the names of databases."""

    root: Path
    given: dict[str, str]
    jars: Path
    secrets: Path
    prefix: str
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    ports: dict[tuple[str, int], int] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        for folder in mount_points():
            Path(self._here(folder, "")).mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        """End every process of ours, whatever it started and wherever that lives now."""
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        gone = time.monotonic() + PATIENCE_S
        while self.alive() and time.monotonic() < gone:
            for process in self.running.values():
                process.poll()
            time.sleep(0.05)
        for left in self.alive():
            with suppress(psutil.Error):
                left.kill()
        for process in self.running.values():
            process.wait(PATIENCE_S)

    def alive(self) -> list[psutil.Process]:
        """Every live process that carries our mark."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def port(self, container: str, number: int) -> int:
        """The free port that stands for a container's port."""
        taken = self.ports.values()
        if (container, number) not in self.ports:
            free = (port for port in random.sample(range(20000, 32000), 500) if ports.is_free(port))
            self.ports[container, number] = next(port for port in free if port not in taken)
        return self.ports[container, number]

    def log(self, container: str) -> str:
        """What a container has printed."""
        return (self.root / f"{container}.log").read_text(errors="replace")

    def start(self, name: str, number: int = 1, extra: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start the `number`-th container of a service; `extra` is appended to its command."""
        container = f"{name}-{number}"
        command = [self._argument(part, container) for part in (*entry_point(), *ours()[name]["command"])]
        for folder in ("/run/secrets", "/run/sharequeue"):
            Path(self._here(folder, container)).mkdir(parents=True, exist_ok=True)
        for secret in ours()[name].get("secrets", []):
            shutil.copy(self.secrets / secret, self._here(f"/run/secrets/{secret}", container))
        with (self.root / f"{container}.log").open("wb") as log:
            self.running[container] = subprocess.Popen(
                [*command, *extra],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(name, container),
                cwd=self._workdir(),
                start_new_session=True,
            )
        return self.running[container]

    def completed(self, container: str) -> bool:
        """Whether a one-shot container has ended; fails when it did not end well."""
        code = self.running[container].poll()
        assert code in (None, 0), f"{container} ended with {code}:\n{self.log(container)}"
        return code is not None

    def healthy(self, container: str) -> bool:
        """Whether the health check says so, as written; fails when the container has ended."""
        code = self.running[container].poll()
        assert code is None, f"{container} ended with {code}:\n{self.log(container)}"
        name = container.rpartition("-")[0]
        kind, *command = ours()[name]["healthcheck"]["test"]
        assert kind == "CMD"
        asked = self.execute(name, [self._argument(part, container) for part in command], container)
        return asked.returncode == 0

    def execute(
        self, name: str, command: Sequence[str], container: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run another command as in a container of this service, to its end."""
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=self._environment(name, container or f"{name}-1"),
            cwd=self._workdir(),
            timeout=PATIENCE_S,
            check=False,
        )

    def _environment(self, name: str, container: str) -> dict[str, str]:
        service = ours()[name]
        image = {key: self._here(value, container) for key, value in image_environment().items()}
        # Replaced before the deployer's values are put in: those lead to real servers.
        values = service.get("environment", {})
        written = {key: value and self._here(str(value), container) for key, value in values.items()}
        java = find_java().home / "bin"
        places = {
            "PATH": f"{Path(sys.executable).parent}:{java}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.root),
            "SPARK_LOCAL_IP": "127.0.0.1",  # what the container's own address is to Spark
            # Six JVMs that live for seconds: compiling their code well would take longer than running it.
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            MARK: self.mark,
        }
        return image | environment({"environment": written}, self.given) | places

    def _workdir(self) -> Path:
        return Path(self._here([each.text for each in dockerfile() if each.word == "WORKDIR"][-1], ""))

    def _here(self, text: str, container: str) -> str:
        """The same on this machine: folders, hosts with their ports."""
        for folder, place in (
            ("/opt/sharequeue", REPOSITORY),
            ("/opt/jars", self.jars),
            ("/var/lib/sharequeue", self.root),
            ("/run/secrets", self.root / "secrets" / container),
            ("/run/sharequeue", self.root / "run" / container),
        ):
            text = re.sub(rf"(?<![\w/]){folder}(?=/|$)", str(place), text)
        text = re.sub(r"(?<=\}/)(sharequeue|dagster)(?=\$)", rf"{self.prefix}\1", text)
        return re.sub(
            r"\b(service|spark-master|127\.0\.0\.1):(\d+)",
            lambda at: f"127.0.0.1:{self.port(container if at[1][0] == '1' else f'{at[1]}-1', int(at[2]))}",
            text,
        )

    def _argument(self, text: str, container: str) -> str:
        """An argument of a command: a bare number is a port, a bare host one to listen on."""
        if text.isdecimal():
            return str(self.port(container, int(text)))
        if text in ("0.0.0.0", "spark-master"):  # noqa: S104
            return "127.0.0.1"
        return self._here(text, container)
