"""The sensors of a share group: they request runs, and record figures, automatically.

`lag` requests a run of the group's job while records wait; `observe` records and checks SPSO and lag without a run,
and requests checks of new dead letters; `history` has each day counted when it is over. `active_runs` finds the runs
of a group, `outages` waits while Postgres is away. All of them read Postgres and Dagster's storage. The broker is
read for two purposes, for seconds at most: what a first run would find in topics without state, and in `observe` the
timestamps of the oldest records.
"""

from sharequeue.dagster.sensors.active_runs import AT_WORK
from sharequeue.dagster.sensors.history import history_sensor
from sharequeue.dagster.sensors.lag import lag_sensor
from sharequeue.dagster.sensors.observe import ObservedAssets, observe_sensor

__all__ = ["AT_WORK", "ObservedAssets", "history_sensor", "lag_sensor", "observe_sensor"]
