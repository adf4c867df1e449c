"""Commands over the coordinator service, without access to Postgres.

A command uses the service if the settings have its address and no address of a database. It then may do
what the service allows the principal of its token, or Kafka's `User:ANONYMOUS` without one. Values that only the
database has are shown as `-`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Self
from urllib.parse import quote

from sharequeue.cli.figures import key
from sharequeue.groups.descriptions import MemberDescription
from sharequeue.groups.tokens import authorization
from sharequeue.words.errors import CoordinatorNotAvailable, error_for
from sharequeue.words.figures import Figure, SharePartitionStatus, figures_of
from sharequeue.words.settings import ServiceAddress, Settings

__all__ = ["OVER_HTTP", "Service", "service_of"]

OVER_HTTP = "only the database has these figures, and its address is not known: give --database-url"
"""The reason why the service cannot return something."""
_TIMEOUT_S = 30.0


def service_of(settings: Settings) -> Service | None:
    """Return the service to use instead of the database; None if the database's address is known."""
    if settings.knows("database_url") or not settings.knows("service_url"):
        return None
    return Service(settings.service)


class Service:
    """The coordinator service, over HTTP. A refusal is raised as the error with its number."""

    def __init__(self, address: ServiceAddress) -> None:
        self._url = address.url
        self._client = address.client(_TIMEOUT_S)
        self._client.headers.update(authorization(address.token))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def groups(self) -> list[dict[str, Any]]:
        """Return one row for each group: its name, state and number of members."""
        return [
            {"group": each["group_id"], "state": each["group_state"], "members": each["members"]}
            for each in self._ask("GET", "/v1/groups")["groups"]
        ]

    def names(self) -> list[str]:
        """Return the names of all groups."""
        return [each["group"] for each in self.groups()]

    def figures(self, group: str) -> list[dict[str, Any]]:
        """Return one row for each share-partition of a group."""
        found = self._ask("GET", f"/v1/groups/{quote(group)}")["offsets"]
        shown = [each for each in figures_of(SharePartitionStatus) if each.http]
        return [
            {
                "group": group,
                "topic": each["topic_name"],
                "partition": each["partition_index"],
                "topic_id": each["topic_id"],
                "remark": each["remark"],
                **{key(figure): _value(figure, each[figure.http]) for figure in shown},
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
                    "assignment": each["assignment"]["topic_partitions"],
                }
            )
            for each in self.describe(group)["members"]
        ]

    def describe(self, group: str) -> dict[str, Any]:
        """Return the response of ShareGroupDescribe for one group. Raises its error."""
        return self._one(self.post("share-group-describe", group_ids=[group])["groups"])

    def delete_group(self, group: str) -> None:
        """Delete a group with all its state."""
        self._one(self.post("delete-groups", groups_names=[group])["results"])

    def delete_offsets(self, group: str, topic: str) -> None:
        """Delete a group's state of a topic."""
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
        """Request an admin operation. Raises an error that concerns all of it."""
        return self._ask("POST", f"/v1/{path}", json=body)

    def _ask(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        import httpx

        try:
            response = self._client.request(method, path, **given)
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise CoordinatorNotAvailable(f"The service at {self._url} does not answer ({error}).") from error
        if not isinstance(answer, dict) or (response.is_error and "error_code" not in answer):
            raise CoordinatorNotAvailable(
                f"The server at {self._url} is not a coordinator service of sharequeue."
            )
        _raise(answer)
        return answer

    @staticmethod
    def _one(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        (answer,) = answers
        _raise(answer)
        return answer


def _value(figure: Figure, given: Any) -> Any:
    return datetime.fromisoformat(given) if figure.unit == "time" and given is not None else given


def _raise(answer: Mapping[str, Any]) -> None:
    if code := answer.get("error_code"):
        raise error_for(code, answer.get("error_message"))
