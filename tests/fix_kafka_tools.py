"""Kafka's own command-line tools and Java clients, to compare ours with.

The clients are those of the broker's jars, 4.4.0. Of the tools 4.3.1 is the newest that resolve; they work with that
broker, and are fetched once, by the Ivy inside PySpark, beside the jars of the stack. One JVM runs all calls.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import (  # type: ignore[import-untyped]
    CallbackServerParameters,
    JavaGateway,
    Py4JJavaError,
)

from sharequeue.local.jars import pyspark_home
from sharequeue.local.preflight import find_java
from sharequeue.local.stack import StackInfo
from tests.fix_stack import jars_folder, say

VERSION = "4.3.1"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
_JARS = {
    "kafka-tools": "62f3c5dd7aa3442d4c5bc6a95f86e2502178ea09de8e27f74d9563bf955e253c",
    "kafka-tools-api": "dcf6785742e0c8ab11a0fc09c62f1192e11e997dc629669a8db82aa40d933c31",
    "kafka_2.13": "b098abef5ff878e76f60cd6c559b9baa5663ccb1b55f2837558b22c329d32423",
}
_EXIT = "org.apache.kafka.common.utils.internals.Exit"


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


class _Ended:
    """Stands for the end of the process where a tool asks for it: the tool's call fails instead."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.streams: tuple[Any, ...] = ()
        self.printed: list[str] = []

    def execute(self, code: int, message: str | None) -> None:
        # What the tool prints from here on, it would not have printed.
        self.code, self.printed = code, [each.toString() for each in self.streams]
        raise RuntimeError("the tool ends")

    class Java:
        """What it is to Java."""

        implements = [f"{_EXIT}$Procedure"]  # noqa: RUF012 - read by py4j


class KafkaTool:
    """Runs the classes of Kafka's tools against the broker of the tests."""

    def __init__(self, gateway: JavaGateway, bootstrap_servers: str) -> None:
        self._gateway, self._servers = gateway, bootstrap_servers
        self._ended = _Ended()
        gateway.jvm.org.apache.kafka.common.utils.internals.Exit.setExitProcedure(self._ended)

    def __call__(self, *words: str, tool: str = SHARE_GROUPS) -> Ran:
        """Run a tool. It gets the broker's address as its first option."""
        jvm = self._gateway.jvm
        out, err = (jvm.java.io.ByteArrayOutputStream() for _ in range(2))
        jvm.java.lang.System.setOut(jvm.java.io.PrintStream(out, True))
        jvm.java.lang.System.setErr(jvm.java.io.PrintStream(err, True))
        given = ("--bootstrap-server", self._servers, *words)
        arguments: Any = self._gateway.new_array(jvm.java.lang.String, len(given))
        for at, word in enumerate(given):
            arguments[at] = word
        self._ended.code, self._ended.streams = None, (out, err)
        name = jvm
        for part in tool.split("."):
            name = getattr(name, part)
        failed = False
        try:
            name.main(arguments)
        except Py4JJavaError:
            failed = True
        if self._ended.code is not None:
            return Ran(self._ended.code, *self._ended.printed)
        return Ran(int(failed), out.toString(), err.toString())


@pytest.fixture(scope="session")
def kafka_jvm() -> Iterator[JavaGateway]:
    """Give a JVM with Kafka's classes, driven by py4j: no compiler is needed, a JRE will do."""
    folder = _resolved()
    broker = sorted((jars_folder() / "broker").glob("*.jar"))
    # The broker's own jars first: of the tools only what these do not have.
    path = os.pathsep.join(str(jar) for jar in (*broker, *sorted(folder.glob("*.jar"))))
    (py4j,) = (pyspark_home() / "jars").glob("py4j-*.jar")
    gateway = JavaGateway.launch_gateway(
        classpath=path,
        jarpath=str(py4j),
        java_path=str(find_java().executable),
        javaopts=["-Dlog4j2.level=OFF", "-Xmx256m", "-XX:TieredStopAtLevel=1"],
        die_on_exit=True,
    )
    gateway.start_callback_server(
        CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True)
    )
    callbacks = gateway.get_callback_server()
    gateway.java_gateway_server.resetCallbackClient(
        gateway.java_gateway_server.getCallbackClient().getAddress(), callbacks.get_listening_port()
    )
    try:
        yield gateway
    finally:
        gateway.shutdown()


@pytest.fixture(scope="session")
def kafka_tool(kafka_jvm: JavaGateway, stack: StackInfo) -> KafkaTool:
    """Give Kafka's own tools, on the broker of the tests."""
    return KafkaTool(kafka_jvm, stack.bootstrap_servers)


def _resolved() -> Path:
    folder = jars_folder().with_name(f"kafka-tools-{VERSION}")
    if not _whole(folder):
        say(f"kafka-tools: resolving {VERSION}, once, into {folder} (2 MB)")
        folder.mkdir(parents=True, exist_ok=True)
        ivy = folder / "ivy.xml"
        wanted = "".join(
            f'<dependency org="org.apache.kafka" name="{name}" rev="{VERSION}" transitive="false"/>'
            for name in _JARS
        )
        ivy.write_text(
            '<ivy-module version="2.0"><info organisation="sharequeue" module="tools"/>'
            f"<dependencies>{wanted}</dependencies></ivy-module>"
        )
        given = os.environ.get("SHAREQUEUE_IVY_SETTINGS")
        settings = Path(given) if given else folder / "ivysettings.xml"
        if not given:
            settings.write_text(
                '<ivysettings><settings defaultResolver="central"/><resolvers>'
                '<ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers></ivysettings>'
            )
        (jar,) = (pyspark_home() / "jars").glob("ivy-*.jar")
        cache = folder.with_name("ivy")
        words = ["-jar", str(jar), "-settings", str(settings), "-cache", str(cache), "-ivy", str(ivy)]
        words += ["-types", "jar", "-retrieve", f"{folder}/[artifact].[ext]"]
        subprocess.run(
            [str(find_java().executable), *words], check=True, stdin=subprocess.DEVNULL, capture_output=True
        )
        assert _whole(folder), f"the tools in {folder} are not the expected ones"
    return folder


def _whole(folder: Path) -> bool:
    try:
        return all(
            hashlib.sha256((folder / f"{name}.jar").read_bytes()).hexdigest() == digest
            for name, digest in _JARS.items()
        )
    except FileNotFoundError:
        return False
