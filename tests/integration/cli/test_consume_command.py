"""`sharequeue consume` prints what a member of the group gets, and `--browse` what the group has not done."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result
from confluent_kafka import Producer
from sqlalchemy.exc import OperationalError

from sharequeue import Database, Settings
from sharequeue.cli import command
from sharequeue.kafka.clients import client_config
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import work_on
from tests.waiting import PATIENCE_S


def test_records_are_printed_and_accepted(
    settings: Settings, database: Database, group: str, make_topic: MakeTopic
) -> None:
    """As Kafka's console prints them; released ones come again with a higher count; looking changes nothing."""
    topic = make_topic()
    producer = Producer(client_config(settings))
    for number in range(4):
        producer.produce(topic, f"v{number}", key=f"k{number}", headers=[("h", b"1")])
    assert producer.flush(PATIENCE_S) == 0
    url = database.engine.url.render_as_string(hide_password=False)
    where = ("--database-url", url, "--home", str(settings.home), "--topic", topic, "--group", group)

    def consume(*words: str) -> Result:
        result = CliRunner().invoke(command, ["consume", *where, *words])
        assert result.exit_code == 0, result.output
        return result

    with work_on(settings, database, group) as work:
        released = consume("--release", "--max-messages", "4", "--timeout-ms", "60000")
        assert released.stdout.splitlines() == ["v0", "v1", "v2", "v3"]
        assert released.stderr.endswith("Processed a total of 4 messages\n")
        browsed = [json.loads(line) for line in consume("--browse", "-o", "jsonl").stdout.splitlines()]
        assert [(each["value"], each["state"], each["headers"]) for each in browsed] == [
            (f"v{number}", "available", [["h", "1"]]) for number in range(4)
        ]
        assert len(json.loads(consume("--browse", "--max-messages", "1", "-o", "json").stdout)) == 1
        assert {each.acquired for each in work.status()} == {0}
        shown = ("print.key", "print.offset", "print.delivery", "print.headers", "print.partition")
        properties = [word for name in shown for word in ("--formatter-property", f"{name}=true")]
        accepted = consume("--max-messages", "3", "--timeout-ms", "60000", *properties)
        # Looking has counted no delivery.
        assert accepted.stdout.splitlines()[0] == "Partition:0\tOffset:0\tDelivery:2\th:1\tk0\tv0"
        assert {each.acquired for each in work.status()} == {0}
        assert consume("--browse").stdout == "v3\n"
        last = json.loads(consume("--max-messages", "1", "--timeout-ms", "60000", "-o", "jsonl").stdout)
        assert (last["value"], last["delivery_count"]) == ("v3", 2)
        assert consume("--timeout-ms", "500").stdout == ""
        assert work.done()


def test_a_database_that_is_away_is_an_error(settings: Settings, make_topic: MakeTopic) -> None:
    """No record was looked for, so it is not the same as none."""
    words = ("--database-url", "postgresql://nobody@127.0.0.1:9/nothing", "--home", str(settings.home))
    result = CliRunner().invoke(
        command, ["consume", *words, "--topic", make_topic(), "--group", "g", "--timeout-ms", "500"]
    )
    assert isinstance(result.exception, OperationalError)
