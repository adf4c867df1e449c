"""Brokers of other kinds than the stack's: of an earlier version of Kafka, or with security.

One KRaft node each, in a folder of its own. The jars of another version are resolved once, by the Ivy inside PySpark,
into `brokers/<version>` beside the jars of the stack.
"""

from __future__ import annotations

import base64
import random
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics
from sharequeue.local import ports
from sharequeue.local.jars import pyspark_home
from sharequeue.local.preflight import find_java
from tests.fixtures.stack import jars_folder, say
from tests.waiting import PATIENCE_S, wait_until

_IVY = """<ivy-module version="2.0">
  <info organisation="sharequeue" module="broker"/>
  <configurations><conf name="broker"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="broker->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="broker->default"/>
  </dependencies>
</ivy-module>
"""
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
_SETTINGS = """\
process.roles={roles}
node.id={node}
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners}{of_controller}
advertised.listeners={listeners}
listener.security.protocol.map={protocols},CONTROLLER:PLAINTEXT
inter.broker.listener.name=INSIDE
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.ms=-1
"""


@dataclass(frozen=True, slots=True)
class OwnBroker:
    """A broker that runs, with its listeners by name: `INSIDE` has no security."""

    ports: dict[str, int]
    log: Path
    controller: int
    """The port of the controller of its cluster."""
    cluster_id: str
    process: subprocess.Popen[bytes]

    def address(self, listener: str = "INSIDE") -> str:
        """Where a listener is."""
        return f"127.0.0.1:{self.ports[listener]}"


def jars_of(version: str) -> Path:
    """Return the folder with the jars of a version of Kafka; they are fetched at the first call."""
    folder = jars_folder().parent / "brokers" / version
    if folder.exists():
        return folder
    say(f"jars: fetching Kafka {version}, once, into {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = folder.with_name(f"{version}-{uuid.uuid4().hex[:8]}")
    staged.mkdir()
    (staged / "ivy.xml").write_text(_IVY.format(version=version))
    (staged / "settings.xml").write_text(_IVY_SETTINGS)
    (ivy,) = (pyspark_home() / "jars").glob("ivy-*.jar")
    done = subprocess.run(
        [
            *(str(find_java().executable), "-jar", str(ivy)),
            *("-settings", str(staged / "settings.xml"), "-ivy", str(staged / "ivy.xml")),
            *("-cache", str(folder.parent / "ivy"), "-confs", "broker", "-types", "jar", "bundle"),
            *("-retrieve", f"{staged}/[artifact]-[revision](-[classifier]).[ext]"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (
        f"Kafka {version} cannot be fetched; is the network up?\n{done.stdout[-2000:]}"
    )
    for left in staged.glob("*.xml"):
        left.unlink()
    staged.rename(folder)
    return folder


@contextmanager
def own_broker(
    folder: Path,
    jars: Path,
    listeners: dict[str, str] | None = None,
    properties: str = "",
    options: Sequence[str] = (),
    beside: OwnBroker | None = None,
) -> Iterator[OwnBroker]:
    """Have a broker run, the only one of its cluster or one more `beside` another. `listeners` are further ones, with
    their security protocol; `options` are the JVM's."""
    protocols = {"INSIDE": "PLAINTEXT", **(listeners or {})}
    free = (port for port in random.sample(range(10_000, 20_000), 500) if ports.is_free(port))
    chosen = {name: next(free) for name in protocols}
    controller = beside.controller if beside else next(free)
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "server.properties"
    settings.write_text(
        _SETTINGS.format(
            roles="broker" if beside else "broker,controller",
            node=2 if beside else 1,
            controller=controller,
            of_controller="" if beside else f",CONTROLLER://127.0.0.1:{controller}",
            listeners=",".join(f"{name}://127.0.0.1:{port}" for name, port in chosen.items()),
            protocols=",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            data=folder / "data",
        )
        + properties
    )
    java = find_java()
    run = [
        str(java.executable),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        *options,
        "-cp",
        f"{jars}/*",
    ]
    identifier = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
    identifier = beside.cluster_id if beside else identifier
    storage = [*run, "kafka.tools.StorageTool", "format", "-t", identifier, "-c", str(settings)]
    made = subprocess.run(storage, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-1000:] + made.stderr[-2000:]
    log_file = folder / "kafka.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [run[0], "-Xmx512m", "-Xms128m", *run[1:], "kafka.Kafka", str(settings)],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    broker = OwnBroker(chosen, log_file, controller, identifier, process)
    try:
        wait_until(
            lambda: _serves(broker, 2 if beside else 1), PATIENCE_S, lambda: broker.log.read_text()[-3000:]
        )
        yield broker
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


def _serves(broker: OwnBroker, brokers: int) -> bool:
    assert broker.process.poll() is None, broker.log.read_text()[-3000:]
    if not all(ports.accepts(port) for port in broker.ports.values()):
        return False
    try:
        with Topics(Settings({"bootstrap_servers": broker.address()}), timeout=3) as topics:
            return topics.cluster()[1] == brokers
    except BrokerNotAvailable:
        return False
