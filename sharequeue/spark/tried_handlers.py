"""The handlers that need no trial on no records: their last run in the same session has succeeded.

A trial costs as much as planning a round, which calls the handler again. What it finds is found by the round, too:
then the leases are given back, with their deliveries, and the next run tries the handler first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from sharequeue.spark.handler import Handler

_Tried = WeakKeyDictionary[Handler, set[tuple[str, bool]]]
_TRIED: WeakKeyDictionary[SparkSession, _Tried] = WeakKeyDictionary()
"""The group and its order by key, by session and handler."""


@contextmanager
def needs_trial(spark: SparkSession, handler: Handler, group: str, ordered: bool) -> Iterator[bool]:
    """Yield whether the handler must be tried on no records before this run of a group leases any. It need not be in
    the next run if the block, which is the run, raises nothing.
    """
    of_session = _TRIED.setdefault(spark, WeakKeyDictionary())
    try:
        tried = of_session.setdefault(handler, set())
    except TypeError:  # an object without a hash, or without weak references
        tried = set()
    ran = (group, ordered)
    needed = ran not in tried
    tried.discard(ran)
    yield needed
    tried.add(ran)
