"""What all requests to one replica share.

These are its connections to the database and the broker, the coordinator and the figures; what each caller may use of
the service (`admission`), and the heartbeats (`heartbeat_processor`).
"""

from __future__ import annotations

import logging
import threading

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.database import Database
from sharequeue.domain.errors import ShareError
from sharequeue.domain.settings import Settings
from sharequeue.groups.configs import ServiceConfigs
from sharequeue.kafka.topics import Topics
from sharequeue.service.admission import POOL_SIZE, Admission, Threads, database_of_pages
from sharequeue.service.coordinator import Coordinator
from sharequeue.service.health.faults import Faults
from sharequeue.service.health.servers import DatabaseProbe, ask_broker
from sharequeue.service.health.single_flight import SingleFlight
from sharequeue.service.heartbeat_processor import HeartbeatProcessor
from sharequeue.service.metrics.registry import Metrics

__all__ = ["Service"]

_log = logging.getLogger(__name__)

RECORD_SECONDS = 2.0
_BROKER_TIMEOUT_S = 5.0


class Service:
    """The shared parts of the routes."""

    def __init__(
        self, settings: Settings, configs: ServiceConfigs | None = None, *, require_token: bool = False
    ) -> None:
        configs = configs or ServiceConfigs.load()
        self.settings = settings
        self.bootstrap_servers = settings.bootstrap_servers
        self.database = Database.open(settings, pool_size=POOL_SIZE)
        self.topics = Topics(settings, timeout=_BROKER_TIMEOUT_S)
        self.topics.check_settings()
        self.coordinator = Coordinator(
            self.database,
            self.topics,
            configs,
            dead_letters=settings if settings.write_dead_letters else None,
        )
        self.faults = Faults(self.coordinator)
        self.metrics = Metrics(self.database, self.coordinator, self.faults)
        self.database_state = SingleFlight(DatabaseProbe(self.database), "sharequeue-database-probe")
        self.broker_state = SingleFlight(lambda: ask_broker(self.topics), "sharequeue-broker-probe")
        self.threads = Threads()
        self.pages = database_of_pages(settings)
        beats = Database.open(settings, pool_size=POOL_SIZE)
        self.metrics.own.count_statements(beats.engine)
        self.heartbeats = HeartbeatProcessor(beats, configs, self.topics, self.coordinator, self.threads)
        self.admission = Admission(
            {True: beats, False: self.database},
            self.threads,
            require_token=require_token,
            requests_per_second=settings.service_limits.requests_per_second,
        )

    def record_work(self, stop: threading.Event) -> None:
        """Every two seconds, update the faults, and record this replica's work for the other replicas."""
        while not stop.is_set():
            try:
                self.faults.look()
                self.coordinator.work.write(self.database, self.coordinator.name)
            except (SQLAlchemyError, ShareError) as error:
                # The coordinator gets the same error and logs it.
                _log.debug("the ages of this replica's work could not be written: %s", error)
            except Exception:
                # Repeated: without this loop the other replicas would take this one for dead.
                _log.exception("the ages of this replica's work could not be written")
            stop.wait(RECORD_SECONDS)

    def close(self) -> None:
        """Close the connections to the database and the broker."""
        self.pages.close()
        self.topics.close()
        self.database.close()
        self.heartbeats.database.close()
