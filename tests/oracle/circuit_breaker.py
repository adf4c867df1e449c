"""Stop leasing from a share-partition when nearly everything fails, and go on later.

More than a set share of the last records failed: nothing is leased for a while, then one small lease as a probe. If
no more than the set share of it fails, leasing goes on; else it stops as long again. What comes back from a probe
has its delivery back, and what comes back with the acknowledgement by which a probe fails is not in the next one.
What a probe still holds when it has failed is like any lease from before: its acknowledgements say nothing new. Gaps
and held records say nothing at all: the others of the probe decide, and if there are none, the next probe.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

from tests.oracle.records import BreakerPolicy, whole_second

CircuitState = Literal["closed", "open", "probing"]


@dataclass(slots=True)
class CircuitBreaker:
    """The circuit of one share-partition, from its first acknowledgement on; times in seconds of the engine's clock.

    ``acknowledged`` and ``failed`` are of the last window of records, in which older ones fade; ``probe`` are the
    offsets of the probe whose outcome is not known yet. ``moves`` are the changes of state so far.
    """

    state: CircuitState = "closed"
    acknowledged: float = 0.0
    failed: float = 0.0
    retry_at: float | None = None
    reason: str | None = None
    probe: set[int] = field(default_factory=set)
    probe_records: int = 0
    probe_failed: int = 0
    moves: set[tuple[str, str]] = field(default_factory=set)

    def allows(self, policy: BreakerPolicy, most: int, held: Collection[int], now: float) -> tuple[int, bool]:
        """How many records may be leased now, and whether they are a probe. ``held`` is what anybody holds."""
        if self.state == "closed":
            return most, False
        # Later than an open breaker waits, if the clock was set back after it opened.
        waits = self.retry_at is not None and now < self.retry_at <= now + policy.open_seconds
        due = self.state == "open" and not waits
        left = self.state == "probing" and not self.probe & set(
            held
        )  # nobody is left who could acknowledge it
        return (min(most, policy.probe_records), True) if due or left else (0, False)

    def probes(self, offsets: Collection[int]) -> None:
        """A lease of these has been given as the probe. Of nothing (all aborted), it was none."""
        if offsets:
            self._go("probing")
            self.probe, self.probe_records, self.probe_failed = set(offsets), len(offsets), 0

    def refunds(self, returning: Collection[int]) -> set[int]:
        """Which of the records that come back get their delivery back."""
        return self.probe & set(returning) if self.state == "probing" else set()

    def counts(
        self,
        policy: BreakerPolicy,
        acknowledged: Collection[int],
        failed: Collection[int],
        silent: Collection[int],
        now: float,
    ) -> float | None:
        """Records were acknowledged, or their lock ended without an acknowledgement; some of them failed. The
        ``silent`` ones neither succeeded nor failed.

        Return before when what comes back with them is not to be delivered; None if that does not matter.
        """
        if self.state == "closed":
            if acknowledged:
                self._window(policy, len(acknowledged), len(failed), now)
        elif self.state == "probing" and self.probe & {*acknowledged, *silent}:
            self.probe_records -= len(self.probe & set(silent))
            self.probe -= set(silent)
            return self._judge_probe(policy, set(acknowledged), set(failed), now)
        return None

    def _window(self, policy: BreakerPolicy, acknowledged: int, failed: int, now: float) -> None:
        """Newer records push older ones out of the window, in proportion."""
        window = float(policy.window_records)
        kept = min(self.acknowledged, max(0.0, window - acknowledged))
        faded = self.failed * kept / self.acknowledged if self.acknowledged else 0.0
        self.failed = failed * window / max(window, acknowledged) + faded
        self.acknowledged = min(float(acknowledged), window) + kept
        enough = self.acknowledged >= min(policy.min_records, window)
        if enough and self.failed > policy.percent / 100 * self.acknowledged:
            reason = f"{_rounded(self.failed)} of the last {_rounded(self.acknowledged)} records failed"
            self._open(policy, reason, now)

    def _judge_probe(
        self, policy: BreakerPolicy, acknowledged: set[int], failed: set[int], now: float
    ) -> float | None:
        self.probe_failed += len(self.probe & failed)
        if self.probe_failed > policy.percent / 100 * self.probe_records:
            reason = f"{self.probe_failed} of the {self.probe_records} records of the probe failed"
            self._open(policy, reason, now)
            return whole_second(now + 2 * policy.open_seconds)
        self.probe -= acknowledged
        if not self.probe and self.probe_records:
            self._go("closed")
            self.acknowledged = self.failed = 0.0
            self.retry_at = self.reason = None
        return None

    def _open(self, policy: BreakerPolicy, reason: str, now: float) -> None:
        self._go("open")
        self.probe = set()
        self.retry_at = now + policy.open_seconds
        self.reason = f"{reason}, more than {policy.percent} %"

    def _go(self, state: CircuitState) -> None:
        self.moves.add((self.state, state))
        self.state = state


def _rounded(records: float) -> Decimal:
    """To a whole number for people, halves up."""
    return Decimal(f"{records:.15g}").quantize(Decimal(1), ROUND_HALF_UP)
