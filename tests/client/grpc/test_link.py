"""When a link pings a silent server, and when its answers to pings can wait."""

import pytest

from kvorum.client.grpc.link import Keepalive, Link, LinkError
from kvorum.client.grpc.wire import End, Wire

PING_SECONDS, PONG_SECONDS_MAX = 6.0, 5.0


class _Ends:
    def __init__(self) -> None:
        self.ends: list[End] = []

    def take_message(self, call: int, message: bytes) -> None:
        """Nothing comes."""

    def take_end(self, call: int, end: End) -> None:  # noqa: ARG002
        self.ends.append(end)


def new_link(calls: _Ends, *, pings_without_calls: bool = False) -> Link:
    wire = Wire(calls, "localhost:2379", is_secure=False, agent="test")
    keepalive = Keepalive(PING_SECONDS, PONG_SECONDS_MAX, pings_without_calls=pings_without_calls)
    return Link(0, wire, keepalive)


def test_a_silent_server_is_asked_and_then_given_up() -> None:
    calls = _Ends()
    found = new_link(calls)
    assert found.wake_at(0.0) == float("inf")
    found.wire.start(1, "/s/M", (), b"", ends=True)
    asked_at = found.wake_at(10.0)
    assert asked_at == 10.0 + PING_SECONDS
    found.take_output()
    found.pass_time(asked_at)
    assert found.take_output()
    # A pong, or any byte, is an answer.
    found.receive(b"\0\0\10\6\1\0\0\0\0kvorum\0\0")
    assert found.wake_at(asked_at) == asked_at + PING_SECONDS
    found.pass_time(asked_at + PING_SECONDS)
    with pytest.raises(LinkError, match="does not answer"):
        found.pass_time(asked_at + PING_SECONDS + PONG_SECONDS_MAX)
    # Without a call nobody is asked.
    found.wire.cancel(1)
    assert found.wake_at(100.0) == float("inf")


def test_an_answer_to_a_ping_goes_with_the_next_call_unless_one_waits() -> None:
    ping, pong = (b"\0\0\10\6" + flags + b"\0\0\0\0whatever" for flags in (b"\0", b"\1"))
    found = new_link(_Ends())
    assert not found.can_wait, "the connection is to begin"
    found.take_output()
    found.receive(ping)
    assert found.can_wait
    found.wire.start(1, "/s/M", (), b"", ends=True)
    assert not found.can_wait
    assert pong in found.take_output()
    found.receive(ping)
    assert not found.can_wait
    assert found.take_output() == pong


def test_a_link_may_ping_without_calls() -> None:
    found = new_link(_Ends(), pings_without_calls=True)
    found.take_output()
    asked_at = found.wake_at(10.0)
    assert asked_at == 10.0 + PING_SECONDS
    found.pass_time(asked_at)
    assert found.take_output()
    # The silence begins anew, and with it the wait for the ping's answer ends.
    found.restart_silence()
    assert found.wake_at(20.0) == 20.0 + PING_SECONDS
