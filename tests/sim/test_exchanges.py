"""What a simulated client requires of an answer in JSON: its form, and the status of its code."""

import json
from typing import Any

import pytest
from google.protobuf import json_format

from kvorum.api.errors import Code, Status
from kvorum.api.pb.etcdserverpb import RangeResponse, ResponseHeader, WatchResponse
from kvorum.sim.arrivals import REFUSED
from kvorum.sim.edge import Head
from kvorum.sim.exchanges import (
    ANY_ORIGIN,
    GUARANTEE,
    HTTP_STATUS,
    JSON,
    OF_ANSWERS,
    OK,
    ROUTES,
    Exchange,
)
from kvorum.sim.violation import Violation

RANGE = ROUTES["/etcdserverpb.KV/Range"]
WATCH = ROUTES["/etcdserverpb.Watch/Watch"]
OBSERVE = ROUTES["/v3electionpb.Election/Observe"]
ANSWER = RangeResponse(header=ResponseHeader(revision=7, member_id=2**63), count=1)
CREATED = WatchResponse(header=ResponseHeader(revision=7), created=True)
GOOD = Head(200, [ANY_ORIGIN, JSON, OF_ANSWERS])


class Client:
    """An exchange, and what its client is told."""

    def __init__(self, route: Any = RANGE) -> None:
        self.answers: list[object] = []
        self.messages: list[bytes] = []
        self.exchange = Exchange("c1", route, self.answers.append, self.messages.append)

    def take(self, *pieces: Head | bytes) -> None:
        for piece in pieces:
            self.exchange.take_piece(piece)

    def end(self, *pieces: Head | bytes) -> object:
        self.take(*pieces)
        self.exchange.take_end(OK)
        (answer,) = self.answers
        return answer


def body(message: Any) -> bytes:
    return json_format.MessageToJson(message, preserving_proto_field_name=True).encode()


def line(message: Any) -> bytes:
    value = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return json.dumps({"result": value}).encode() + b"\n"


def error(code: Code, text: str = "etcdserver: no") -> bytes:
    return json.dumps({"code": code, "message": text}).encode()


def error_line(code: Code) -> bytes:
    return b'{"error":' + error(code) + b"}\n"


def test_all_routes_are_known() -> None:
    assert sum(len(route.targets) for route in ROUTES.values()) == 51


def test_an_answer_is_the_message_that_it_stands_for() -> None:
    text = body(ANSWER)
    assert Client().end(GOOD, text[:5], text[5:]) == ANSWER.SerializeToString()


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"count":1}',
        b'{"count":"0"}',
        b'{"kvs":[]}',
        b'{"counts":"1"}',
        b"[]",
        b"{",
        b'{"kvs":[{"modRevision":"1"}]}',
    ],
)
def test_an_answer_is_written_as_protobuf_writes_it(wrong: bytes) -> None:
    with pytest.raises(Violation, match=GUARANTEE):
        Client().end(GOOD, wrong)


@pytest.mark.parametrize("code", HTTP_STATUS)
def test_an_error_has_the_status_of_its_code(code: Code) -> None:
    challenge = [("www-authenticate", "etcdserver: no")] if code is Code.UNAUTHENTICATED else []
    for status in sorted({200, *HTTP_STATUS.values()}):
        client = Client()
        pieces = Head(status, [ANY_ORIGIN, JSON, *challenge]), error(code)
        if status == HTTP_STATUS[code]:
            assert client.end(*pieces) == Status(code, "etcdserver: no")
        else:
            with pytest.raises(Violation, match=GUARANTEE):
                client.end(*pieces)


def test_every_code_has_a_status() -> None:
    assert {*HTTP_STATUS, Code.OK} == set(Code)


@pytest.mark.parametrize(
    "head",
    [
        Head(401, [ANY_ORIGIN, JSON]),
        Head(401, [JSON, ("www-authenticate", "etcdserver: no")]),
        Head(401, [ANY_ORIGIN, ANY_ORIGIN, JSON, ("www-authenticate", "etcdserver: no")]),
        Head(401, [ANY_ORIGIN, ("www-authenticate", "etcdserver: no")]),
        Head(401, [ANY_ORIGIN, JSON, OF_ANSWERS, ("www-authenticate", "etcdserver: no")]),
    ],
)
def test_headers_are_those_of_an_error(head: Head) -> None:
    with pytest.raises(Violation, match=GUARANTEE):
        Client().end(head, error(Code.UNAUTHENTICATED))


def test_a_request_that_is_not_understood_is_noticed() -> None:
    with pytest.raises(Violation, match="not understood"):
        Client().end(
            Head(400, [ANY_ORIGIN, JSON]), error(Code.INVALID_ARGUMENT, "proto: (line 1:2): no")
        )


def test_lines_are_messages() -> None:
    client = Client(WATCH)
    client.take(GOOD, line(CREATED), line(CREATED))
    assert client.messages == [CREATED.SerializeToString()] * 2
    assert client.end(error_line(Code.UNAVAILABLE)) == Status(Code.UNAVAILABLE, "etcdserver: no")


@pytest.mark.parametrize("code", HTTP_STATUS)
def test_an_error_in_place_of_the_first_line_has_the_status_of_its_code(code: Code) -> None:
    head = Head(HTTP_STATUS[code], [ANY_ORIGIN, JSON])
    assert Client(WATCH).end(head, error_line(code)) == Status(code, "etcdserver: no")
    with pytest.raises(Violation, match=GUARANTEE):
        Client(WATCH).take(GOOD, error_line(code))


@pytest.mark.parametrize(
    "pieces",
    [
        (line(CREATED),),
        (GOOD, GOOD),
        (GOOD, line(CREATED) + line(CREATED)),
        (GOOD, line(CREATED), error_line(Code.UNAVAILABLE), line(CREATED)),
        (GOOD, b"{}\n"),
        (GOOD, b'{"result":{},"error":{}}\n'),
        (Head(500, [ANY_ORIGIN, JSON]), line(CREATED)),
    ],
)
def test_a_stream_is_lines_after_a_head(pieces: tuple[Head | bytes, ...]) -> None:
    with pytest.raises(Violation, match=GUARANTEE):
        Client(WATCH).take(*pieces)


@pytest.mark.parametrize("route", [RANGE, WATCH])
def test_nothing_ends_without_an_answer(route: Any) -> None:
    with pytest.raises(Violation, match=GUARANTEE):
        Client(route).end(GOOD)


def test_an_observer_of_an_election_may_get_no_answer() -> None:
    assert Client(OBSERVE).end(Head(200, [ANY_ORIGIN])) == OK


@pytest.mark.parametrize("lost", [None, REFUSED])
def test_what_the_connection_lost_is_lost(lost: Status | None) -> None:
    client = Client()
    client.take(GOOD, body(ANSWER))
    client.exchange.take_end(lost)
    assert client.answers == [lost]
