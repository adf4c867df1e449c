"""Free ports for what tests start themselves."""

from __future__ import annotations

import random

from sharequeue.local import ports


def free_port() -> int:
    """A free port, of a range from which no system takes one for a connection of its own: it is free still when the
    process that is told of it listens there. Stacks of the tests take theirs from below."""
    return next(port for port in random.sample(range(20_000, 30_000), 500) if ports.is_free(port))
