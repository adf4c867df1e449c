"""The service with its 200 members, at work, while Postgres fails over to a standby, again and again.

Who waits for the standby loses nothing and nobody; who does not, loses what was confirmed after the last that the
standby had, and no more.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from sharequeue.domain.errors import ShareError
from sharequeue.domain.settings import Settings
from sharequeue.domain.values import AcknowledgeType
from sharequeue.groups.membership import Membership
from sharequeue.local import ports
from sharequeue.local.stack import up
from sharequeue.state import State
from tests import single
from tests.deep.servers import Pair, sharequeue
from tests.deep.service_chaos import SESSION_MS, of
from tests.deep.service_chaos_world import World, world_at_work
from tests.fixtures.stack import REPOSITORY, jars_folder, say
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@pytest.fixture(scope="module")
def pair(module_home: Path) -> Iterator[Pair]:
    """Give a stack's Postgres, of which a standby can be made."""
    info = up(module_home, say, service=False, environment={"SHAREQUEUE_JARS": str(jars_folder())})
    found = Pair(info, next(port for port in range(21_000, 32_000) if ports.is_free(port)))
    try:
        yield found
    finally:
        found.end()


@pytest.fixture(scope="module")
def world(pair: Pair, module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Give the world of the chaos, in which everybody knows both hosts."""
    settings = Settings.load(module_home).replace(database_url=pair.url())
    with world_at_work(settings, tmp_path_factory.mktemp("replicas")) as made:
        yield made


def kill_the_primary(world: World, pair: Pair) -> None:
    """It dies under everybody, and a metric tells it."""
    pair.kill_primary()
    down = world.watched(
        "no server that can be written", lambda found: of(found, "sharequeue_database_up") == [0.0]
    )
    down.for_seconds(2.0, SESSION_MS / 2000)


def answers(world: World) -> bool:
    """Whether the database can be written, by its address for all."""
    try:
        return bool(world.database.rows(sa.text("select 1 as one where not pg_is_in_recovery()")))
    except (sa.exc.DBAPIError, ShareError):
        return False


@pytest.mark.parametrize("setting", ["on", "remote_apply"])
@pytest.mark.parametrize("replica", ["both there", "one killed", "one stopped"])
def test_who_waits_for_the_standby_loses_nothing(
    world: World, pair: Pair, replica: str, setting: str
) -> None:
    """The primary dies in the midst of the work, alone or after a replica was killed or stopped in its sweep."""
    pair.begin()
    pair.wait_for_it(setting)
    if replica != "both there":
        how = signal.SIGKILL if replica == "one killed" else signal.SIGSTOP
        world.replicas[0].signal_inside("sweep", how, 3)
    kill_the_primary(world, pair)
    pair.promote()
    wait_until(lambda: answers(world), 30)
    world.recover()


def test_who_does_not_wait_loses_the_last_moments_and_no_more(
    world: World, pair: Pair, told: list[str]
) -> None:
    """Everything that the standby had counts, and is never done again. What was confirmed after that comes again,
    once. Who joined a group after that is out of it and so are those who heard of its new epoch; they join again,
    and nobody else is lost. After `raise-epochs` no lease from before ends anything."""
    ledger, state = world.ledger, State(world.database)
    pair.begin()
    pair.wait_for_it("local")
    with ledger.lock:
        kept = set(ledger.accepted)
    pair.catch_up()
    pair.cut()
    began = {"g2": [each for each in world.members if each.group_id == "g2"]}
    late = Membership(f"http://127.0.0.1:{world.balancer.port}", "g2", ("orders",), request_timeout=3.0)
    late.join(timeout=60)
    for topic in ("orders", "parcels"):
        ledger.produce(topic, 4, 300)
    wait_until(lambda: len(ledger.accepted) > len(kept) + 500, 60)
    held = next(
        lease
        for at in late.assignment
        if (lease := single.acquire(state, at, late.member_id, late.member_epoch, 5))
    )
    kill_the_primary(world, pair)
    with ledger.lock:
        ledger.forgotten |= {at for at in ledger.accepted if at not in kept}
    pair.promote()
    wait_until(lambda: answers(world), 30)
    given = {"SHAREQUEUE_DATABASE_URL": pair.url()}
    sharequeue(REPOSITORY, given, "state", "raise-epochs", "--execute", "--yes")
    with pytest.raises(ShareError):
        single.acknowledge(state, held, {AcknowledgeType.ACCEPT: held.offsets})
    wait_until(late.lost.is_set, 60, "who joined in the moments that are lost is still one")
    lost = [each for each in world.members if each.lost.is_set()]
    assert {each.group_id for each in lost} <= {"g2"}
    for each in [late, *lost]:
        each.join(timeout=60)
    world.members.append(late)
    world.recover()
    twice = [at for at, times in ledger.accepted.items() if times > 1]
    assert set(twice).isdisjoint(kept)
    told.append(
        f"failover without waiting, under load: {len(ledger.forgotten)} records confirmed after the cut, of which"
        f" {len(twice)} came again; {len(lost)} of {len(began['g2'])} members of the group that changed joined again"
    )


def test_the_standby_of_the_standby(world: World, pair: Pair, told: list[str]) -> None:
    """After all that one more failover, with waiting: what is confirmed is done once, as if there had been none."""
    pair.begin()
    pair.wait_for_it("on")
    world.ledger.produce("orders", 4, 300)
    kill_the_primary(world, pair)
    pair.promote()
    wait_until(lambda: answers(world), 30)
    world.recover()
    told.append(
        f"200 members over eight failovers, unassigned for {world.longest_unassigned:.1f} s at most; refusals that"
        f" workers met: {dict(world.ledger.refused)}"
    )
