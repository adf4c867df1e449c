"""What `share-groups` prints, where it is not compared with Kafka's tool: names that a terminal would obey."""

from __future__ import annotations

from sharequeue.cli.kafka.views import table


def test_a_member_cannot_forge_a_row() -> None:
    """A member id or client id with a line end, an escape sequence or a turn of direction is one cell, escaped."""
    rows = [{"consumer_id": "m\n\x1b[31mforged", "client_id": "\u202eabc\r\n"}]
    head, row = table(("CONSUMER-ID", "CLIENT-ID"), rows).splitlines()
    assert head.split() == ["CONSUMER-ID", "CLIENT-ID"]
    assert row.split() == [r"m\n\x1b[31mforged", r"\u202eabc\r\n"]
