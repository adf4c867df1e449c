"""Random orders of what happens to a share-partition.

Any: a Hypothesis state machine chooses the operations of ``two_engines`` one after another and compares both engines
after each. A run prints its seed; the same seed gives the same histories.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sharequeue.database import Database
from sharequeue.state.record_history import RecordHistories
from tests.conformance.comparison import Comparison
from tests.conformance.history import History
from tests.conformance.lives import Lives
from tests.conformance.operator_steps import OperatorSteps
from tests.conformance.order_steps import OrderSteps
from tests.conformance.sql_side import SqlSide
from tests.conformance.tally import Tally
from tests.conformance.two_engines import MemberSteps

STEPS = 80
"""How long a history is."""

LIVES = 3
"""The records of each share-partition whose life is compared at the end of a history."""

rolls = st.integers(0, 2**40)
"""Where a step's details come from: one number, because drawing each of them costs more than the step itself."""


class EnoughError(Exception):
    """The run has taken all of its steps."""


class Machine(RuleBasedStateMachine):
    """One history. What it runs on, and what is counted, a subclass says."""

    sql: ClassVar[SqlSide]
    tally: ClassVar[Tally]
    ordered: ClassVar[bool] = False
    most_steps: ClassVar[int | None] = None
    traced: ClassVar[RecordHistories]

    @initialize(roll=rolls)
    def start(self, roll: int) -> None:
        """Fresh groups on both."""
        self.tally.histories += 1
        self.history = History(self.sql, roll, self.tally.histories, self.tally, ordered=self.ordered)
        self.comparison = Comparison(self.history)
        self.lives = Lives(self.history, self.traced)
        self.order = OrderSteps(self.history)
        self.operators = OperatorSteps(self.history)
        self.members = MemberSteps(self.history, self.operators)

    def step(self, name: str, roll: int, *, of: object = None) -> None:
        """One operation of members, or of others, its details drawn from one number."""
        if self.tally.found_at is None:
            self.tally.steps += 1
            if self.most_steps is not None and self.tally.steps > self.most_steps:
                raise EnoughError
        self.history.random.seed(roll)
        with self.finding():
            getattr(of or self.members, name)()

    @rule(roll=rolls)
    def acquire(self, roll: int) -> None:
        self.step("acquire", roll)
        if self.ordered:
            with self.finding():
                self.order.learn()

    @rule(roll=rolls)
    def acknowledge(self, roll: int) -> None:
        self.step("acknowledge", roll, of=self.order if self.ordered and roll % 4 else None)

    @precondition(lambda self: self.history.leases)
    @rule(roll=rolls)
    def acknowledge_lease(self, roll: int) -> None:
        self.step("acknowledge_lease", roll)

    @rule(roll=rolls)
    def pass_time(self, roll: int) -> None:
        self.step("pass_time", roll)

    @rule(roll=rolls, what=st.sampled_from(["renew", "release", "retry", "settle"]))
    def keep(self, roll: int, what: str) -> None:
        """What a member or the service does with what is held already."""
        self.step(what, roll, of={"release": self.operators, "settle": self.history}.get(what))

    @rule(roll=rolls, what=st.sampled_from(["move_log", "dead_letters", "administer"]))
    def happen(self, roll: int, what: str) -> None:
        """What others do meanwhile."""
        self.step(what, roll)

    @precondition(lambda self: not self.ordered)
    @rule(roll=rolls)
    def work(self, roll: int) -> None:
        self.step("work", roll)

    @rule(roll=rolls, what=st.sampled_from(["pause", "force", "force", "extend_locks"]))
    def operate(self, roll: int, what: str) -> None:
        """What a person does by hand."""
        self.step(what, roll, of=self.operators)

    @invariant()
    def agree(self) -> None:
        """Both engines are in the same state after every step, and lag can be leased or has one reason; the slower
        comparisons are every eighth; every 24th some records' lives are compared, and liveness is tried."""
        if hasattr(self, "history"):
            with self.finding():
                self.comparison.compare()
                self.comparison.check_reasons()
                if self.tally.steps % 8 == 0:
                    self.comparison.compare_at_leisure()
                if self.tally.steps % 24 == 0:
                    self.comparison.check_liveness()
                    self.lives.compare(1, Random(self.tally.steps))  # noqa: S311

    @contextmanager
    def finding(self) -> Iterator[None]:
        """Note at which step the first difference was found; Hypothesis repeats that history afterwards."""
        try:
            yield
        except Exception as difference:
            if self.tally.found_at is None:
                self.tally.found_at, self.tally.found = self.tally.steps, difference
            raise

    def teardown(self) -> None:
        """The last look, and the group is gone."""
        if hasattr(self, "history"):
            try:
                with self.finding():
                    self.comparison.compare_at_leisure()
                    self.lives.compare(LIVES, Random(self.tally.steps))  # noqa: S311
            finally:
                self.sql.end(self.history.groups)


class OrderedMachine(Machine):
    """One history with groups in order by key."""

    ordered = True

    @rule(roll=rolls)
    def work_in_order(self, roll: int) -> None:
        """A worker that obeys leases and acknowledges, and now and then the service writes dead letters: with one
        lease at a time, drawn apart these seldom meet. Before some rounds order goes off or on."""
        if roll % 4 == 1:
            self.step("switch", roll + 3, of=self.order)
        self.acquire(roll)
        self.step("acknowledge", roll + 1, of=self.order)
        if roll % 4 == 0:
            self.step("dead_letters", roll + 2)

    @rule(roll=rolls, what=st.sampled_from(["acknowledge", "acknowledge", "let_keys_go"]))
    def keep_order(self, roll: int, what: str) -> None:
        """What only those do who know of order by key."""
        self.step(what, roll, of=self.order)


@dataclass
class Run:
    """What a run of histories came to."""

    seed: int
    tally: Tally
    seconds: float
    difference: BaseException | None = None
    """Where the engines disagreed, or what else went wrong; None when all went well."""

    def told(self) -> str:
        """In one line."""
        tally, rate = self.tally, self.tally.steps / max(self.seconds, 1e-9)
        return (
            f"seed {self.seed}: {tally.steps:,} steps in {tally.histories:,} histories, {sum(tally.calls.values()):,}"
            f" calls on each engine, {self.seconds:.1f} s ({rate:,.0f} steps a second)"
        )


def run_histories(
    url: str,
    number: int,
    histories: int,
    before: Run | None = None,
    *,
    ordered: bool = False,
    most_steps: int | None = None,
) -> Run:
    """So many histories from a seed, on a database of their own; ends at the first difference. What they did is added
    to what those of the run before did, if one is given. ``ordered``: with groups in order by key. ``most_steps``:
    how many steps are taken at most."""
    sql, began = SqlSide(url, ordered=ordered), time.monotonic()
    tally, earlier = (before.tally, before.seconds) if before else (Tally(), 0.0)
    run = Run(number, tally, 0.0)
    database = Database(url, pool_size=1)
    own = {"sql": sql, "tally": tally, "most_steps": most_steps, "traced": RecordHistories(database)}
    machine = type("Histories", (OrderedMachine if ordered else Machine,), own)
    try:
        run_state_machine_as_test(
            seed(number)(machine),
            settings=settings(
                max_examples=histories,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                report_multiple_bugs=False,
                phases=[Phase.generate],  # shrinking a history takes minutes; the seed is printed
                suppress_health_check=list(HealthCheck),
            ),
        )
    except Exception as difference:
        enough = most_steps is not None and tally.steps > most_steps
        run.difference = tally.found or (None if enough else difference)
    finally:
        sql.close()
        database.close()
    run.seconds = earlier + time.monotonic() - began
    return run
