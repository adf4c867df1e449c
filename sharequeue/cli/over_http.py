"""What commands ask the coordinator service where Postgres cannot be reached.

A command does so by itself where the settings have the service's address and none of a database. It then sees and
does what the service's own rules allow the principal of its token, or Kafka's `User:ANONYMOUS` without one. What only
the database knows is `-`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Self
from urllib.parse import quote

from sharequeue.errors import CoordinatorNotAvailable, error_for
from sharequeue.groups.assignments import assigned_topics
from sharequeue.groups.descriptions import MemberDescription
from sharequeue.groups.tokens import authorization
from sharequeue.settings import ServiceAddress, Settings

__all__ = ["OVER_HTTP", "Service", "service_of"]

OVER_HTTP = "only the database has these figures, and its address is not known: give --database-url"
"""Why something cannot be had from the service."""
_TIMEOUT_S = 30.0


def service_of(settings: Settings) -> Service | None:
    """Return the service that is to be asked instead of the database; None where the database's address is known."""
    if settings.knows("database_url") or not settings.knows("service_url"):
        return None
    return Service(settings.service)


class Service:
    """The coordinator service, over HTTP. A refusal is raised as the error of its number."""

    def __init__(self, address: ServiceAddress) -> None:
        self._url = address.url
        self._client = address.client(_TIMEOUT_S)
        self._client.headers.update(authorization(address.token))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def groups(self) -> list[dict[str, Any]]:
        """Return a row for each group: its name, state and number of members."""
        return [
            {"group": each["group_id"], "state": each["group_state"], "members": each["members"]}
            for each in self._ask("GET", "/v1/groups")["groups"]
        ]

    def names(self) -> list[str]:
        """Return the names of all groups."""
        return [each["group"] for each in self.groups()]

    def figures(self, group: str) -> list[dict[str, Any]]:
        """Return a row for each share-partition of a group."""
        found = self._ask("GET", f"/v1/groups/{quote(group)}")["offsets"]
        return [
            {
                "group": group,
                "topic": each["topic_name"],
                "partition": each["partition_index"],
                "start_offset": each["start_offset"],
                "end_offset": each["log_end_offset"],
                "lag": each["lag"],
                "acquired": each["acquired"],
                "available": each["available"],
                "archiving": each["archiving"],
                "state_epoch": each["state_epoch"],
                "topic_id": each["topic_id"],
                "remark": each["remark"],
            }
            for each in found
        ]

    def members(self, group: str) -> list[MemberDescription]:
        """Return the members of a group."""
        return [
            MemberDescription(
                **each
                | {
                    "subscribed_topic_names": tuple(each["subscribed_topic_names"]),
                    "joined_at": datetime.fromisoformat(each["joined_at"]),
                    "session_expires_at": datetime.fromisoformat(each["session_expires_at"]),
                    "assignment": assigned_topics(each["assignment"]["topic_partitions"]),
                }
            )
            for each in self.describe(group)["members"]
        ]

    def describe(self, group: str) -> dict[str, Any]:
        """Return ShareGroupDescribe's answer of one group. Raises its error."""
        return self._one(self.post("share-group-describe", group_ids=[group])["groups"])

    def delete_group(self, group: str) -> None:
        """Delete a group with all it has."""
        self._one(self.post("delete-groups", groups_names=[group])["results"])

    def delete_offsets(self, group: str, topic: str) -> None:
        """Forget what a group has of a topic."""
        found = self.post("delete-share-group-offsets", group_id=group, topics=[{"topic_name": topic}])
        self._one(found["responses"])

    def configs(self, group: str) -> dict[str, tuple[str, bool]]:
        """Return a group's configs: each value, and whether the group has set it."""
        found = self._one(self.post("describe-configs", group_ids=[group])["groups"])["configs"]
        return {each["name"]: (each["value"], not each["is_default"]) for each in found}

    def alter_configs(self, group: str, changes: Mapping[str, Any]) -> list[str]:
        """Set a group's configs; return the warnings."""
        found = self.post("incremental-alter-configs", group_id=group, configs=dict(changes))
        return [str(each) for each in found["warnings"]]

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Ask for an admin operation. Raises the error that concerns it as a whole."""
        return self._ask("POST", f"/v1/{path}", json=body)

    def _ask(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        import httpx

        try:
            response = self._client.request(method, path, **given)
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise CoordinatorNotAvailable(f"The service at {self._url} does not answer ({error}).") from error
        if not isinstance(answer, dict) or (response.is_error and "error_code" not in answer):
            raise CoordinatorNotAvailable(f"What answers at {self._url} is no service of ours.")
        _raise(answer)
        return answer

    @staticmethod
    def _one(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        (answer,) = answers
        _raise(answer)
        return answer


def _raise(answer: Mapping[str, Any]) -> None:
    if code := answer.get("error_code"):
        raise error_for(code, answer.get("error_message"))
