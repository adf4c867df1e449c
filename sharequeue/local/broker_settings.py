"""The settings of the embedded broker: ours, then the user's, then its address.

They are for a single node (every replication factor is 1) that keeps old records and is available soon after a
SIGKILL.
"""

from __future__ import annotations

from pathlib import Path

from sharequeue.local import ports
from sharequeue.local.home import Home

__all__ = ["write_settings"]

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
