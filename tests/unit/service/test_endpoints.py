"""The table of the service's endpoints."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from sharequeue.service.call import Endpoint
from sharequeue.service.endpoints import ENDPOINTS
from sharequeue.service.probes import health


def test_an_endpoint_without_a_scope_is_an_error_at_construction() -> None:
    """A forgotten scope stops the service before it starts; so does one that no token can have."""
    endpoint: Callable[..., Endpoint] = partial(Endpoint, "POST", "/v1/new", handler=health)
    with pytest.raises(TypeError, match="scope"):
        endpoint()
    with pytest.raises(ValueError, match=r"POST /v1/new: the scope 'root' is not one of .*admin"):
        endpoint(scope="root")


def test_each_request_has_one_entry() -> None:
    """Starlette would serve the first of two."""
    assert len({(each.method, each.template) for each in ENDPOINTS}) == len(ENDPOINTS)
