"""Old names of configs, and their present names.

An unknown name is refused with a hint: the present name of an old one, the level that has it, or a similar name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from sharequeue.domain.errors import InvalidConfig
from sharequeue.groups.configs.keys import GROUP_CONFIGS, SERVICE_CONFIGS, ConfigKey

_RENAMED: Mapping[str, str] = {
    "group.share.record.lock.partition.limit": "`group.share.partition.max.record.locks`",
    "group.share.record.lock.duration.max.ms": "`group.share.max.record.lock.duration.ms`",
    "group.share.delivery.attempt.limit": "`group.share.delivery.count.limit`",
    "group.share.isolation.level": "the group config `share.isolation.level`",
    "group.share.auto.offset.reset": "the group config `share.auto.offset.reset`",
    "record.lock.duration.ms": "the optional lock duration of an acquire",
}
_GONE: Mapping[str, str] = {
    "group.type": "every group here is a share group, and a consumer group of the broker may have the same name; "
    "there is nothing to set",
}
_BROKER_ONLY = frozenset(
    {
        "group.share.enable",
        "group.share.max.groups",
        "group.share.max.share.sessions",
        "group.coordinator.rebalance.protocols",
        "group.share.persister.class.name",
        "max.share.session.cache.slots",
        "share.fetch.purgatory.purge.interval.requests",
    }
)


def known_key(name: str, known: Mapping[str, ConfigKey]) -> ConfigKey:
    """Return the definition of a configuration. Raises `InvalidConfig` if there is none of that name."""
    key = known.get(name)
    if key is None:
        raise unknown_config(name, known)
    return key


def unknown_config(name: str, known: Mapping[str, ConfigKey]) -> InvalidConfig:
    """Return the error for an unknown name: renamed, gone, a broker's own, at the other level, or mistyped."""
    if name in _RENAMED:
        return InvalidConfig(f"`{name}` is an old name: use {_RENAMED[name]}.")
    if name in _GONE:
        return InvalidConfig(f"`{name}` was removed: {_GONE[name]}.")
    if name in _BROKER_ONLY or (name.startswith("share.coordinator.") and name not in SERVICE_CONFIGS):
        return InvalidConfig(f"`{name}` has no meaning outside a Kafka broker; leave it out.")
    if name in SERVICE_CONFIGS:
        own = name.removeprefix("group.")
        hint = f", or `{own}` for one group" if own in GROUP_CONFIGS else ""
        return InvalidConfig(
            f"`{name}` is the service's, not a group's: set {environment_name(name)} where it runs{hint}."
        )
    if name in GROUP_CONFIGS:
        return InvalidConfig(f"`{name}` is a group's config, not the service's: alter it on the group.")
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    hint = f" Did you mean `{close[0]}`?" if close else f" Known are: {', '.join(sorted(known))}."
    return InvalidConfig(f"there is no config `{name}`.{hint}")


def environment_name(service_config: str) -> str:
    """Return the environment variable that sets a service config: `SHAREQUEUE_` and the name in capitals."""
    return "SHAREQUEUE_" + service_config.upper().replace(".", "_")
