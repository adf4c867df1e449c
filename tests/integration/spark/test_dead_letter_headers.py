"""From an exception in a Spark job to the headers of its dead letter: two rounds and a writer, 4 s."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sharequeue.database import Database
from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.deadletters.writer import DeadLetterWriter
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import GroupConfigs
from sharequeue.spark.row_handlers import Reject, by_row
from sharequeue.state import State
from tests.fixtures.pipelines import Assigned, Produce, RunJob, job_of
from tests.fixtures.stack import MakeTopic


def order(record: dict[str, Any]) -> Mapping[str, Any]:
    """An order as JSON; what is not ours is refused at once, and what is no JSON after its second delivery."""
    text = record["value"].decode()
    if text == "not ours":
        raise Reject("another shop's")
    parsed: Mapping[str, Any] = {"name": json.loads(text)["name"]}
    return parsed


def test_a_dead_letter_says_what_its_handler_raised(
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    settings: Settings,
    database: Database,
    state: State,
) -> None:
    """Class and message as raised, whether rejected or exhausted; nothing of it went through the acknowledgement."""
    topic = make_topic(1)
    letters_topic = make_topic(1, name=f"dlq.{topic}", errors_deadletterqueue_group_enable="true")
    produce(topic, 0, ['{"name": "tea"}', "not ours", "no json", '{"name": "salt"}', "{}"])
    configs = {"share_delivery_count_limit": "2", "sharequeue_retry_backoff_ms": "0"}
    holder = assigned(topic, errors_deadletterqueue_topic_name=letters_topic, **configs)
    job = job_of(group, topic, by_row(order, "name string"), deliveries_per_run=2)
    report = run_job(job, holder)
    assert (report.accepted, report.drained) == (2, True)
    DeadLetterWriter(settings, state, group, GroupConfigs.load(database, group)).write()
    said = {
        letter.source_offset: (
            letter.cause,
            letter.delivery_count,
            letter.exception_class,
            letter.exception_message,
        )
        for letter in read_dead_letters(settings, letters_topic)
    }
    assert said == {
        1: ("rejected", 1, "Reject", "another shop's"),
        2: ("exhausted", 2, "JSONDecodeError", "Expecting value: line 1 column 1 (char 0)"),
        4: ("exhausted", 2, "KeyError", "'name'"),
    }
