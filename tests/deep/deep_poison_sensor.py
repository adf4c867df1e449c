"""A record that kills its process, in a queue that Dagster runs by itself: its own daemon ticks the lag sensor, takes
the run from its queue and starts its process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

from sharequeue.deadletters.letters import read_dead_letters
from sharequeue.domain.settings import Settings
from sharequeue.local import dagster_ui
from sharequeue.state import State
from tests.fixtures.pipelines import Produce
from tests.fixtures.stack import MakeTopic
from tests.waiting import wait_until

POISON = 321
MOST_SECONDS = 1800
"""For a machine that others use, too; the line at the end has the seconds."""

LOCATION = """
import dagster as dg
from sharequeue.dagster import ShareGroup, share_group_defs, share_group_resources

group = ShareGroup(
    group="{group}", topics=["{topic}"], pipeline="killing:handle",
    configs={{"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.{topic}"}},
    automation={{"sensor": {{"enabled": True, "interval_seconds": 5}}}},
)
defs = dg.Definitions.merge(share_group_defs(group), share_group_resources())
"""
HANDLER = f"""
import os

from sharequeue.spark.row_handlers import by_row


def fatal(record):
    if record["offset"] == {POISON}:
        os._exit(86)
    return {{"value": record["value"].decode()}}


handle = by_row(fatal, "value string")
"""


@dataclass(frozen=True)
class Queue:
    """A group's job and sensor, as Dagster shows them."""

    instance: dg.DagsterInstance
    group: str

    @property
    def name(self) -> str:
        return self.group.replace("-", "_")

    def runs(self) -> list[dg.DagsterRun]:
        """Its runs, the newest first."""
        return list(self.instance.get_runs(dg.RunsFilter(job_name=self.name)))

    def said(self) -> list[str]:
        """Why each tick of the sensor requested no run, the newest first; none has failed."""
        found = []
        for state in self.instance.all_instigator_state():
            if state.origin.instigator_name == f"{self.name}_lag":
                for tick in self.instance.get_ticks(
                    state.instigator_origin_id, state.selector_id, limit=1000
                ):
                    assert tick.error is None, tick.error
                    found.append(tick.skip_reason or "")
        return found

    def figures(self) -> dict[str, Any]:
        """What the newest run has reported of the records that it accepted."""
        key = dg.AssetKey([self.name, "accepted"])
        (newest,) = self.instance.fetch_materializations(key, limit=1).records
        assert newest.asset_materialization is not None
        return {name: value.value for name, value in newest.asset_materialization.metadata.items()}


@contextmanager
def daemon(settings: Settings, folder: Path, **variables: str) -> Iterator[Path]:
    """Run Dagster's daemon with the code location in a folder, until the block ends; give its log."""
    program = Path(sys.executable).parent / "dagster-daemon"
    log = folder / "daemon.log"
    with log.open("w") as written:
        running = subprocess.Popen(
            [str(program), "run", "-f", str(folder / "location.py"), "-d", str(folder)],
            cwd=folder,
            env={**dagster_ui.environment(settings), **variables},
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = psutil.Process(running.pid)
    try:
        yield log
    finally:
        below = started.children(recursive=True) if running.poll() is None else []
        os.kill(running.pid, signal.SIGINT)
        _, left = psutil.wait_procs([started, *below], 60)
        for process in left:
            process.kill()
        running.wait()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("records", [60_000])
def test_the_sensor_needs_one_run_for_a_queue_with_a_killer(
    records: int,
    stack_instance: dg.DagsterInstance,
    group: str,
    make_topic: MakeTopic,
    produce: Produce,
    state: State,
    settings: Settings,
    service: str,
    tmp_path: Path,
    told: list[str],
) -> None:
    """One run, which succeeds and says in its log what has died: one dead letter, all other records accepted. The
    sensor does not pause after it: what comes next has its run at once."""
    topic = make_topic(1)
    produce(topic, 0, range(records))
    (tmp_path / "location.py").write_text(LOCATION.format(group=group, topic=topic))
    (tmp_path / "killing.py").write_text(HANDLER)
    queue = Queue(stack_instance, group)
    output = str(tmp_path / "output")

    with daemon(settings, tmp_path, SHAREQUEUE_SERVICE_URL=service, SHAREQUEUE_OUTPUT=output) as log:

        def tail() -> object:
            return queue.runs(), queue.said()[:3], log.read_text()[-6000:]

        wait_until(lambda: any(run.is_finished for run in queue.runs()), MOST_SECONDS, tail)
        assert [each.status for each in queue.runs()] == [dg.DagsterRunStatus.SUCCESS], tail()
        wait_until(lambda: queue.said()[:1] == ["lag 0: nothing to do"], 120, tail)
        (run,) = queue.runs()
        made = queue.figures()
        died = [
            entry for entry in stack_instance.all_logs(run.run_id) if "are suspects" in entry.user_message
        ]
        one_letter_and_all_others_accepted(group, topic, records, state, settings)

        produce(topic, 0, range(1))
        wait_until(lambda: len(queue.runs()) == 2 and queue.runs()[0].is_finished, 600, tail)
        assert not [reason for reason in queue.said() if "the next one is requested in" in reason]
        assert [each.status for each in queue.runs()] == [dg.DagsterRunStatus.SUCCESS] * 2

    assert (made["dagster/row_count"], made["accepted_records"]) == (records - 1, records - 1)
    assert re.search(rf"{topic}-0 .*delivered again in \d+ parts.*the run goes on", died[0].user_message)
    assert state.figures.describe(group)[0].spso == records + 1
    assert state.figures.verify(group) == []
    told.append(
        f"{records:,} records with a killer, by the sensor: one run of {made['run_seconds']:,.0f} s and"
        f" {made['rounds']} rounds, {records - 1:,} accepted, one dead letter"
    )


def one_letter_and_all_others_accepted(
    group: str, topic: str, records: int, state: State, settings: Settings
) -> None:
    """Everything is done, and each record once."""
    (status,) = state.figures.describe(group)
    assert (status.spso, status.lag, status.archiving, status.available) == (records, 0, 0, 0)
    (letter,) = read_dead_letters(settings, f"dlq.{topic}")
    assert (letter.source_offset, letter.delivery_count) == (POISON, 5)
    assert re.match("ProcessKilled: killed its process: Python worker exited", letter.error or "")
    outputs = {sink: state.outputs.counted(group, sink) for sink in state.outputs.sinks(group)}
    written = {sink: sum(each.records for each in counted) for sink, counted in outputs.items()}
    assert records - 1 in written.values(), written
