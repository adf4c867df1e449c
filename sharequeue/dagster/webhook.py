"""Where do alerts go? To one address, as JSON: a chat's incoming webhook, a pager, a program of one's own.

A receiver that is down, slow or refuses is a line in the log, and never an error of who sends.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import dagster as dg
import httpx
from pydantic import Field

_log = logging.getLogger(__name__)

ATTEMPTS = 3
PAUSE_SECONDS = 0.5
"""Before the second attempt; twice that before the third."""
LONGEST_SECONDS = 20.0
"""Of all attempts at one message; no attempt begins later, or lasts longer."""


class Delivery(Enum):
    """What became of a message."""

    SENT = "sent"
    REFUSED = "refused"
    """The receiver does not want it, and would not the next time."""
    FAILED = "failed"
    """No answer, or an error of the receiver's own: worth another attempt later."""


class WebhookResource(dg.ConfigurableResource[Any]):
    """Sends messages to `url` by POST. Give secrets as `dg.EnvVar(…)`, in the address as in the headers."""

    url: str = Field(description="Where messages are sent.")
    headers: dict[str, str] = Field(default={}, description="Such as an `Authorization`.")
    timeout_seconds: float = Field(
        default=5.0,
        gt=0,
        description="Of one attempt, from its beginning to the answer; there are three, in 20 seconds at most.",
    )
    dagster_url: str | None = Field(
        default=None, description="Where people open Dagster; messages then have a link to the run."
    )

    def send(self, message: Mapping[str, Any]) -> Delivery:
        """Send a message, and say what became of it. Raises nothing."""
        said, until = "", time.monotonic() + LONGEST_SECONDS
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
            if (left := until - time.monotonic()) <= 0:
                break
            answer = _within(min(self.timeout_seconds, left), lambda: self._status(message))
            if isinstance(answer, str):
                said = answer
                continue
            if httpx.codes.is_success(answer):
                return Delivery.SENT
            said = f"HTTP {answer}"
            if httpx.codes.is_client_error(answer) and answer not in (408, 429):
                _log.warning("the webhook refused a message (%s): it is not sent again", said)
                return Delivery.REFUSED
        _log.warning("the webhook did not take a message (%s)", said)
        return Delivery.FAILED

    def _status(self, message: Mapping[str, Any]) -> int | str:
        """One attempt: the answer's status, or why there is none. Nobody needs what else the answer says."""
        try:
            with httpx.stream(
                "POST", self.url, json=dict(message), headers=self.headers, timeout=self.timeout_seconds
            ) as answer:
                return answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{type(error).__name__}: {error}"

    def run_url(self, run_id: str) -> str | None:
        """The page of a run; None where Dagster's address is not known."""
        return (
            None
            if self.dagster_url is None or not run_id
            else f"{self.dagster_url.rstrip('/')}/runs/{run_id}"
        )


def _within(seconds: float, attempt: Callable[[], int | str]) -> int | str:
    """What `attempt` returns, or that it did not end in time; it then ends by itself.

    httpx bounds each read alone, and a look-up of the name not at all.
    """
    found: list[int | str] = []
    thread = threading.Thread(target=lambda: found.append(attempt()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else f"no answer within {seconds:.0f} s"


__all__ = ["Delivery", "WebhookResource"]
