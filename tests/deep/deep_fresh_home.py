"""The README and both tutorials in a new home folder, without an environment, word for word."""

from __future__ import annotations

import pytest

from tools.fresh_home import PAGES

pytestmark = [pytest.mark.deep, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_works_as_it_is_typed(page: str) -> None:
    """From the installation to the last block: what the page promises has happened after each."""
    PAGES[page]()
