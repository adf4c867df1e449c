"""Drivers killed at random moments: around the user's writer, with Spark, three to a topic, nothing is left out; in a
copy into Postgres, without Spark, each record counts once."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from sharequeue.database import Database
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import Lease
from sharequeue.local.stack import StackInfo
from sharequeue.spark.sinks.at_least_once import AtLeastOnce
from sharequeue.state import State
from tests.chaos.forked_processes import INTO_POSTGRES, in_fork
from tests.chaos.test_sink_kills import STEPS, Filled
from tests.chaos.test_sink_kills_spark import RECORDS, kill, locks_lapse
from tests.fixtures.pipelines import Assigned, Holder, Produce, RunJob, all_accepted, job_of
from tests.fixtures.stack import MakeTopic

TOPICS = 10
KILLS = 3
"""For each topic. A driver takes some ten seconds to start."""
SEED = int(os.environ.get("SHAREQUEUE_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


@pytest.fixture
def database(private_database: Database) -> Database:
    """Give a database of this test alone, whose clock it moves."""
    return private_database


@pytest.fixture
def settings(settings: Settings, database: Database) -> Settings:
    """Give the settings of the stack with that database."""
    return settings.replace(database_url=database.engine.url.render_as_string(hide_password=False))


def random_kills(
    seeds: Iterable[int],
    holder: Holder,
    topic: str,
    run_job: RunJob,
    state: State,
    settings: Settings,
    folder: Path,
) -> None:
    """Kill a driver for each seed, up to 0.3 s after the user's writer was first called; then let one run to its end.
    What they wrote has each record at least once, and what was acknowledged comes no more."""
    group = holder.assignment[0].group_id
    left = 2 * RECORDS
    for seed in seeds:
        delay_ms = random.Random(seed).randint(1, 300)  # noqa: S311
        kill(settings, group, topic, "writing", str(folder), delay_ms)
        locks_lapse(state, group)
        left = sum(status.lag for status in state.figures.describe(group))
        print(f"seed {seed}: killed {delay_ms} ms after its writer was called, {left} records left")

    def write(rows: DataFrame, lease: Lease) -> None:
        text = rows.select("partition", "offset").toPandas().to_csv(index=False)
        (folder / str(lease.lease_id)).write_text(text)

    report = run_job(job_of(group, topic, all_accepted, destination=AtLeastOnce(write)), holder)
    assert (report.accepted, report.lag) == (left, 0)
    written = Counter(row for file in folder.glob("[0-9]*") for row in file.read_text().split()[1:])
    assert sorted(written) == sorted(f"{partition},{n}" for partition in range(2) for n in range(RECORDS))
    assert state.figures.verify(group) == []


@pytest.mark.timeout(0)
@pytest.mark.parametrize("number", range(TOPICS))
def test_drivers_killed_at_random_moments_leave_nothing_out(
    number: int,
    make_topic: MakeTopic,
    produce: Produce,
    assigned: Assigned,
    run_job: RunJob,
    state: State,
    output_settings: Settings,
    tmp_path: Path,
    told: list[str],
) -> None:
    """Before its writer, in or after it, in the acknowledgement, or in the next lease's: all records are written."""
    topic = make_topic(2)
    for partition in range(2):
        produce(topic, partition, range(RECORDS))
    seeds = range(SEED + KILLS * number, SEED + KILLS * (number + 1))
    random_kills(seeds, assigned(topic), topic, run_job, state, output_settings, tmp_path)
    told.append(f"drivers killed around their writer, seeds {seeds[0]} to {seeds[-1]}: nothing left out")


@pytest.fixture
def filled(private_database: Database, settings: Settings, group: str, topic: str) -> Filled:
    """Give records to drain without Spark, in a database of this test alone: so many that, however fast the machine,
    ten kills find something left to do."""
    return Filled(private_database, settings, group, topic, records=6000)


def test_ten_random_kills_leave_each_record_once(filled: Filled, stack: StackInfo) -> None:
    """Ten drains, one after the other, each killed at a random moment: in a copy, between two statements, in a
    commit. Each record counts once."""
    killed = 0
    with in_fork(stack.home, module=INTO_POSTGRES) as forked:
        for seed in range(10):
            chance = random.Random(seed)  # noqa: S311
            step, nth = chance.choice([("start", 1), *((step, nth) for step in STEPS for nth in (1, 2))])
            delay_ms = chance.randint(1, 60)
            code = filled.start(forked, step, nth, delay_ms)
            print(f"seed {seed}: {delay_ms} ms after {step} number {nth}: {code}")
            assert code in (0, -signal.SIGKILL)
            killed += code != 0
            filled.lapse()
    assert killed >= 5
    filled.finish()
    filled.assert_each_accepted_record_is_there_once()
