"""A redrive that is killed after its commit, and whose marker is gone, sends nothing twice: the target shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from sharequeue.deadletters import hidden
from sharequeue.deadletters.batches import marker_group
from sharequeue.deadletters.outbox import BatchStep
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.domain.errors import BrokerNotAvailable
from sharequeue.kafka.clients import client_config
from tests.fixtures.deadletters import GivenUp, Stop, execute, stop_at
from tests.fixtures.stack import MakeTopic
from tests.integration.deadletters.redrive.test_redrive import places, put_back
from tests.waiting import PATIENCE_S

Make = Callable[..., GivenUp]


def redrive(case: GivenUp, **options: object) -> Redrive:
    return Redrive(case.settings, case.database, case.dead_letter_topic, Selection(), **options)  # type: ignore[arg-type]


def forget(case: GivenUp, group: str) -> None:
    """Delete a marker's group, as its retention does."""
    admin = AdminClient(client_config(case.settings))  # its calls end with it
    admin.delete_consumer_groups([group])[group].result(PATIENCE_S)


def killed_after_commit(case: GivenUp, number: int = 1, **options: object) -> None:
    """Send letters, and end just after the commit of a batch; its marker is deleted."""
    left = [number]

    def die(reached: BatchStep) -> None:
        left[0] -= reached == "committed"
        if reached == "committed" and left[0] == 0:
            raise Stop(reached)

    with pytest.raises(Stop):
        execute(redrive(case, on_step=die, **options))
    forget(case, f"sharequeue.redrive.{case.dead_letter_topic}")


@pytest.mark.parametrize(("number", "copy"), [(1, True), (2, False)])
def test_a_batch_without_its_marker_is_found_in_the_target(given_up: Make, number: int, copy: bool) -> None:
    """The first one of a topic, or a later one; copies, or records of the source."""
    case = given_up(copy=copy)
    case.produce(30)
    case.reject()
    case.writer().write()
    killed_after_commit(case, number, batch_records=10)
    report = execute(redrive(case, batch_records=10))
    assert put_back(case) == Counter(places(case))
    assert (report.resumed, report.sent) == (10, 30 - 10 * number)


def test_a_batch_is_found_in_the_target_of_its_own_redrive(given_up: Make, make_topic: MakeTopic) -> None:
    """The next redrive may have another one, which has none of its records."""
    case = given_up(copy=True)
    case.produce(10)
    case.reject()
    case.writer().write()
    elsewhere = make_topic(2)
    killed_after_commit(case, target=elsewhere)
    assert execute(redrive(case)).resumed == 10
    assert (put_back(case, elsewhere), put_back(case)) == (Counter(places(case)), Counter())


def test_while_a_transaction_hides_the_target_nothing_is_sent(
    given_up: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch may be behind it; once the other producer has ended, the redrive goes on."""
    monkeypatch.setattr(hidden, "SETTLED_WITHIN_SECONDS", 0.5)
    case = given_up(copy=True)
    case.produce(4)
    case.reject()
    case.writer().write()
    other = Producer(client_config(case.settings, transactional_id=f"other-{case.topic}"))
    other.init_transactions(PATIENCE_S)
    other.begin_transaction()
    other.produce(case.topic, b"open", b"key", 0)
    other.flush(PATIENCE_S)
    killed_after_commit(case)
    with pytest.raises(BrokerNotAvailable, match="transaction that another program has open since"):
        execute(redrive(case))
    other.commit_transaction(PATIENCE_S)
    assert execute(redrive(case)).resumed == 4
    assert put_back(case) == Counter(places(case))


def test_the_first_letters_of_a_group_are_found_without_their_marker(given_up: Make) -> None:
    """Also those of its first batch."""
    case = given_up()
    case.produce(5)
    case.reject()
    with pytest.raises(Stop):
        case.writer(on_step=stop_at("committed")).write()
    forget(case, marker_group(case.group))
    assert case.writer().write().resumed == 5
    case.assert_each_exactly_once()
