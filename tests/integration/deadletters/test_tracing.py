"""The life of one record across the state and Kafka: its letter is found, and its redrive is followed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer

from sharequeue.cli import command
from sharequeue.cli.output import WIDTH
from sharequeue.deadletters.redrive.discard import Discard
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.deadletters.trace_events import TraceEvent
from sharequeue.deadletters.tracing import Tracer
from sharequeue.domain.errors import UnknownTopicOrPartition
from sharequeue.domain.offsets import OffsetSet
from sharequeue.domain.values import AcknowledgeType, LeaseOutput
from sharequeue.kafka import reading
from sharequeue.kafka.reading import open_consumer
from tests import single
from tests.fixtures.deadletters import GivenUp, execute
from tests.fixtures.logs import delete_before
from tests.fixtures.stack import MakeTopic

Make = Callable[..., GivenUp]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def trace(case: GivenUp, offset: int, *groups: str) -> list[TraceEvent]:
    return list(Tracer(case.settings, case.database).trace(case.topic, 0, offset, groups or (case.group,)))


def names(events: Sequence[TraceEvent]) -> list[str]:
    return [each.event for each in events]


def only(events: Sequence[TraceEvent], event: str) -> TraceEvent:
    (found,) = [each for each in events if each.event == event]
    return found


def redrive(case: GivenUp) -> None:
    execute(Redrive(case.settings, case.database, case.dead_letter_topic, Selection()))


def accept(case: GivenUp) -> int:
    """Accept all that is there, with an output; return the lease."""
    (at,) = case.observe()
    lease = single.acquire(case.state, at, "second", None, 100)
    assert lease is not None
    where = f"/output/{case.group}/leases=x/sharequeue_lease={lease.lease_id}"
    output = LeaseOutput(case.group, where, lease.offsets.count)
    single.acknowledge(case.state, lease, {AcknowledgeType.ACCEPT: lease.offsets}, outputs=[output])
    return lease.lease_id


def test_a_record_is_followed_from_its_letter_to_the_output_of_its_second_life(given_up: Make) -> None:
    """Produced, leased, rejected, its letter with its place, redriven, and accepted at its new offset, with the
    folder of the lease. The trace header of the record is shown in both lives."""
    case = given_up()
    case.produce(3, headers=[("traceparent", TRACE.encode())])
    case.reject({0: OffsetSet.of((1, 2))})
    case.writer().write()
    redrive(case)
    lease = accept(case)
    events = trace(case, 1)
    assert names(events) == [
        *("produced", "leased", "rejected", "letter", "redriven"),
        *("produced", "leased", "accepted", "output"),
    ]
    letter, redriven = only(events, "letter"), only(events, "redriven")
    (written,) = case.letters()
    assert letter.place == f"{case.dead_letter_topic}:{written.partition}:{written.offset}"
    assert (letter.delivery, letter.detail) == (1, "rejected")
    assert redriven.place is not None
    second = events[5:]
    assert {f"{each.topic}:{each.partition}:{each.offset}" for each in second} == {redriven.place}
    assert second[0].detail == f"redriven from {letter.place}, traceparent {TRACE}"
    assert events[0].detail == f"traceparent {TRACE}"
    assert (second[1].lease, second[1].member, second[1].group) == (lease, "second", case.group)
    assert second[3].place == f"/output/{case.group}/leases=x/sharequeue_lease={lease}"


def test_a_record_that_was_not_given_up_has_no_letter(given_up: Make) -> None:
    """Its neighbours' letters are not its own; an offset beyond the log, and one between, say what they are."""
    case = given_up()
    case.produce(3)
    case.reject({0: OffsetSet.of((1, 2))})
    case.writer().write()
    assert names(trace(case, 2)) == ["produced", "leased", "accepted"]
    beyond = trace(case, 3)
    assert names(beyond) == ["note"]
    case.produce(1)
    assert only(trace(case, 3), "not leased").detail == "the group has leased no offset from 3 on"
    assert beyond[0].detail == "the offset is beyond the end of the log, 3"
    with pytest.raises(UnknownTopicOrPartition, match="No share group has state of"):
        list(Tracer(case.settings, case.database).trace(f"{case.topic}-none", 0, 0))


def test_a_letter_that_waits_or_was_discarded_says_so(given_up: Make) -> None:
    """Before its batch is written it waits; after a discard the trace has who has discarded it."""
    case = given_up()
    case.produce(1)
    case.reject()
    assert only(trace(case, 0), "archiving").detail == "its dead letter waits to be written"
    case.writer().write()
    discard = Discard(case.settings, case.database, case.dead_letter_topic, Selection())
    discard.run(discard.plan())
    events = trace(case, 0)
    assert names(events) == ["produced", "leased", "rejected", "letter", "discarded"]
    assert events[4].at is not None
    assert events[4].detail is not None
    assert events[4].detail.startswith("by ")


def test_a_redrive_to_another_topic_is_followed_there(given_up: Make, make_topic: MakeTopic) -> None:
    """Also where the key has chosen the partition; nobody reads that topic, and the trace says so."""
    case, target = given_up(), make_topic(3)
    case.produce(1)
    case.reject()
    case.writer().write()
    options = {"target": target, "by_key": True}
    execute(Redrive(case.settings, case.database, case.dead_letter_topic, Selection(), **options))  # type: ignore[arg-type]
    events = list(Tracer(case.settings, case.database).trace(case.topic, 0, 0))
    assert names(events)[-3:] == ["redriven", "produced", "note"]
    assert events[-3].place == f"{target}:{events[-1].partition}:{events[-1].offset}"
    assert events[-1].detail == "no share group has state of the partition"


def test_records_that_are_redriven_to_each_other_are_traced_once(
    given_up: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that comes back again and again is followed up to its last life, each of them once, and with the same
    two clients."""
    case = given_up()
    case.produce(1)
    case.reject()
    for _ in range(2):
        case.writer().write()
        redrive(case)
        case.reject()
    opened: list[Consumer] = []

    def opening(config: Mapping[str, Any]) -> Consumer:
        opened.append(open_consumer(config))
        return opened[-1]

    monkeypatch.setattr(reading, "open_consumer", opening)
    events = trace(case, 0)
    assert len(opened) == 2
    lives = [(each.topic, each.offset) for each in events if each.event == "produced"]
    assert len(lives) == len(set(lives)) == 3
    assert names(events).count("rejected") == 3


def test_all_groups_or_those_that_are_named(given_up: Make) -> None:
    """Without a group all that have state of the partition are traced; one without it says so."""
    case = given_up()
    case.produce(1)
    case.reject()
    other = case.renamed(f"{case.group}-other")
    accept(other)
    found = list(Tracer(case.settings, case.database).trace(case.topic, 0, 0))
    assert {each.group for each in found if each.group} == {case.group, other.group}
    assert only(trace(case, 0, other.group), "accepted").group == other.group
    (note,) = [each for each in trace(case, 0, "nobody") if each.event == "note"]
    assert note.detail == "the group has no state of the partition"


def test_another_topic_of_the_same_name_is_named(given_up: Make) -> None:
    """After the topic was deleted and created again, the group's record is not the broker's."""
    case = given_up()
    case.produce(1)
    case.reject()
    case.topics.delete(case.topic)
    case.topics.create(case.topic, 1)
    details = [each.detail or "" for each in trace(case, 0) if each.event == "note"]
    assert any("it was created again, so this is another record" in each for each in details)
    assert names(trace(case, 0)).count("rejected") == 1


def test_what_retention_took_before_it_was_processed_is_lost(given_up: Make) -> None:
    """A record that waited for its next delivery, and one that had none: also before the group has seen it."""
    case = given_up()
    case.produce(4)
    (at,) = case.observe()
    lease = single.acquire(case.state, at, "member", None, 2)
    assert lease is not None
    single.acknowledge(case.state, lease, {AcknowledgeType.RELEASE: lease.offsets})
    delete_before(case.settings, case.topic, 3)
    gone = "retention has removed the record: the group counts it as lost when it next reads the log's start"
    assert only(trace(case, 1), "available").detail == only(trace(case, 2), "not leased").detail == gone
    case.observe()
    assert names(trace(case, 1)) == ["note", "leased", "released", "lost"]
    assert names(trace(case, 2)) == ["note", "lost"]


def test_an_operators_act_is_in_the_trace(given_up: Make) -> None:
    """A record that was released by hand, with the principal; its neighbour was not."""
    case = given_up()
    case.produce(2)
    (at,) = case.observe()
    assert single.acquire(case.state, at, "member", None, 10)
    case.state.administration.force_release(at, OffsetSet.of((0, 1)), execute=True)
    events = trace(case, 0)
    assert names(events) == ["produced", "leased", "released", "released by hand", "available"]
    assert (only(events, "released by hand").detail or "").startswith("by ")
    assert "released by hand" not in names(trace(case, 1))


def _json(case: GivenUp, *words: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(command, ["trace", *words, *_where(case), "-o", "json"])
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def _where(case: GivenUp) -> tuple[str, ...]:
    return (
        *("--database-url", case.settings.database_url),
        *("--bootstrap-server", case.settings.bootstrap_servers),
        *("--home", str(case.settings.home)),
    )


def test_the_command_prints_the_events(given_up: Make) -> None:
    """As JSON with all columns, and as a table of ordinary width; without a name of a group for all groups."""
    case = given_up()
    case.produce(1)
    case.reject()
    case.writer().write()
    rows = _json(case, case.topic, "0", "0")
    assert [row["event"] for row in rows] == ["produced", "leased", "rejected", "letter"]
    assert rows[1]["member"] == "member"
    assert rows[3]["place"].startswith(f"{case.dead_letter_topic}:")
    text = CliRunner().invoke(command, ["trace", case.topic, "0", "0", *_where(case)]).stdout
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    _, partition, offset = rows[3]["place"].split(":")
    shown = CliRunner().invoke(
        command, ["dlq", "show", case.dead_letter_topic, partition, offset, *_where(case)]
    )
    assert f"sharequeue trace {case.topic} 0 0 --group {case.group}" in shown.stdout
    refused = CliRunner().invoke(command, ["trace", case.topic, "0", "0", "--group", "nobody", *_where(case)])
    assert refused.exit_code == 1
