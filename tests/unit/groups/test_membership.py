"""A member whose heartbeats fail goes on trying, and is told when its session must have ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharequeue.domain.errors import InvalidRequest, SaslAuthenticationFailed
from sharequeue.domain.settings import ServiceAddress
from sharequeue.groups.assignments import AssignedTopic
from sharequeue.groups.heartbeats import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatRequest, HeartbeatResponse
from sharequeue.groups.membership import Membership
from sharequeue.groups.transports import ServiceTransport
from tests.waiting import PATIENCE_S, wait_until

ANSWER = HeartbeatResponse(
    member_epoch=1,
    heartbeat_interval_ms=10,
    session_timeout_ms=60_000,
    assignment=[AssignedTopic(topic_id="id", topic_name="t", partitions=[0])],
)


def test_no_error_ends_the_heartbeats_and_a_lost_session_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also an error that nobody thought of. Once the service answers, all is as before;
    when it does not for a session, `lost` is set."""
    replies: list[HeartbeatResponse | None] = [ANSWER]
    sent = 0

    def send(self: ServiceTransport, request: HeartbeatRequest, timeout: float | None) -> HeartbeatResponse:
        nonlocal sent
        sent += 1
        reply = replies[0]
        assert reply is not None
        return reply

    monkeypatch.setattr(ServiceTransport, "__call__", send)
    with Membership("http://127.0.0.1:1", "g", ["t"]) as member:
        assert [str(at.topic) for at in member.join()] == ["t"]
        replies[0] = None
        before = sent
        wait_until(lambda: sent > before + 2)
        replies[0] = replace(ANSWER, member_epoch=2, session_timeout_ms=400)
        wait_until(lambda: member.member_epoch == 2)
        assert not member.lost.is_set()
        replies[0] = None
        assert member.lost.wait(PATIENCE_S)
        assert "no longer in group g: no heartbeat has succeeded" in caplog.text
        assert member.assignment == []


def test_a_token_that_is_not_taken_any_more_ends_the_heartbeats(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`lost` is set, with the reason, and nothing is sent again: no such request would succeed."""
    replies = [ANSWER]
    sent = 0

    def send(self: ServiceTransport, request: HeartbeatRequest, timeout: float | None) -> HeartbeatResponse:
        nonlocal sent
        sent += 1
        return replies[0]

    monkeypatch.setattr(ServiceTransport, "__call__", send)
    with Membership(ServiceAddress("http://127.0.0.1:1", "sq_"), "g", ["t"]) as member:
        member.join()
        replies[0] = HeartbeatResponse(SaslAuthenticationFailed.code, "the token was revoked")
        assert member.lost.wait(PATIENCE_S)
        assert "no longer in group g: the token was revoked" in caplog.text
        before = sent
    assert sent == before


def test_a_join_that_is_interrupted_leaves_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group knows the member already; it does not wait for the end of its session."""
    sent: list[int] = []

    def send(self: ServiceTransport, request: HeartbeatRequest, timeout: float | None) -> HeartbeatResponse:
        sent.append(request.member_epoch)
        return replace(ANSWER, assignment=[])

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ServiceTransport, "__call__", send)
    with (
        pytest.raises(KeyboardInterrupt),
        Membership("http://127.0.0.1:1", "g", ["t"]) as member,
    ):
        member.join(progress=interrupt)
    assert (sent[0], sent[-1]) == (JOIN_EPOCH, LEAVE_EPOCH)
    with pytest.raises(RuntimeError, match="create another one"):
        member.join()


def test_a_refused_join_without_topics_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A membership of no topics is refused by the group, and its join does not wait."""
    refusal = HeartbeatResponse(InvalidRequest.code, "a member that joins must subscribe")
    monkeypatch.setattr(ServiceTransport, "__call__", lambda *_: refusal)
    with Membership("http://127.0.0.1:1", "g", []) as member, pytest.raises(InvalidRequest):
        member.join(None)


def test_a_malformed_token_is_not_sent() -> None:
    """A line break in it would be another header; what is malformed is not in the error."""
    send = ServiceTransport(ServiceAddress("http://127.0.0.1:1", f"sq_{'x' * 43}\r\nX-Other: 1"))
    refused = send(HeartbeatRequest("g", "m", 0))
    send.close()
    assert refused.error_code == SaslAuthenticationFailed.code
    assert "xxx" not in str(refused.error_message)
