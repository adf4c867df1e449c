"""Does a program run unchanged on the broker's share groups and on ours?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from sharequeue import Database, Settings
from sharequeue.kafka.clients import client_config
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import work_on

SCRIPT = Path(__file__).parent / "script.py"


def _run(module: str, config: dict[str, str], topic: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), module, json.dumps(config), topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )


def _starting_at_earliest(settings: Settings, group: str) -> None:
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient(client_config(settings))
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def test_the_same_script_sees_the_same_on_both(
    settings: Settings, database: Database, make_topic: MakeTopic, group: str
) -> None:
    """Records, delivery counts, results of commits, callbacks, and each exception with its text."""
    topic = make_topic()
    _starting_at_earliest(settings, group)
    with work_on(settings, database, group) as work:
        work.produce(topic, 6)
        config = {"bootstrap.servers": settings.bootstrap_servers, "group.id": group}
        running = [_run("confluent_kafka", config, topic), _run("sharequeue", work.config(), topic)]
        outputs = [process.communicate(timeout=120) for process in running]
    saw = [[json.loads(line) for line in out.splitlines() if line.startswith("[")] for out, _ in outputs]
    assert [process.returncode for process in running] == [0, 0], [errors for _, errors in outputs]
    assert saw[0] == saw[1]
    assert len(saw[1]) > 40
