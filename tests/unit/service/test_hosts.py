"""The host that a request names."""

from __future__ import annotations

import pytest

from sharequeue.service.edge.hosts import host_name


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("Queue.Example:80", "queue.example"),
        ("queue.example.", "queue.example"),
        ("queue.example.:443", "queue.example"),
        ("localhost:", "localhost"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        *((bad, bad) for bad in ("[::1]evil", "[::1]:80@evil", "localhost:80@evil", "localhost:abc")),
        *(
            (bad, bad)
            for bad in (
                "localhost:80:80",
                "localhost@evil",
                "localhost,evil",
                "localhost/x",
                "local host",
                "[h]",
                "",
            )
        ),
    ],
)
def test_a_header_that_names_more_than_a_host_is_no_host(header: str, host: str) -> None:
    """A port and the dot of a full name do not matter; whatever else is there, the name is not one of ours."""
    assert host_name(header) == host
