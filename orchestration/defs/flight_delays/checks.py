"""What is checked after each run: the dead letters by suite and against Postgres, and the state itself."""

import dagster as dg

from orchestration.defs.flight_delays.group import GROUP, NAME
from sharequeue.dagster.checks import dead_letter_checks, state_checks

dead_letter_suite = dead_letter_checks(
    GROUP,
    f"{NAME}_dead_letter_suite",
    asset=dg.AssetKey("dead_letters"),
    after=[dg.AssetKey("spso_and_lag"), dg.AssetKey("delivery_counts")],
)
state_invariants = state_checks(GROUP, f"{NAME}_state_invariants", asset=dg.AssetKey("spso_and_lag"))
