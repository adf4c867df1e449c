"""Dead letters that cannot be written say so wherever somebody may look, and stop saying so once they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]

from sharequeue.database import Database
from sharequeue.deadletters import batches
from sharequeue.domain.settings import Settings
from sharequeue.groups.heartbeats import ensure_group
from sharequeue.service.coordinator.dead_letter_turns import DeadLetterTurns
from tests.fixtures.deadletters import GROUP_CONFIGS, GivenUp, alter_configs
from tests.integration.service.test_service import serving
from tests.waiting import PATIENCE_S

Make = Callable[..., GivenUp]
METRIC = "sharequeue_share_partition_held_dead_letters{"


@pytest.fixture
def held(given_up: Make, private_database: Database) -> GivenUp:
    """Give a group with six dead letters of two partitions, whose topic does not take them."""
    made = given_up(partitions=2, errors_deadletterqueue_group_enable="false")
    case = replace(made, database=private_database)
    ensure_group(private_database, case.group)
    case.configure(
        **{name.replace(".", "_"): value for name, value in GROUP_CONFIGS.items()},
        errors_deadletterqueue_topic_name=case.dead_letter_topic,
    )
    case.produce(6, partitions=2)
    case.reject()
    return case


@pytest.fixture
def client(held: GivenUp, settings: Settings) -> Iterator[httpx.Client]:
    """Give a client of the service, which runs over that database in a thread."""
    place = held.database.engine.url.render_as_string(hide_password=False)
    with (
        serving(settings.replace(database_url=place, service_write_dead_letters=False)) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client,
    ):
        yield client


def metrics(client: httpx.Client) -> list[str]:
    return [line for line in client.get("/metrics").text.splitlines() if line.startswith(METRIC)]


def told_held(client: httpx.Client) -> list[dict[str, Any]]:
    return [each for each in client.get("/ready").json()["faults"] if each["kind"] == "held_dead_letters"]


def test_held_dead_letters_are_shown_until_they_are_written(
    held: GivenUp, client: httpx.Client, settings: Settings
) -> None:
    """`State`, `/ready` and the metric name share-partition, records and what to do, from the failure until a batch
    is written; the service itself is ready all the while."""
    assert (held.state.dead_letters.held(), metrics(client)) == ([], [])
    report = held.writer().write()
    told = held.state.dead_letters.held(held.group)
    assert [(each.share_partition, each.records, each.reason) for each in told] == [
        (each.share_partition, each.records, each.reason) for each in report.held
    ]
    ready = client.get("/ready")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert ready.json()["degraded"] is True
    first, second = told_held(client)
    assert (first["group"], first["topic"]) == (held.group, held.topic)
    assert {first["partition"], second["partition"]} == {0, 1}
    assert first["reason"].startswith("3 dead letters wait: ")
    assert first["age_seconds"] >= 0
    assert "set its config `errors.deadletterqueue.group.enable=true`" in first["reason"]
    assert len(metrics(client)) == 2
    assert metrics(client)[0].endswith(" 3.0")

    # Held on: since when does not move, whatever the reason is by now.
    held.configure(errors_deadletterqueue_topic_name="letters.not-there")
    held.writer().write()
    again = held.state.dead_letters.held(held.group)
    assert "`letters.not-there` does not begin with `dlq.`" in again[0].reason
    assert [each.since for each in again] == [each.since for each in told]

    held.configure(errors_deadletterqueue_topic_name=held.dead_letter_topic)
    opted_in = {"errors_deadletterqueue_group_enable": "true"}
    alter_configs(settings, ResourceType.TOPIC, held.dead_letter_topic, **opted_in)
    assert held.writer().write().written == 6
    assert held.state.dead_letters.held() == []
    assert told_held(client) == []
    assert metrics(client) == []
    held.assert_each_exactly_once()


def test_dropping_holds_nothing(held: GivenUp, client: httpx.Client) -> None:
    """Kafka's way: what cannot be written is dropped, and there is nothing to say but how many."""
    held.writer().write()
    held.configure(sharequeue_dead_letter_drop_enable="true")
    assert held.writer().write().dropped == 6
    assert told_held(client) == []


def test_a_group_that_is_gone_holds_nothing(held: GivenUp) -> None:
    """What is told ends with the share-partitions that it is told of."""
    held.writer().write()
    held.state.administration.delete_offsets(held.group, held.topic)
    assert held.state.dead_letters.held() == []


def test_an_error_without_a_rule_is_a_reason(given_up: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that the client itself refuses: the writer ends with the client's words, and the state has them."""
    case = given_up(max_message_bytes="2147483647")
    case.produce(1)
    case.reject()
    monkeypatch.setattr(batches, "LARGEST_MESSAGE_BYTES", 2**31)
    [told] = case.writer(try_again_seconds=0).write().held
    assert told.reason.startswith("the writer failed (KafkaException: ")
    assert "message.max.bytes" in told.reason
    assert case.state.dead_letters.held(case.group)[0].reason == told.reason


def test_an_error_before_the_first_batch_is_a_reason(held: GivenUp) -> None:
    """A file that the service cannot read ends its turn before the broker is asked: the reason is stored."""
    refused = held.settings.replace(kafka={"security.protocol": "ssl", "ssl.ca.location": "/there/is/none"})
    turns = DeadLetterTurns(refused, held.database, "replica")
    turns._turn(turns.waiting())
    reasons = {each.reason for each in held.state.dead_letters.held(held.group)}
    assert len(reasons) == 1
    assert "/there/is/none cannot be read" in reasons.pop()
    assert turns.failed[held.group] == 2


def test_a_topic_may_take_what_no_client_can_send(given_up: Make) -> None:
    """Kafka's highest `max.message.bytes` is above the client's: the letters are written."""
    case = given_up(copy=True, max_message_bytes="2147483647")
    case.produce(2)
    case.reject()
    assert case.writer().write().written == 2
    case.assert_each_exactly_once()
