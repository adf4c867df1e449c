"""Errors by Kafka's names and numbers; configs by name, type, bound and message."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sharequeue.domain import errors
from sharequeue.domain.errors import InvalidConfig, ShareError, UnknownServerError, error_for
from sharequeue.groups.configs import GroupConfigs, ServiceConfigs, validate_group_config
from sharequeue.groups.configs.keys import GROUP_CONFIGS, SERVICE_CONFIGS
from sharequeue.groups.configs.names import environment_name
from sharequeue.groups.configs.texts import reset_duration

NUMBERS = {
    "UNKNOWN_SERVER_ERROR": -1,
    "UNKNOWN_TOPIC_OR_PARTITION": 3,
    "LEADER_NOT_AVAILABLE": 5,
    "NOT_LEADER_OR_FOLLOWER": 6,
    "COORDINATOR_LOAD_IN_PROGRESS": 14,
    "COORDINATOR_NOT_AVAILABLE": 15,
    "NOT_COORDINATOR": 16,
    "INVALID_GROUP_ID": 24,
    "UNKNOWN_MEMBER_ID": 25,
    "TOPIC_AUTHORIZATION_FAILED": 29,
    "GROUP_AUTHORIZATION_FAILED": 30,
    "UNSUPPORTED_VERSION": 35,
    "INVALID_CONFIG": 40,
    "INVALID_REQUEST": 42,
    "NON_EMPTY_GROUP": 68,
    "GROUP_ID_NOT_FOUND": 69,
    "FENCED_LEADER_EPOCH": 74,
    "OFFSET_NOT_AVAILABLE": 78,
    "GROUP_MAX_SIZE_REACHED": 81,
    "UNKNOWN_TOPIC_ID": 100,
    "FENCED_MEMBER_EPOCH": 110,
    "INVALID_RECORD_STATE": 121,
    "FENCED_STATE_EPOCH": 124,
}


@pytest.mark.parametrize(("name", "code"), NUMBERS.items())
def test_names_and_numbers_are_kafkas(name: str, code: int) -> None:
    """An error is found by its number, and says something of its own."""
    error = error_for(code)
    assert (error.name, error.code) == (name, code)
    assert len(error.message) > 40
    assert str(error_for(code, "exactly this")) == "exactly this"


def test_no_two_errors_share_a_number() -> None:
    """Every class is reachable by its own number."""
    classes = {
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ShareError)
    }
    assert set(errors.ERRORS_BY_CODE.values()) == classes - {ShareError}


def test_what_has_no_class_keeps_its_name() -> None:
    """An unforeseen number becomes UNKNOWN_SERVER_ERROR with the number in its message; NONE is refused."""
    assert isinstance(error_for(9999, "odd"), UnknownServerError)
    assert "9999" in error_for(9999, "odd").message
    with pytest.raises(ValueError, match="not an error"):
        error_for(0)


def test_defaults_are_kafkas(no_environment: pytest.MonkeyPatch) -> None:
    """A group without configs of its own has Kafka's defaults."""
    configs = GroupConfigs.of("g", {})
    assert (configs.session_timeout_ms, configs.heartbeat_interval_ms) == (45_000, 5000)
    assert (configs.record_lock_duration_ms, configs.delivery_count_limit) == (30_000, 5)
    assert (configs.partition_max_record_locks, configs.assignment_interval_ms) == (2000, 1000)
    assert (configs.auto_offset_reset, configs.isolation_level) == ("latest", "read_uncommitted")
    assert configs.renew_acknowledge_enable
    assert not configs.dead_letter_topic
    assert not configs.dead_letter_copy_record
    assert not configs.dead_letter_drop_enable


def test_every_group_config_has_a_value_and_a_purpose() -> None:
    """Each key resolves, through the service's value where it has no default, and says what it is for."""
    values = GroupConfigs.of("g", {}, ServiceConfigs()).values
    assert values.keys() == GROUP_CONFIGS.keys()
    assert all(key.doc.endswith(".") for key in (*GROUP_CONFIGS.values(), *SERVICE_CONFIGS.values()))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("share.delivery.count.limit", "1", "between 2"),
        ("share.delivery.count.limit", "11", "allows 2 to 10"),
        ("share.delivery.count.limit", "five", "whole number"),
        ("share.record.lock.duration.ms", "14999", "allows 15000 to 60000"),
        ("share.partition.max.record.locks", "99", "between 100"),
        ("share.isolation.level", "serializable", "read_uncommitted, read_committed"),
        ("share.renew.acknowledge.enable", "yes", "true or false"),
        ("share.auto.offset.reset", "none", "latest, earliest or by_duration"),
        ("share.auto.offset.reset", "by_duration:-PT1H", "must not be negative"),
        ("share.auto.offset.reset", "by_duration:P", "ISO-8601"),
        ("share.auto.offset.reset", "by_duration:PT\u0665H", "ISO-8601"),
        ("share.auto.offset.reset", "by_duration:PT9223372036854775807S", "longer than"),
        ("share.auto.offset.reset", f"by_duration:P{'9' * 5000}D", "longer than"),
        ("share.delivery.count.limit", "1_0", "whole number"),
        ("share.delivery.count.limit", "\u0665", "whole number"),
        ("share.delivery.count.limit", "9" * 5000, "whole number"),
        ("errors.deadletterqueue.topic.name", "__internal", "Kafka's own"),
        ("errors.deadletterqueue.topic.name", "no spaces", "not a valid topic name"),
        ("group.share.record.lock.partition.limit", "1", "`group.share.partition.max.record.locks`"),
        ("group.share.record.lock.duration.max.ms", "1", "`group.share.max.record.lock.duration.ms`"),
        ("group.share.isolation.level", "x", "the group config `share.isolation.level`"),
        ("group.share.auto.offset.reset", "x", "`share.auto.offset.reset`"),
        ("record.lock.duration.ms", "1", "lock duration of an acquire"),
        ("group.share.delivery.attempt.limit", "5", "use `group.share.delivery.count.limit`"),
        ("group.type", "share", "was removed: every group here is a share group"),
        ("group.share.enable", "true", "no meaning outside a Kafka broker"),
        ("share.coordinator.threads", "1", "no meaning outside a Kafka broker"),
        ("group.share.session.timeout.ms", "1", "SHAREQUEUE_GROUP_SHARE_SESSION_TIMEOUT_MS"),
        ("share.delivery.count.limti", "5", "Did you mean `share.delivery.count.limit`"),
        ("nonsense", "5", "there is no config"),
    ],
)
def test_a_refused_config_says_why(
    no_environment: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    """A wrong name or value is INVALID_CONFIG, with what was expected or what it is called today."""
    with pytest.raises(InvalidConfig) as refused:
        validate_group_config(name, value)
    assert says in refused.value.message
    assert name in refused.value.message


def test_batch_groups_may_lock_two_billion_records(no_environment: pytest.MonkeyPatch) -> None:
    """share.partition.max.record.locks reaches 2³¹ − 1, where Kafka stops at 10,000."""
    assert validate_group_config("share.partition.max.record.locks", str(2**31 - 1)) == 2**31 - 1


@pytest.mark.parametrize(
    ("policy", "span"),
    [
        ("latest", None),
        ("earliest", None),
        ("by_duration:PT1H", timedelta(hours=1)),
        ("by_duration:P2DT3H4M5.5S", timedelta(days=2, hours=3, minutes=4, seconds=5.5)),
        ("by_duration:PT0S", timedelta(0)),
    ],
)
def test_reset_policies(policy: str, span: timedelta | None) -> None:
    """by_duration takes Java's Duration syntax."""
    assert reset_duration(policy) == span


def test_the_environment_sets_service_configs(no_environment: pytest.MonkeyPatch) -> None:
    """SHAREQUEUE_GROUP_SHARE_… is the service's value, and a group's own values are clamped to its bounds."""
    no_environment.setenv("SHAREQUEUE_GROUP_SHARE_MAX_SESSION_TIMEOUT_MS", "50000")
    no_environment.setenv(environment_name("group.share.max.size"), "3")
    service = ServiceConfigs.load()
    assert service.max_size == 3
    assert GroupConfigs.of("g", {"share.session.timeout.ms": "60000"}, service).session_timeout_ms == 50_000


def test_a_service_value_outside_its_own_bounds_is_refused() -> None:
    """min ≤ value ≤ max holds for each triple."""
    with pytest.raises(InvalidConfig, match=r"group\.share\.min\.session\.timeout\.ms"):
        ServiceConfigs.of({"group.share.session.timeout.ms": "1000"})
    with pytest.raises(InvalidConfig, match="must be below"):
        ServiceConfigs.of(
            {
                "group.share.heartbeat.interval.ms": "9000",
                "group.share.session.timeout.ms": "9000",
                "group.share.min.session.timeout.ms": "9000",
            }
        )
