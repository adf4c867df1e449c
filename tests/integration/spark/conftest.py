"""A job whose records name their outcomes, for tests of runs."""

from __future__ import annotations

import pytest

from sharequeue.spark.job import ShareGroupJob
from tests.fixtures.pipelines import by_value_or_released, job_of
from tests.fixtures.stack import MakeTopic


@pytest.fixture
def job(group: str, make_topic: MakeTopic) -> ShareGroupJob:
    """Give a job on a topic of two partitions that does with each record what its value begins with."""
    return job_of(group, make_topic(2), by_value_or_released, deliveries_per_run=5)
