"""Results that wait for a topic, as a list, and what an operator decides about those that are held."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.deadletters.outbox import Marker
from sharequeue.domain.offsets import MAX_OFFSET
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType, LeaseOutput, SharePartition
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.kafka.clients import client_config
from sharequeue.kafka.topics import Topics
from sharequeue.spark.sinks.kafka.sending import LOST, RECREATED, Names
from sharequeue.state import State
from tests import single
from tests.fixtures.stack import MakeTopic
from tests.waiting import PATIENCE_S

REASON = "the marker is missing."
Call = Callable[..., Result]


class Held:
    """A group whose results of two source partitions wait for a topic; their transfer is held."""

    def __init__(self, settings: Settings, database: Database, source: str, target: str) -> None:
        self.state, self.source, self.target = State(database), source, target
        ensure_group(database, "g")
        with Topics(settings) as topics:
            self.ids = {name: topics.info(name).topic_id for name in (source, target)}
        for partition in range(2):
            at = SharePartition("g", source, partition)
            self.state.initialize(at, self.ids[source], 0, 1)
            single.observe(self.state, at, self.ids[source], 0, 10, 10)
            lease = single.acquire(self.state, at, "m", None, 10)
            assert lease is not None
            output = LeaseOutput("results", f"sink:pending:/{partition}", 5)
            single.acknowledge(self.state, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=[output])
        found = self.state.outputs.begin_transfer("g", "results", timedelta(seconds=30))
        assert found is not None
        self.number = found.number
        self.state.outputs.hold_transfer("g", "results", found.number, REASON)
        self._admin = AdminClient(client_config(settings))
        self._markers = Names("g", "results", str(self.state.outputs.identity().origin_id)).markers
        self.leases = {each.lease_id for each in self.state.outputs.counted("g", "results")}
        url = database.engine.url.render_as_string(hide_password=False)
        self._addresses = ["--database-url", url, "--bootstrap-server", settings.bootstrap_servers]

    def mark(self, partition: int, topic_id: str, through: int) -> None:
        """Commit the marker of a source partition."""
        marker = Marker(self.number, str(self.number), self.target, topic_id, through)
        at = ConsumerGroupTopicPartitions(self._markers, [marker.committed_at(self.source, partition)])
        self._admin.alter_consumer_group_offsets([at])[self._markers].result(PATIENCE_S)

    def marked(self) -> dict[int, tuple[int, str]]:
        """Return offset and metadata of each marker."""
        asked = ConsumerGroupTopicPartitions(
            self._markers, [TopicPartition(self.source, partition) for partition in range(2)]
        )
        found = self._admin.list_consumer_group_offsets([asked])[self._markers].result(PATIENCE_S)
        return {
            each.partition: (each.offset, each.metadata or "")
            for each in found.topic_partitions
            if each.offset >= 0
        }

    def called(self, *words: str) -> Any:
        """Call a command; return its rows, or its error."""
        result = CliRunner().invoke(command, [*words, *self._addresses, "-o", "json"])
        return str(result.exception) if result.exception else json.loads(result.stdout)

    def resumed(self, *words: str) -> Any:
        """Call `resume` for these results."""
        return self.called(
            "results", "resume", "--group", "g", "--sink", "results", "--to", self.target, *words
        )

    def decided(self) -> Any:
        """Return what the audit log has about the decision."""
        rows = self.called("audit", "--act", "resume_results")
        return [(row["before"]["reason"], row["after"]) for row in rows]

    def waiting(self) -> list[tuple[int, str | None]]:
        """Return rows and reasons of what waits."""
        return [(each.rows, each.held_reason) for each in self.state.outputs.waiting_results(["g"])]


@pytest.fixture
def held(settings: Settings, private_database: Database, make_topic: MakeTopic) -> Held:
    """Give results whose first source partition has no marker, while all of the second one is written."""
    private_database.rows(
        sa.text("select sharequeue.set_clock_offset(cast(:none as interval))"), none=timedelta(0)
    )
    found = Held(settings, private_database, make_topic(2), make_topic(1))
    found.mark(1, found.ids[found.target], MAX_OFFSET)
    return found


def test_results_that_wait_are_listed(held: Held) -> None:
    """With the reason of those that are held."""
    (row,) = held.called("results", "list")
    assert (row["group"], row["sink"], row["rows"], row["status"], row["reason"]) == (
        *("g", "results", 10),
        *("held", REASON),
    )
    held.state.outputs.hold_transfer("g", "results", held.number, None)
    (row,) = held.called("results", "list", "--group", "g")
    assert (row["status"], row["reason"]) == ("waiting", None)
    assert "are held, so there is nothing to decide" in held.resumed()


def test_what_is_not_known_is_sent_again(held: Held) -> None:
    """Only where the marker does not allow it; a dry run changes nothing. The audit log has the decision."""
    before = held.marked()
    planned = held.resumed()
    assert [(row["partition"], row["rows"], row["problem"], row["status"]) for row in planned] == [
        (0, 5, LOST, "dry run"),
        (1, 5, None, "dry run"),
    ]
    assert (held.marked(), held.waiting(), held.decided()) == (before, [(10, REASON)], [])
    done = held.resumed("--execute", "--yes")
    assert [row["status"] for row in done] == [
        "the next run sends all rows",
        "the next run sends what is missing",
    ]
    assert (held.marked(), held.waiting()) == ({0: (0, ""), **before}, [(10, None)])
    assert held.decided() == [(REASON, {"decision": "send again", "location": None})]


def test_what_is_not_known_counts_as_written(held: Held) -> None:
    """Not while rows are left that can be sent; a topic that was created again is not known, too. The files are then
    removed by the next sweep, and the audit log has the decision."""
    known = held.ids[held.target]
    held.mark(1, known, 3)
    words = ("--count-as-written", "--execute", "--yes")
    assert f"Rows of {held.source}-1 have not been sent to {held.target}" in held.resumed(*words)
    assert (held.waiting(), held.decided()) == ([(10, REASON)], [])
    assert held.state.outputs.needed(held.leases)[1] == {("results", each) for each in held.leases}
    given_up = held.resumed("--count-as-written", "--also-unsent")
    assert [row["status"] for row in given_up] == ["dry run", "dry run, not sent after offset 3"]
    held.mark(1, held.ids[held.source], 3)
    done = held.resumed(*words)
    assert [(row["problem"], row["status"]) for row in done] == [
        (LOST, "counted as written"),
        (RECREATED, "counted as written"),
    ]
    assert held.waiting() == []
    assert held.state.outputs.needed(held.leases) == (set(), set(), set())
    counted = held.state.outputs.counted("g", "results")
    assert {row.location for row in counted} == {f"sink:kafka:{held.target}"}
    location = f"sink:kafka:{held.target}"
    assert held.decided() == [(REASON, {"decision": "count as written", "location": location})]


def test_rows_that_the_broker_refuses_can_be_given_up(held: Held) -> None:
    """Their marker allows to send them, so that it has to be said; nothing of the transfer waits any more."""
    held.mark(0, held.ids[held.target], 3)
    done = held.resumed("--count-as-written", "--also-unsent", "--execute", "--yes")
    assert [(row["problem"], row["status"]) for row in done] == [
        (None, "counted as written, not sent after offset 3"),
        (None, "counted as written"),
    ]
    assert held.waiting() == []
