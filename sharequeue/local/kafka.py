"""The embedded Apache Kafka: one KRaft node, formatted once, started, recovered, stopped.

Its settings are ours, then the user's, then its address. Its jars are in `jars.py`; its users create their topics.
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

from sharequeue.local import ports, processes
from sharequeue.local.home import Home, Progress
from sharequeue.local.preflight import Java, StackError
from sharequeue.local.processes import ProcessStart

__all__ = ["ADDRESS", "NAME", "SETTINGS", "cluster_id", "ensure", "write_settings"]

NAME = "kafka"
CONTROLLER = "kafka-controller"
_HEAP = "-Xmx768m"

SETTINGS = """\
# Written at every start by `sharequeue up`; changes in this file are lost. Put your own settings into {own}.
# one node
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0

# after a SIGKILL the controller waits this long for the previous process (9000 by default)
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=1000

# topics are created explicitly, so that a typing error creates none; the broker may create dead-letter topics
auto.create.topics.enable=false
errors.deadletterqueue.auto.create.topics.enable=true

# the demo's records have timestamps of 2013, which the default of 7 days would delete at once
log.retention.ms=-1
# the markers that make dead letters exactly-once are committed offsets, and a data folder may be unused for months
offsets.retention.minutes=5256000

# your own
"""
ADDRESS = """\

# the node's address, which cannot be changed: other components expect it
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
"""
"""These come last: Java uses the last of two settings with the same name."""
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


def ensure(home: Home, java: Java, jars: Path, progress: Progress) -> int:
    """Start the broker unless it is running, and return its port. The caller holds the home's lock."""
    found = ports.find(home, NAME)
    if found is not None:
        running, port = found
        if processes.comes_up(running, lambda: cluster_id(port) == _formatted(home), 60):
            return port

    def start(port: int) -> None:
        _start(home, java, jars, port, ports.choose(home, CONTROLLER, progress))

    return ports.start_at_a_port(home, NAME, start, progress)


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
    running = processes.start(home, ProcessStart(NAME, command, java.environment(), directory=home.kafka))
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


def write_settings(home: Home, folder: Path, data: Path, port: int, controller: int) -> Path:
    """Write our settings, the user's, and those that cannot be changed, in this order."""
    place = ADDRESS.format(
        host=ports.LOOPBACK, port=port, controller_port=controller, data=_in_properties(str(data))
    )
    own = home.broker_settings.read_text("latin-1") if home.broker_settings.exists() else ""
    path = folder / "server.properties"
    path.write_text(
        SETTINGS.format(own=_in_properties(str(home.broker_settings))) + own + place, encoding="latin-1"
    )
    return path


def _in_properties(text: str) -> str:
    """Return a value in the form of Java's properties files, which are read as ISO 8859-1 in every locale."""
    units = text.replace("\\", "\\\\").encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)
