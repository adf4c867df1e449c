"""The sensors of a share group: what asks for runs, and records, by itself.

`lag` asks for a run of the group's job while work waits; `observe` records SPSO and lag without a run, and has new
dead letters checked. `at_work` knows which runs touch a group, `outages` how a sensor waits while Postgres is away.
All of them read Postgres and Dagster's storage: a sensor that polled a broker would hold up the daemon. Only `lag`
asks one, where nothing else waits for a run: whether topics that the state does not know are there.
"""

from sharequeue.dagster.sensors.at_work import AT_WORK
from sharequeue.dagster.sensors.lag import lag_sensor
from sharequeue.dagster.sensors.observe import Observed, observe_sensor

__all__ = ["AT_WORK", "Observed", "lag_sensor", "observe_sensor"]
