"""Kafka's share groups as a batch platform outside the broker.

The queue itself: sets of offsets, share-partition state in Postgres, groups and their service, dead
letters, the command line and the embedded stack. Only ``sharequeue.spark`` knows Spark, and only
``sharequeue.dagster`` Dagster.
"""

__version__ = "0.1.0"
