"""What happens by itself: sessions end, locks are swept, topics are watched, assignments follow."""

from sharequeue.service.coordinator.coordinator import Coordinator

__all__ = ["Coordinator"]
