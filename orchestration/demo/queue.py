"""The share group of the demo, read from `orchestration/defs/flight_delays/defs.yaml`."""

from pathlib import Path

import dagster as dg

from sharequeue.dagster import ShareGroupComponent
from sharequeue.dagster.lineage import DEAD_LETTER_TOPIC_CONFIG

_PROJECT = Path(__file__).parents[2]

QUEUE: ShareGroupComponent = dg.ComponentTree.for_project(_PROJECT).load_component(
    Path("flight_delays"), ShareGroupComponent
)
GROUP, NAME = QUEUE.group, QUEUE.name
(TOPIC,) = QUEUE.topics
DEAD_LETTER_TOPIC = str(QUEUE.configs[DEAD_LETTER_TOPIC_CONFIG])
