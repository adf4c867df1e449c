"""The configs that the service publishes, and those that earlier versions published.

Every process uses the configs in the database, not those of its own environment, so a service stores its configs when
it starts. If two replicas are configured differently, the one that started last wins; it logs what it changed, and
which principal had set that.
"""

from __future__ import annotations

import json
import logging

from sqlalchemy import text

from sharequeue.database import Database
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.groups.configs.keys import SERVICE_CONFIGS
from sharequeue.groups.configs.texts import as_text

_log = logging.getLogger(__name__)


def publish_service_configs(database: Database, service: ServiceConfigs) -> bool:
    """Publish the service's configs to the state functions; return whether they were new.

    Only values that differ from Kafka's defaults are stored, in table `service_configs`. They apply to groups without
    a value of their own, and their bounds apply to all groups. A value that another service had published differently
    is logged as a warning.
    """
    given = {name: as_text(v) for name, v in service.values.items() if v != SERVICE_CONFIGS[name].default}
    rows = database.rows(text("select name, value from sharequeue.service_configs"))
    before = {str(row["name"]): str(row["value"]) for row in rows}
    set_by = database.rows(
        text(
            "select principal, happened_at from sharequeue.audit_log"
            " where group_id is null and act = 'set_service_configs' order by audit_id desc limit 1"
        )
    )
    rows = database.call(
        text("select sharequeue.set_service_configs(cast(:configs as jsonb)) as changed"),
        configs=json.dumps(given),
    )
    if set_by:
        for name in sorted({*before, *given}):
            old, new = (_value(some, name) for some in (before, given))
            if old != new:
                _log.warning(
                    "service config %s is %s now; it was %s, set by %s at %s. It holds for all"
                    " replicas: start them with the same settings",
                    *(name, new, old, set_by[0]["principal"], set_by[0]["happened_at"]),
                )
    return bool(rows[0]["changed"])


def _value(published: dict[str, str], name: str) -> str:
    if name in published:
        return published[name]
    default = SERVICE_CONFIGS[name].default if name in SERVICE_CONFIGS else None
    return "not set" if default is None else as_text(default)
