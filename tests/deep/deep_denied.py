"""Dead letters on a broker that denies some operations on topics: what is denied is named, with what to grant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from sharequeue.cli import command
from sharequeue.database import Database
from sharequeue.deadletters.redrive.redrive import Redrive
from sharequeue.deadletters.redrive.selection import Selection
from sharequeue.domain.errors import TopicAuthorizationFailed
from sharequeue.domain.settings import Settings
from sharequeue.kafka.clients import client_config
from tests.fixtures.deadletters import GivenUp, execute
from tests.fixtures.stack import jars_folder
from tests.integration.deadletters.redrive.test_redrive import put_back
from tests.servers.own_brokers import OwnBroker, own_broker

_PROPERTIES = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnBroker]:
    """Give a broker with ACLs."""
    folder = tmp_path_factory.mktemp("denying")
    with own_broker(folder, jars_folder() / "broker", properties=_PROPERTIES) as found:
        yield found


@pytest.fixture
def case(broker: OwnBroker, settings: Settings, private_database: Database, group: str) -> GivenUp:
    """Give a group with letters of all its three records, on that broker."""
    settings = settings.replace(bootstrap_servers=broker.address())
    made = GivenUp(settings, private_database, group, f"in-{group}", f"dlq.{group}")
    made.topics.create(made.topic, 1)
    made.topics.create(made.dead_letter_topic, 1, {"errors.deadletterqueue.group.enable": "true"})
    made.configure(
        errors_deadletterqueue_topic_name=made.dead_letter_topic,
        errors_deadletterqueue_copy_record_enable="true",
        share_auto_offset_reset="earliest",
    )
    made.produce(3)
    made.reject()
    made.writer().write()
    return made


def deny(case: GivenUp, topic: str, operation: AclOperation) -> None:
    """Deny one operation on a topic, and allow the others."""
    admin = AdminClient(client_config(case.settings))
    some = [(AclOperation.ALL, AclPermissionType.ALLOW), (operation, AclPermissionType.DENY)]
    for what, kind in some:
        binding = AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", what, kind
        )
        admin.create_acls([binding])[binding].result(30)


def redrive(case: GivenUp, target: str | None = None) -> Redrive:
    return Redrive(case.settings, case.database, case.dead_letter_topic, Selection(), target=target)


def test_a_target_that_may_not_be_written_names_the_right(case: GivenUp) -> None:
    """Every letter stays one, and is sent by another redrive, to a topic that may be written."""
    elsewhere = f"elsewhere-{case.group}"
    case.topics.create(elsewhere, 1)
    deny(case, elsewhere, AclOperation.WRITE)
    report = execute(redrive(case, elsewhere))
    assert (report.sent, [each.offset for each in report.refused]) == (0, [0, 1, 2])
    assert all(f"grant WRITE on topic {elsewhere}" in each.reason for each in report.refused)
    assert execute(redrive(case)).sent == 3
    assert put_back(case).total() == 3


def test_a_dead_letter_topic_that_may_not_be_read_names_the_right(case: GivenUp, tmp_path: Path) -> None:
    """`dlq list` and a redrive end with an error in words."""
    deny(case, case.dead_letter_topic, AclOperation.READ)
    addresses = ("--bootstrap-server", case.settings.bootstrap_servers, "--home", str(tmp_path))
    listed = CliRunner().invoke(command, ["dlq", "list", case.dead_letter_topic, *addresses])
    assert isinstance(listed.exception, TopicAuthorizationFailed)
    assert "grant READ on it" in str(listed.exception)
    with pytest.raises(TopicAuthorizationFailed, match="grant READ on it"):
        redrive(case).plan()
