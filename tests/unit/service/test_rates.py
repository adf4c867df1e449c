"""Token buckets: what is allowed at once, what later, and how much is kept of how many."""

from __future__ import annotations

import pytest

from sharequeue.service.edge.rates import BURST_S, Rates, network_of


def test_a_bucket_empties_and_fills() -> None:
    """Two seconds' worth at once; then who asks waits as long as it is over; beyond that nothing is taken."""
    now = 100.0
    rates = Rates(10, lambda: now)
    assert [rates.take("a") for _ in range(20)] == [0.0] * 20
    over = [rates.take("a") for _ in range(20)]
    assert over == pytest.approx([each / 10 for each in range(1, 21)])
    assert [rates.take("a"), rates.take("a")] == pytest.approx([2.1, 2.1])
    assert rates.take("b", 5) == 0
    now += BURST_S
    assert rates.take("a") == pytest.approx(0.1)
    now += 10
    assert [rates.take("a") for _ in range(20)] == [0.0] * 20
    assert rates.take("a", 5) == pytest.approx(0.5)


def test_no_bound() -> None:
    """A rate of 0 means no limit, and nothing is kept."""
    rates = Rates(0)
    assert max(rates.take("a") for _ in range(1000)) == 0
    assert len(rates) == 0


def test_the_rates_of_many_callers_use_bounded_memory() -> None:
    """Of ten thousand who ask, those of late are kept; one that asks for ever is."""
    now = 0.0
    rates = Rates(1, lambda: now, most=100)
    for number in range(10_000):
        rates.take(f"User:{number}")
        rates.take("User:bad")
    assert len(rates) == 100
    assert rates.take("User:bad") > BURST_S


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_whose_an_address_is(address: str, network: str) -> None:
    """Of IPv6, all that begin with the same 64 bits."""
    assert network_of(address) == network
