"""Run the steps of a scenario on a real broker.

The stage on which scenarios are recorded anew in each run: topics and a share group of the scenario's own on the
test's broker, members that speak the wire protocol, one socket each. What each step returns has the words of the
recorded scenarios (`traces/README.md`), so that the same replays judge it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Any

from tests.conformance import wire_apis as apis
from tests.conformance.live_log import Step, error_name
from tests.conformance.live_members import LiveMembers, TooBusy
from tests.oracle import RecordState

UNLOADS = ("close", "drop", "alterOffsets", "deleteOffsets", "deleteGroup")
"""After these a broker may have to load share-partitions anew."""

WAITS = ("expire", "sleep")
"""In these a lock may lapse."""


class LiveBroker(LiveMembers):
    """One scenario on the broker, with its operators."""

    def carry_out(self, do: Step) -> dict[str, Any]:
        """One step; return what the broker returned."""
        act: Callable[[Step], dict[str, Any]] = getattr(
            self, "_" + re.sub("([A-Z])", r"_\1", do["op"]).lower()
        )
        self.keep_alive()
        returned = act(do)
        if do["op"] in WAITS:
            self.waited, self.lapses_at = True, math.inf
        elif time.monotonic() > self.lapses_at:
            raise TooBusy(f"a lock may have lapsed before {do} was done")
        if do["op"] in UNLOADS:
            self.loaded.clear()
        return returned

    def _wire_offsets(self, do: Step) -> dict[str, Any]:
        topics = [
            {"topic": self.prefix + topic, "partitions": list(range(count))}
            for topic, count in self.partitions.items()
        ]
        group = {"group": self.prefix + do.get("group", "g"), "topics": topics}
        (told,) = self.admin.ask(apis.DESCRIBE_OFFSETS, groups=[group])["groups"]
        found = {
            f"{topic['topic'].removeprefix(self.prefix)}-{each['partition']}": {
                "startOffset": each["start"],
                "lag": each["lag"],
            }
            for topic in told["topics"]
            for each in topic["partitions"]
        }
        return {"error": error_name(told), "partitions": found}

    def _state(self, do: Step) -> dict[str, Any]:
        """What the share coordinator has written of each share-partition. On one broker the leader's epoch is 0."""
        asked = [
            {
                "topic_id": self.ids[topic],
                "partitions": [{"partition": p, "leader_epoch": 0} for p in range(count)],
            }
            for topic, count in self.partitions.items()
        ]
        group = self.prefix + do.get("group", "g")
        states, summaries = (
            self.admin.ask(api, group=group, topics=asked)["topics"]
            for api in (apis.READ_STATE, apis.READ_SUMMARY)
        )
        complete = {
            (t["topic_id"], each["partition"]): each["complete"]
            for t in summaries
            for each in t["partitions"]
        }
        return {
            f"{self.names[topic['topic_id']]}-{each['partition']}": {"error": error_name(each)}
            if each["error"]
            else {
                "error": "NONE",
                "startOffset": each["start"],
                "deliveryCompleteCount": complete[topic["topic_id"], each["partition"]],
                "stateEpoch": each["state_epoch"],
                "batches": [
                    [run["first"], run["last"], RecordState(run["state"]).name, run["count"]]
                    for run in sorted(each["batches"], key=lambda run: int(run["first"]))
                ],
            }
            for topic in states
            for each in topic["partitions"]
        }

    def _alter_offsets(self, do: Step) -> dict[str, Any]:
        topics = [
            {"topic": self.prefix + topic, "partitions": [{"partition": partition, "start": offset}]}
            for topic, partition, offset in do["offsets"]
        ]
        told = self.admin.ask(apis.ALTER_OFFSETS, group=self.prefix + do.get("group", "g"), topics=topics)
        found = {
            f"{topic['topic'].removeprefix(self.prefix)}-{each['partition']}": error_name(each)
            for topic in told["topics"]
            for each in topic["partitions"]
        }
        if told["error"]:
            found = {f"{topic}-{partition}": error_name(told) for topic, partition, _ in do["offsets"]}
        return {"error": error_name(told), "partitions": found}

    def _delete_offsets(self, do: Step) -> dict[str, Any]:
        topics = [{"topic": self.prefix + topic} for topic in do["topics"]]
        told = self.admin.ask(apis.DELETE_OFFSETS, group=self.prefix + do.get("group", "g"), topics=topics)
        found = {
            topic["topic"].removeprefix(self.prefix): {"error": error_name(topic)} for topic in told["topics"]
        }
        if told["error"]:
            found = {topic: {"error": error_name(told)} for topic in do["topics"]}
        return {"error": error_name(told), "topics": found}

    def _delete_group(self, do: Step) -> dict[str, Any]:
        told = self.admin.ask(apis.DELETE_GROUPS, groups=[self.prefix + do.get("group", "g")])
        return {"error": error_name(told["groups"][0])}

    def _describe_group(self, do: Step) -> dict[str, Any]:
        asked = [self.prefix + do.get("group", "g")]
        (group,) = self.admin.ask(apis.DESCRIBE_GROUPS, groups=asked, operations=False)["groups"]
        if group["error"]:
            return {"error": error_name(group)}
        members = {
            member["member"]: {
                "clientId": member["client_id"],
                "memberEpoch": member["epoch"],
                "assignment": sorted(
                    f"{topic['topic'].removeprefix(self.prefix)}-{partition}"
                    for topic in member["assignment"]["topics"]
                    for partition in topic["partitions"]
                ),
            }
            for member in group["members"]
        }
        return {
            "error": "NONE",
            "state": group["state"],
            "groupEpoch": group["group_epoch"],
            "assignmentEpoch": group["assignment_epoch"],
            "members": members,
        }
