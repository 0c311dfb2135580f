"""An unforeseen error ends one call; one that touches data stops the member, in any call."""

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.member.errors import MemberStopped
from kvorum.member.jobs import ExecutorKind
from kvorum.member.waits import RunJob, Steps
from kvorum.server.rpc.interface import Streams
from kvorum.server.rpc.table import NUMBERS
from kvorum.state.apply import requests
from kvorum.state.apply.callers import Caller
from kvorum.storage.files.purge import Purge
from tests.server.rpc.harness import Harness, Stream

PUT = "/etcdserverpb.KV/Put"
STATUS = "/etcdserverpb.Maintenance/Status"
WATCH = "/etcdserverpb.Watch/Watch"
KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"


class SlipError(Exception):
    """An error that no caller of a parser expects."""


@pytest.fixture
def harness() -> Harness:
    return Harness()


def plant(harness: Harness, path: str, serve: Callable[[int, Caller, bytes], Any]) -> None:
    """Replace the function that serves a unary call."""
    harness.services._unary[NUMBERS[path]] = serve


def slips(_call: int, _caller: Caller, _payload: bytes) -> None:
    raise SlipError("unforeseen")


def check_alive(harness: Harness) -> None:
    put = harness.ask("KV/Put", pb.PutRequest(key=b"alive", value=b"yes"))
    assert not isinstance(put, Status)


def caught(harness: Harness) -> int:
    return sum(harness.member.boundary.counts.values())


def test_a_slip_ends_its_call_alone(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    plant(harness, STATUS, slips)
    put = pb.PutRequest(key=b"beside", value=b"1").SerializeToString()
    batch = [(901, NUMBERS[PUT], put, None), (902, NUMBERS[STATUS], b"\x1b[2Jsent\n", None)]
    batch.append((903, NUMBERS[PUT], put, None))
    with caplog.at_level(logging.ERROR):
        harness.arrive(batch)
    assert harness.edge.replies[902] == errors.INTERNAL
    for call in (901, 903):
        assert not isinstance(harness.edge.replies[call], Status)
    assert harness.member.boundary.counts["call"] == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert STATUS in line and "SlipError: 'unforeseen'" in line
    assert "b'\\x1b[2Jsent\\n'" in line and "\x1b" not in line and "\n" not in line
    check_alive(harness)


def test_a_flood_of_slips_is_told_once_in_a_while(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    plant(harness, STATUS, slips)
    with caplog.at_level(logging.ERROR):
        for _ in range(50):
            harness.ask("Maintenance/Status", pb.StatusRequest())
        assert len(caplog.records) == 1
        harness.pass_time(11.0)
        harness.ask("Maintenance/Status", pb.StatusRequest())
    assert len(caplog.records) == 2
    assert "49 more since" in caplog.records[-1].getMessage()
    assert caught(harness) == 51


def test_what_was_sent_is_told_to_a_bound(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    plant(harness, STATUS, slips)
    with caplog.at_level(logging.ERROR):
        harness.begin(STATUS, b"\xff" * 100_000)
    assert len(caplog.records[-1].getMessage()) < 3000
    assert "and 99744 more" in caplog.records[-1].getMessage()


class Slipping:
    """Serves streams as another does, but for what they receive: compiled ones take no patch."""

    take_message = staticmethod(slips)

    def __init__(self, handler: Streams) -> None:
        self._handler = handler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)


@pytest.mark.parametrize("path", [WATCH, KEEP_ALIVE])
def test_a_slip_ends_its_stream_alone(harness: Harness, path: str) -> None:
    name = path.partition(".")[2]
    stream, other = harness.open(name), harness.open(name)
    handlers = harness.services._open
    handlers[stream.call] = cast(Streams, Slipping(handlers[stream.call]))
    stream.send(b"\x08\x01")
    assert stream.status == errors.INTERNAL
    assert other.status is None
    assert_serves(path, other)
    assert caught(harness) == 1
    check_alive(harness)


def assert_serves(path: str, stream: Stream) -> None:
    if path == WATCH:
        create = pb.WatchCreateRequest(key=b"a")
        stream.send(pb.WatchRequest(create_request=create))
    else:
        stream.send(pb.LeaseKeepAliveRequest(ID=1))
    assert stream.received()


def test_a_slip_of_a_procedure_ends_its_call_alone(harness: Harness) -> None:
    def steps() -> Steps:
        yield None
        raise SlipError("late")

    plant(harness, STATUS, lambda call, caller, _: harness.member.start(call, caller, steps()))
    assert harness.ask("Maintenance/Status", pb.StatusRequest()) == errors.INTERNAL
    assert caught(harness) == 1
    check_alive(harness)


# What stops the member.


def test_an_error_of_the_state_stops_the_member(harness: Harness) -> None:
    store = harness.member.state.store
    plant(harness, STATUS, lambda *_: store.readable("no revision"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        harness.ask("Maintenance/Status", pb.StatusRequest())
    assert not caught(harness)


def test_an_error_of_the_state_behind_another_stops_the_member(harness: Harness) -> None:
    def hides(_call: int, _caller: Caller, _payload: bytes) -> None:
        try:
            harness.member.state.store.readable("no revision")  # type: ignore[arg-type]
        except TypeError as error:
            raise SlipError("something else") from error

    plant(harness, STATUS, hides)
    with pytest.raises(SlipError):
        harness.ask("Maintenance/Status", pb.StatusRequest())
    assert not caught(harness)


def test_an_error_of_the_state_stops_the_member_in_a_procedure_too(harness: Harness) -> None:
    def steps() -> Steps:
        yield None
        harness.member.state.store.readable("no revision")  # type: ignore[arg-type]
        return b""

    plant(harness, STATUS, lambda call, caller, _: harness.member.start(call, caller, steps()))
    with pytest.raises(MemberStopped):
        harness.ask("Maintenance/Status", pb.StatusRequest())


def test_what_is_raised_after_a_proposal_stops_the_member(harness: Harness) -> None:
    put = pb.PutRequest(key=b"k", value=b"v").SerializeToString()

    def serve(call: int, caller: Caller, _payload: bytes) -> None:
        harness.member.replica.propose(call, caller, requests.PUT, put)
        raise SlipError("too late")

    plant(harness, STATUS, serve)
    with pytest.raises(SlipError):
        harness.ask("Maintenance/Status", pb.StatusRequest())
    assert not caught(harness)


def test_a_failed_job_stops_the_member(harness: Harness) -> None:
    def steps() -> Steps:
        yield RunJob(ExecutorKind.POOL, Purge("/data", ".snap", 1))
        return b""

    harness.failing = (Purge,)

    plant(harness, STATUS, lambda call, caller, _: harness.member.start(call, caller, steps()))
    with pytest.raises(MemberStopped):
        harness.ask("Maintenance/Status", pb.StatusRequest())


def test_nothing_of_a_password_is_logged(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/etcdserverpb.Auth/UserAdd"
    plant(harness, path, slips)
    request = pb.AuthUserAddRequest(name="somebody", password="secret")
    assert harness.ask("Auth/UserAdd", request) == errors.INTERNAL
    assert "unforeseen" in caplog.text and "secret" not in caplog.text


def test_a_slip_over_a_token_ends_its_call_alone(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slip(*_: object) -> None:
        raise SlipError("unforeseen")

    harness.member.state.auth.is_enabled = True
    monkeypatch.setattr(type(harness.member.state.tokens), "verify", slip)
    answer = harness.ask("Maintenance/Status", pb.StatusRequest(), metadata={"token": b"a.1"})
    assert answer == errors.INTERNAL
    harness.member.state.auth.is_enabled = False
    check_alive(harness)
