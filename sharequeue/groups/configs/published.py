"""Which configs does the service publish, and which others were published before?

Every process goes by what stands in the database, not by its own environment, so a service that starts writes down
what it was configured to. Where two are configured differently, the one that started last is believed; it says what
it changed and who had set that.
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

    Only what differs from Kafka's defaults is kept, in table `service_configs`: there it stands between a group's
    own value and the default, and its bounds bind. Each value that another service had published otherwise is a
    warning in the log.
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
