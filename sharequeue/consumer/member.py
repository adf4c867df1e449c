"""The membership of a consumer in its share group, and the configs of the group that it uses.

`groups.membership` sends the heartbeats. A consumer that was fenced or has expired joins again by itself; by then the
records that it held are given back. A consumer whose program does not poll for ``max.poll.interval.ms`` leaves, and
joins again at the next poll.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from math import inf

from sqlalchemy.exc import SQLAlchemyError

from sharequeue.consumer.configs import ConsumerConfig
from sharequeue.database import Database
from sharequeue.domain.errors import ShareError, UnknownTopicId, first_line
from sharequeue.domain.values import SharePartition
from sharequeue.groups.configs import GroupConfigs
from sharequeue.groups.heartbeats import HeartbeatResponse
from sharequeue.groups.membership import Membership
from sharequeue.groups.transports import DatabaseTransport, ServiceTransport, Transport
from sharequeue.state import State

_log = logging.getLogger(__name__)

CONFIGS_S = 30.0
"""The configs of the group are loaded again after this time, and with a new assignment."""
JUST_LOADED_S = 1.0
"""Configs that were loaded for a request are also used for its response."""


class ConsumerMember:
    """One member of one share group. Attributes may be read from any thread; callbacks are called from its own."""

    def __init__(
        self,
        config: ConsumerConfig,
        database: Database,
        changed: Callable[[], None],
        failed: Callable[[ShareError], None],
        lost: Callable[[], None],
    ) -> None:
        self.membership = Membership(
            self._transport(config, database),
            config.group_id,
            client_id=config.client_id,
            rack_id=config.client_rack,
            events=self,
        )
        self.group_id = config.group_id
        self.member_id = self.membership.member_id
        self.isolation_level = "read_uncommitted"
        """The group's isolation level, as far as is known."""
        self.max_locks = 2000
        """Records of one share-partition that the group may have in flight, as far as is known."""
        self.lost_topics: Mapping[str, UnknownTopicId] = {}
        """Topics that were deleted, and perhaps created again: nothing of them is assigned."""
        self._database = database
        self._max_poll_s = config.max_poll_interval_ms / 1000
        self._polled_at = time.monotonic()
        self._configs_at = -inf
        self._changed = changed
        self._failed = failed
        self._lost = lost
        """Called when the member's records are given to others: none of them may be handed out any more."""

    def _transport(self, config: ConsumerConfig, database: Database) -> Transport:
        """Return the transport of the heartbeats: to the service if its URL is given, else to the database."""
        if config.service_url is None:
            return DatabaseTransport(database, config.settings, self._note)
        return ServiceTransport(config.settings.replace(service_url=config.service_url).service)

    @property
    def epoch(self) -> int:
        """The current epoch of the member; 0 before joining."""
        return self.membership.member_epoch

    @property
    def assignment(self) -> Mapping[SharePartition, str]:
        """The share-partitions to lease from, and the ids of their topics."""
        return self.membership.topic_ids

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Join with these topics, or change the member's topics; with none leave the group. Returns at once."""
        self.returned()
        self.membership.subscribe(topics)

    def polled(self) -> None:
        """Record that the program is in a poll, however long that waits.

        If the member had left, or could not join, it tries again.
        """
        self._polled_at = inf
        self.membership.stay()

    def returned(self) -> None:
        """Record that the poll has returned: from now on ``max.poll.interval.ms`` counts."""
        self._polled_at = time.monotonic()
        self.membership.stay_for(self._max_poll_s)

    def metrics(self) -> dict[str, float]:
        """Return this member's figures, by the names of Kafka's client."""
        return {
            "assigned-partitions": float(len(self.assignment)),
            "heartbeat-total": float(self.membership.heartbeats),
            "last-poll-seconds-ago": max(0.0, time.monotonic() - self._polled_at),
            "rebalance-total": float(self.membership.rebalances),
        }

    def lose(self, topic: str, error: UnknownTopicId) -> None:
        """Mark a topic as lost: a lease was refused because the topic is not the one that the group began on."""
        if (news := self._news({**self.lost_topics, topic: error})) is not None:
            self.membership.report(self.membership.topics, news)

    def load_configs(self) -> GroupConfigs:
        """Load the current configs of the group."""
        configs = GroupConfigs.load(self._database, self.group_id)
        self._note(configs)
        return configs

    def _note(self, configs: GroupConfigs) -> None:
        before = self.isolation_level
        self.max_locks, self.isolation_level = configs.partition_max_record_locks, configs.isolation_level
        self._configs_at = time.monotonic()
        if self.isolation_level != before:
            self._changed()

    def answered(self, topics: tuple[str, ...], response: HeartbeatResponse) -> None:
        """Load the configs for a new assignment, and report lost topics."""
        news = response.assignment is not None or response.member_epoch != self.epoch
        if time.monotonic() - self._configs_at > (JUST_LOADED_S if news else CONFIGS_S):
            self.load_configs()
        if news:
            lost = self._news(State(self._database).figures.lost_topics(self.group_id, topics))
            if lost is not None:
                self.membership.report(topics, lost)

    def assigned(self) -> None:
        """Continue leasing with a new assignment."""
        self._changed()

    def out(self) -> None:
        """Stop handing out held records: the group gives them to others."""
        self._lost()
        self._changed()

    def refused(self, error: ShareError) -> None:
        """End a poll with an error that waiting does not resolve."""
        self._failed(error)

    def unused(self) -> None:
        """Give back held records, because the program does not poll."""
        _log.warning(
            "member %s leaves group %s: its program has not polled for max.poll.interval.ms (%.0f s)",
            *(self.member_id, self.group_id, self._max_poll_s),
        )
        self._lost()
        try:
            State(self._database).release_member(self.group_id, self.member_id)
        except (ShareError, SQLAlchemyError) as error:
            _log.warning("records of %s wait for their locks: %s", self.member_id, first_line(error))

    def _news(self, lost: Mapping[str, UnknownTopicId]) -> UnknownTopicId | None:
        """Set the lost topics to exactly these; return the error of those that were not lost before."""
        before = set(map(str, self.lost_topics.values()))
        news = [str(error) for error in lost.values() if str(error) not in before]
        self.lost_topics = lost
        if not news:
            return None
        _log.warning("member %s of group %s: %s", self.member_id, self.group_id, " ".join(news))
        return UnknownTopicId(" ".join(news))
