"""The embedded Apache Kafka: one KRaft node, formatted once, started, recovered, stopped.

Its settings are in `broker_settings.py`, its jars in `jars.py`; its users create their topics.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sharequeue.local import components, ports, processes
from sharequeue.local.broker_settings import write_settings
from sharequeue.local.home import Home, Progress
from sharequeue.local.preflight import Java, StackError
from sharequeue.local.processes import Running, Start

__all__ = ["NAME", "cluster_id", "ensure", "find", "stop"]

NAME = "kafka"
CONTROLLER = "kafka-controller"
_HEAP = "-Xmx768m"

_LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %m (%c{1})%n%ex{20}
logger.server.name=kafka.server.KafkaRaftServer
logger.server.level=info
"""


def find(home: Home) -> tuple[Running, int] | None:
    """Return the running broker and its port, or None."""
    return components.find(home, NAME)


def ensure(home: Home, java: Java, jars: Path, progress: Progress) -> int:
    """Start the broker unless it is running, and return its port. The caller holds the home's lock."""
    found = find(home)
    if found is not None:
        running, port = found
        if processes.comes_up(running, lambda: cluster_id(port) == _formatted(home), 60):
            return port

    def start(port: int) -> None:
        _start(home, java, jars, port, ports.choose(home, CONTROLLER, progress))

    return components.start_at_a_port(home, NAME, start, progress)


def stop(home: Home) -> bool:
    """Stop the broker cleanly; False if it was not running."""
    return components.stop(home, NAME, seconds=30)


def cluster_id(port: int) -> str | None:
    """Return the cluster id of the broker on this port; None while it does not respond."""
    if not ports.accepts(port):
        return None
    quiet = {"log_level": 0, "reconnect.backoff.max.ms": 200, "socket.connection.setup.timeout.ms": 3000}
    client = AdminClient({"bootstrap.servers": f"{ports.LOOPBACK}:{port}", **quiet})
    try:
        metadata = client.list_topics(timeout=3)
    except KafkaException:
        return None
    return str(metadata.cluster_id) if metadata.brokers else None


def _formatted(home: Home) -> str | None:
    """Return the cluster id in the data folder; None if it was never formatted."""
    try:
        lines = (home.kafka / "data" / "meta.properties").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition("=")[2] for line in lines if line.startswith("cluster.id=")), None)


def _start(home: Home, java: Java, jars: Path, port: int, controller: int) -> None:
    data = home.kafka / "data"
    if _formatted(home) is None:
        _format(home, java, jars, port, controller)
    settings = write_settings(home, home.kafka, data, port, controller)
    logging = home.kafka / "log4j2.properties"
    logging.write_text(_LOGGING)
    command = [
        str(java.executable),
        *(_HEAP, "-Xms256m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={logging}",
        *("-cp", str(jars / "broker" / "*"), "kafka.Kafka", str(settings)),
    ]
    running = processes.start(home, Start(NAME, command, java.environment(), directory=home.kafka))
    processes.wait_until(running, lambda: cluster_id(port) == _formatted(home), 60)


def _format(home: Home, java: Java, jars: Path, port: int, controller: int) -> None:
    """Format a folder next to the log, then rename it, so that a kill leaves nothing behind."""
    for left in home.kafka.glob("formatting-*"):
        shutil.rmtree(left, ignore_errors=True)
    # A unique name: the tool of a killed `up` may still be writing to the previous one.
    work = Path(tempfile.mkdtemp(dir=home.kafka, prefix="formatting-"))
    staged = work / "data"
    settings = write_settings(home, work, staged, port, controller)
    identifier = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    if identifier.startswith("-"):
        identifier = f"A{identifier[1:]}"  # the tool would read a leading hyphen as an option
    command = [
        str(java.executable),
        *("-Xmx128m", "-XX:TieredStopAtLevel=1"),
        *("-cp", str(jars / "broker" / "*"), "kafka.tools.StorageTool"),
        *("format", "-t", identifier, "-c", str(settings)),
    ]
    made = subprocess.run(command, capture_output=True, text=True, env=java.environment(), check=False)
    if made.returncode:
        raise StackError(
            f"Kafka's storage could not be formatted in {staged}:\n{made.stdout[-500:]}{made.stderr[-1500:]}"
        )
    data = home.kafka / "data"
    shutil.rmtree(data, ignore_errors=True)
    staged.rename(data)
    shutil.rmtree(work)
