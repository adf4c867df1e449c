"""A program runs unchanged on the broker's share groups and on ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]

from sharequeue import Database, Settings
from tests.fixtures.deadletters import alter_configs
from tests.fixtures.stack import MakeTopic
from tests.integration.consumer.share_group import work_on
from tests.waiting import PATIENCE_S

SCRIPT = Path(__file__).parent / "script.py"
REMEDY = re.compile(r"(?<=Local: Erroneous state) \([^)]*\)")


def _run(module: str, config: dict[str, str], topic: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), module, json.dumps(config), topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )


def test_the_same_script_sees_the_same_on_both(
    settings: Settings, database: Database, make_topic: MakeTopic, group: str
) -> None:
    """Records, delivery counts, results of commits, callbacks, and each exception with its text.

    Where confluent's text has no remedy, ours adds one in parentheses.
    """
    topic = make_topic()
    alter_configs(settings, ResourceType.GROUP, group, share_auto_offset_reset="earliest")
    with work_on(settings, database, group) as work:
        work.produce(topic, 6)
        config = {"bootstrap.servers": settings.bootstrap_servers, "group.id": group}
        running = [_run("confluent_kafka", config, topic), _run("sharequeue", work.config(), topic)]
        outputs = [process.communicate(timeout=PATIENCE_S) for process in running]
    saw = [[json.loads(line) for line in out.splitlines() if line.startswith("[")] for out, _ in outputs]
    assert [process.returncode for process in running] == [0, 0], [errors for _, errors in outputs]
    added = [line for line in saw[1] if REMEDY.search(str(line))]
    assert len(added) == 5, added
    assert saw[0] == json.loads(REMEDY.sub("", json.dumps(saw[1])))
    assert len(saw[1]) > 40
