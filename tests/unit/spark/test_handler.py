"""A handler that ends the program is an error, and no success."""

from __future__ import annotations

import sys
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from sharequeue.spark.handler import HandlerError, call_handler
from sharequeue.spark.signals import Terminated

RECORDS = cast(DataFrame, None)


@pytest.mark.parametrize("code", [0, None, "no more work"])
def test_a_handler_that_calls_sys_exit_is_an_error(code: Any) -> None:
    """`sys.exit` in a handler is a HandlerError with the exit code, whatever the code is."""
    with pytest.raises(HandlerError, match=f"ended the program with exit code {code!r}"):
        call_handler(lambda _: sys.exit(code), RECORDS)


def test_a_sigterm_in_a_handler_ends_the_program() -> None:
    """A SIGTERM that arrives while the handler is called ends the program, and is no error of the handler."""

    def handler(_: DataFrame) -> DataFrame:
        raise Terminated(143)

    with pytest.raises(Terminated) as stopped:
        call_handler(handler, RECORDS)
    assert stopped.value.code == 143
