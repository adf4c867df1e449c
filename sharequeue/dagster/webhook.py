"""Where do alerts go? To one address, as JSON: a chat's incoming webhook, a pager, a program of one's own.

A receiver that is down, slow or refuses is a line in the log, and never an error of who sends.
"""

import logging
import time
from collections.abc import Mapping
from enum import Enum
from typing import Any

import dagster as dg
import httpx
from pydantic import Field

_log = logging.getLogger(__name__)

ATTEMPTS = 3
PAUSE_SECONDS = 0.5
"""Before the second attempt; twice that before the third."""


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
    timeout_seconds: float = Field(default=5.0, gt=0, description="Of one attempt; there are three.")
    dagster_url: str | None = Field(
        default=None, description="Where people open Dagster; messages then have a link to the run."
    )

    def send(self, message: Mapping[str, Any]) -> Delivery:
        """Send a message, and say what became of it. Raises nothing."""
        said = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
            try:
                answer = httpx.post(
                    self.url, json=dict(message), headers=self.headers, timeout=self.timeout_seconds
                )
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                said = f"{type(error).__name__}: {error}"
                continue
            if answer.is_success:
                return Delivery.SENT
            said = f"HTTP {answer.status_code}"
            if answer.is_client_error and answer.status_code not in (408, 429):
                _log.warning("the webhook refused a message (%s): it is not sent again", said)
                return Delivery.REFUSED
        _log.warning("the webhook did not take a message in %d attempts (%s)", ATTEMPTS, said)
        return Delivery.FAILED

    def run_url(self, run_id: str) -> str | None:
        """The page of a run; None where Dagster's address is not known."""
        return (
            None
            if self.dagster_url is None or not run_id
            else f"{self.dagster_url.rstrip('/')}/runs/{run_id}"
        )


__all__ = ["Delivery", "WebhookResource"]
