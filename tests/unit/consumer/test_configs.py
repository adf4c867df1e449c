"""The configs of a share consumer that change which records it reads are refused."""

from __future__ import annotations

import pytest

from sharequeue.consumer.configs import consumer_config


@pytest.mark.parametrize("name", ["isolation.level", "auto.offset.reset"])
def test_a_config_of_topics_is_refused_like_the_same_config_of_the_client(name: str) -> None:
    """The client gives `default.topic.config` precedence: at another level, leased records would count as gaps."""
    with pytest.raises(ValueError, match=f"`{name}` is not applicable for share consumer"):
        consumer_config({"group.id": "g", "default.topic.config": {name: "latest"}}, {})


def test_only_one_cluster_is_read(no_environment: pytest.MonkeyPatch) -> None:
    """An address under its older name would stand beside the group's."""
    config = {
        "group.id": "g",
        "sharequeue.database.url": "postgresql://nobody@127.0.0.1:1/none",
        "bootstrap.servers": "here:9092",
        "metadata.broker.list": "elsewhere:9092",
    }
    found = consumer_config(config, {})
    assert found.settings.bootstrap_servers == "here:9092"
    assert "metadata.broker.list" not in found.reading
