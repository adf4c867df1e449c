"""A cluster that knows no broker for a moment, because all are fenced, ends no process of ours."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.domain.settings import Settings
from sharequeue.kafka.topics import Topics

API_VERSIONS, METADATA = 18, 3


class Fenced:
    """As much of a broker as a question for the cluster needs; `brokers` is how many of them its metadata has."""

    def __init__(self) -> None:
        self.brokers = 1
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as requests:
            while size := requests.read(4):
                request = requests.read(*struct.unpack(">i", size))
                key, version, correlation = struct.unpack_from(">hhi", request)
                body = self._versions(version) if key == API_VERSIONS else self._metadata()
                connection.sendall(struct.pack(">ii", 4 + len(body), correlation) + body)

    def _versions(self, version: int) -> bytes:
        only = struct.pack(">hhh", API_VERSIONS, 0, 0)
        if version > 0:
            return struct.pack(">hi", 35, 1) + only  # UNSUPPORTED_VERSION: ask again with the oldest
        return struct.pack(">hi", 0, 2) + only + struct.pack(">hhh", METADATA, 4, 4)

    def _metadata(self) -> bytes:
        broker = struct.pack(">i", 1) + _text("127.0.0.1") + struct.pack(">ih", self.port, -1)
        listed = struct.pack(">ii", 0, self.brokers) + broker * self.brokers
        return listed + _text("a-cluster") + struct.pack(">ii", 1 if self.brokers else -1, 0)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


@pytest.fixture
def fenced() -> Iterator[Fenced]:
    """A broker whose cluster may be without brokers."""
    broker = Fenced()
    yield broker
    broker.close()


def test_a_cluster_without_brokers_is_not_available(fenced: Fenced) -> None:
    """librdkafka's DescribeCluster ends the process by an assertion here; the service went down with it."""
    with Topics(Settings({"bootstrap_servers": f"127.0.0.1:{fenced.port}"}), timeout=2) as topics:
        assert topics.cluster() == ("a-cluster", 1)
        fenced.brokers = 0
        with pytest.raises(BrokerNotAvailable):
            topics.cluster()
        fenced.brokers = 1
        assert topics.cluster_id() == "a-cluster"
