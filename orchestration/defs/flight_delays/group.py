"""Which share group is this, and how is it configured?

The handler and its sink are ``pipelines.flights.pipeline``'s; the names are repeated here because that module
imports Spark, which no process that only loads definitions should pay for.
"""

from sharequeue.dagster.names import GROUP_TAG, dagster_name
from sharequeue.database import Database
from sharequeue.groups.configs import GroupConfigs, alter_group_configs

GROUP = "flight-delays"
NAME = dagster_name(GROUP)
TOPIC = "flights"
DEAD_LETTER_TOPIC = "dlq.flight-delays"
TAGS = {GROUP_TAG: GROUP}
CLIENT_ID_PREFIX = "dagster-run-"
"""By this and the run's id the group knows a run's member; whoever finds it there can look the run up."""

CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "5",
    # A year of flights is leased at once: Kafka's default of 2,000 records in flight is meant for single
    # messages.
    "share.partition.max.record.locks": "10000000",
    "share.record.lock.duration.ms": "30000",
    # The demo ends in one run: what is released comes again at once.
    "sharequeue.retry.backoff.ms": "0",
    "errors.deadletterqueue.topic.name": DEAD_LETTER_TOPIC,
    "errors.deadletterqueue.copy.record.enable": "true",
}


def configure(database: Database) -> GroupConfigs:
    """Give the group the configs above where it has none of its own; what somebody has set stays.

    Only who may alter configs can do the first run of a group; a worker finds them there.
    """
    configs = GroupConfigs.load(database, GROUP)
    missing: dict[str, str | int | bool | None] = {
        name: value for name, value in CONFIGS.items() if name not in configs.own
    }
    return alter_group_configs(database, GROUP, missing) if missing else configs
