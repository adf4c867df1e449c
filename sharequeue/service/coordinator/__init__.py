"""Background work: expiry of sessions, sweep of locks, watch of topics, assignment."""

from sharequeue.service.coordinator.coordinator import Coordinator

__all__ = ["Coordinator"]
