"""The page of dead letters: what is in them, bounded in time and size, to whom may read them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from sharequeue.deadletters.browsing import browse, letter_at
from sharequeue.deadletters.letters import DeadLetter
from sharequeue.deadletters.redrive.batches import RedriveBatches
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.domain.offsets import OffsetSet
from tests.fixtures.deadletters import GivenUp, execute
from tests.integration.service.pages.html_pages import Page, read
from tests.integration.service.pages.pages_client import client_of, got

Make = Callable[..., GivenUp]
HOSTILE = "<script>alert(1)</script>\"'&"


def value(number: int) -> bytes | None:
    """One of each kind."""
    kinds = (b'{"n": %d}' % number, HOSTILE.encode(), b"\0\0\0\0\x07avro", None, b"", b"x" * 300_000)
    return kinds[number % len(kinds)]


@pytest.mark.usefixtures("patient")
def test_letters_from_the_newest_to_the_oldest(given_up: Make) -> None:
    """Each kind of content is shown as what it is, a large one cut; pages lead from one to the next, and each letter
    is on one of them; those of another group in the same topic are on none."""
    case = given_up(partitions=2, copy=True, max_message_bytes="2000000")
    case.produce(
        60, partitions=2, value=value, headers=[("<b>kind</b>", HOSTILE.encode()), ("odd", b"\xff\0")]
    )
    case.reject({0: OffsetSet.of((0, 20)), 1: OffsetSet.of((3, 8))})
    case.writer(batch_records=15).write()
    other = case.renamed(f"{case.group}-other")
    other.reject({0: OffsetSet.of((0, 9))})
    other.writer().write()
    with client_of(case.settings) as client:
        seen: list[str] = []
        # By how its text begins: one letter of each kind. Which are on the first page, their writer decides.
        links: dict[str, str] = {}
        path = f"/dead-letters/{case.group}"
        while path:
            page = got(client, path)
            rows = page.rows("Dead letters in")
            assert len(rows) <= 20
            seen += [row[3] for row in rows]
            links |= zip([row[8][:30] for row in rows], _letter_links(page), strict=True)
            path = next((each for each in page.links() if "before=" in each), "")
        assert sorted(seen) == sorted(f"{case.topic}-{at} at {n}" for at, n in _rejected())
        assert any(text.startswith("<script>") for text in links)
        assert any(text.startswith("0x0000000007") for text in links)
        wholes = [client.get(link) for link in links.values()]
        kinds = " ".join(read(whole.text).text for whole in wholes)
        for kind in ("28 bytes", "0x0000000007", "null", "Value0 bytes", "300,000 bytes"):
            assert kind in kinds, kind
        assert max(len(whole.content) for whole in wholes) < 200_000
        assert "sharequeue.original.header.<b>kind</b>" in kinds
        assert (
            "There is no such letter"
            in got(client, f"/dead-letters/{case.group}?partition=0&offset=99999", 404).text
        )
        # A letter of another group is not this group's, though it lies in its topic.
        assert got(client, links[next(iter(links))].replace(case.group, f"{case.group}-other"), 404)


def _rejected() -> list[tuple[int, int]]:
    return [*((0, n) for n in range(20)), *((1, n) for n in range(3, 8))]


def _letter_links(page: Page) -> list[str]:
    return [each for each in page.links() if "offset=" in each]


def test_a_broker_that_is_away_is_a_sentence(given_up: Make) -> None:
    """The page is there without letters, and says what does not answer."""
    case = given_up()
    with client_of(case.settings.replace(bootstrap_servers="127.0.0.1:1")) as client:
        page = got(client, f"/dead-letters/{case.group}")
        assert "No letter" in page.text
        assert any(word in page.text for word in ("does not answer", "took longer than", "not be read"))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("configs", [{}, {"errors_deadletterqueue_topic_name": "dlq.nosuch"}])
def test_a_group_without_letters(given_up: Make, configs: dict[str, str]) -> None:
    """It has no topic for them, or one that does not exist, or one of somebody else's: nothing of it is shown."""
    case = given_up()
    with client_of(case.settings) as client:
        if configs:
            case.configure(**configs)
            assert "There is no topic" in got(client, f"/dead-letters/{case.group}").text
        else:
            case.produce(3)
            case.configure(errors_deadletterqueue_topic_name=case.topic)
            page = got(client, f"/dead-letters/{case.group}")
            assert "No letter of this group" in page.text
            assert "value 0" not in page.text


@pytest.mark.usefixtures("patient")
def test_a_letter_that_no_redrive_sends_says_so(given_up: Make) -> None:
    """It was sent back, or discarded: the list has its status, and its own page proposes no command."""
    case = given_up(dlq_partitions=1, copy=True)
    case.produce(3)
    case.reject()
    case.writer().write()
    batches = RedriveBatches(
        case.database, case.dead_letter_topic, case.topics.info(case.dead_letter_topic).topic_id
    )
    batches.discard(Selection(), {0: OffsetSet.of((1, 2))})
    execute(Redrive(case.settings, case.database, case.dead_letter_topic, at(2)))
    with client_of(case.settings) as client:
        path = f"/dead-letters/{case.group}"
        rows = got(client, path).rows("Dead letters in")
        assert [row[5] for row in rows] == ["sent", "discarded", "–"]
        texts = [got(client, f"{path}?partition=0&offset={offset}").text for offset in range(3)]
    assert ["dlq redrive" in text for text in texts] == [True, False, False]
    trace = f"sharequeue trace {case.topic} 0 {{}} --group {case.group}"
    assert all(any(trace.format(offset) in text for offset in range(3)) for text in texts)
    assert "discarded. No redrive sends it" in texts[1]
    assert "sent back. No redrive sends it again" in texts[2]


def at(offset: int) -> Selection:
    return Selection(offsets={0: OffsetSet.of((offset, offset + 1))})


def test_looking_is_bounded(given_up: Make) -> None:
    """A page that has no time to look further says where it is; nothing that takes nothing is looked for for ever."""
    case = given_up()
    case.produce(50)
    case.reject()
    case.writer().write()

    def slow(letter: DeadLetter) -> bool:
        time.sleep(0.05)
        return False

    found = browse(case.settings, case.dead_letter_topic, slow, seconds=1.5)
    assert (found.letters, bool(found.remark)) == ([], True)
    assert letter_at(case.settings, case.dead_letter_topic, 7, 3).letters == []
    assert letter_at(case.settings, "no.such.topic", 0, 3).remark.startswith("There is no topic")
