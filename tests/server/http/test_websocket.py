"""WebSockets on the gateway's paths: as at a real etcd; and unary calls, never answered there."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import pytest
from wsproto.events import CloseConnection

from tests.server.http.asking import ask, parsed
from tests.server.http.comparing import CORS, headers_of, text_of
from tests.server.http.servers import Both, metric, running_both, running_ours
from tests.server.http.talking import Talk, talking
from tests.server.http.websocket import (
    BINARY,
    CLOSE,
    KEY,
    MORE,
    PING,
    PONG,
    TEXT,
    WebSocket,
    accepted,
    frame,
)
from tests.state.auth.servers import OURS_IS_ETCD
from tests.waiting import until

FOO = "Zm9v"
CREATE = f'{{"create_request":{{"key":"{FOO}"}}}}'
WATCHERS = "etcd_debugging_mvcc_watcher_total"
HEADERS = ("upgrade", "connection")

Given = Mapping[str, Any]


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    with talking(tmp_path_factory.mktemp("sockets")) as found:
        yield found


@pytest.fixture
def both(talk: Talk) -> Iterator[Both]:
    """The two, empty before and after a test."""
    yield talk.both
    talk.reset()


class Sockets:
    """One WebSocket to each of the two, which say the same; closed at the end of the block."""

    def __init__(
        self, both: Both, target: str, headers: Sequence[Given] = ({}, {}), method: str = "GET"
    ) -> None:
        self._target = target
        self.ours, self.theirs = (
            WebSocket(address, target, given, method=method)
            for address, given in zip(both, headers, strict=True)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ours.close()
        self.theirs.close()

    def check_head(self) -> int:
        """Compare how the handshakes were answered; return the status."""
        ours, theirs = (_handshake(each) for each in (self.ours, self.theirs))
        assert ours == theirs
        return self.ours.opened.status

    def say(self, *messages: str | bytes) -> None:
        for each in (self.ours, self.theirs):
            each.say(*messages)

    def send(self, *frames: bytes) -> None:
        for each in (self.ours, self.theirs):
            each.send(*frames)

    def check_line(self) -> Any:
        """Wait for a line of both, and compare; return ours."""
        ours, theirs = self.ours.line(), self.theirs.line()
        found, expected = (text_of(self._target, each) for each in (ours, theirs))
        assert found == expected
        return ours

    def check_closed(self) -> None:
        """Wait for the end of both; who ends a WebSocket without a frame is free to do so."""
        assert self.ours.is_closed()
        assert self.theirs.is_closed()

    def check_close(self) -> int:
        """Wait for frames that close both, and compare their codes; return them."""
        ours, theirs = self.ours.next(), self.theirs.next()
        assert isinstance(ours, CloseConnection), ours
        assert isinstance(theirs, CloseConnection), theirs
        assert ours.code == theirs.code
        return int(ours.code)


def _handshake(socket: WebSocket) -> tuple[int, dict[str, str], dict[str, str], bytes]:
    opened = socket.opened
    ours = {
        name: value
        for name, value in opened.headers.items()
        if name in HEADERS or name.startswith("sec-websocket-")
    }
    body = b"" if opened.status == 101 else socket.rest(opened).body
    return opened.status, headers_of(opened), ours, body


# Handshakes.


@pytest.mark.long
@pytest.mark.parametrize("target", ["/v3/watch", "/v3beta/watch", "/v3/nothing", "/v3/kv/range"])
def test_every_path_below_v3_can_be_upgraded(both: Both, target: str) -> None:
    with Sockets(both, target) as sockets:
        assert sockets.check_head() == 101
        headers = sockets.ours.opened.headers
        assert headers["sec-websocket-accept"] == accepted(KEY)
        assert not [name for name in headers if name.startswith(CORS)]


@pytest.mark.parametrize("target", ["/v3alpha/watch", "/watch", "/health", "/version"])
def test_other_paths_cannot(both: Both, target: str) -> None:
    with Sockets(both, target) as sockets:
        assert sockets.ours.opened.status == sockets.theirs.opened.status != 101


@pytest.mark.parametrize(
    "given",
    [
        {"Connection": "keep-alive, Upgrade"},
        {"Connection": "upgrade", "Upgrade": "WebSocket"},
        {"Connection": "close", "Upgrade": "websocket"},
        {"Connection": None},
        {"Upgrade": None},
        {"Upgrade": "h2c"},
        {"Upgrade": "h2c, websocket"},
        {"Sec-WebSocket-Key": None},
        {"Sec-WebSocket-Key": "short"},
        {"Sec-WebSocket-Key": "x" * 24},
        {"Sec-WebSocket-Version": None},
        {"Sec-WebSocket-Version": "8"},
        {"Sec-WebSocket-Version": "13, 8"},
        {"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits"},
        {"Sec-WebSocket-Protocol": "Bearer, token"},
        {"Sec-WebSocket-Protocol": "Bearer,token"},
        {"Sec-WebSocket-Protocol": "other"},
        {"Sec-WebSocket-Protocol": ""},
        {"Origin": "http://evil.example"},
    ],
    ids=str,
)
def test_handshakes(both: Both, given: Given) -> None:
    with Sockets(both, "/v3/watch", [given, given]) as sockets:
        sockets.check_head()


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT"])
def test_a_handshake_is_a_get(both: Both, method: str) -> None:
    for address in both:
        socket = WebSocket(address, "/v3/watch", method=method)
        assert socket.opened.status == 405
        socket.close()


def test_a_path_that_is_no_route_is_told_and_closed(both: Both) -> None:
    with Sockets(both, "/v3/nothing") as sockets:
        assert sockets.check_line() == {"code": 5, "message": "Not Found"}
        sockets.check_closed()


# Streams both ways.


def test_a_watch(both: Both, talk: Talk) -> None:
    with Sockets(both, "/v3/watch?method=PUT") as sockets:
        sockets.say(CREATE)
        assert sockets.check_line()["result"]["created"] is True
        talk.say("/v3/kv/put", key=FOO, value="MQ==")
        assert sockets.check_line()["result"]["events"]
        sockets.say('{"create_request":{"key":"Zw=="}}', '{"cancel_request":{"watch_id":1}}')
        sockets.check_line()
        assert sockets.check_line()["result"]["canceled"] is True
        sockets.say('{"progress_request":{}}')
        sockets.check_line()
        sockets.say('{"create_request":{"key":"Zw==","range_end":"Zg=="}}')
        assert sockets.check_line()["result"]["cancel_reason"]
        talk.say("/v3/kv/deleterange", key=FOO)
        assert sockets.check_line()["result"]["events"][0]["type"] == "DELETE"


def test_keepalives(both: Both, talk: Talk) -> None:
    talk.say("/v3/lease/grant", ID=7, TTL=3000)
    with Sockets(both, "/v3/lease/keepalive") as sockets:
        for request in ('{"ID":7}', '{"ID":8}', '{"ID":"7"}', "{}"):
            sockets.say(request)
            sockets.check_line()
        sockets.say('{"ID":7}', "broken", '{"ID":7}')
        sockets.check_line()
        sockets.check_closed()


@pytest.mark.parametrize(
    "frames",
    [
        [frame(BINARY, CREATE.encode())],
        [frame(TEXT, b""), frame(TEXT, b" \n"), frame(TEXT, CREATE.encode())],
        [frame(TEXT, b'{"create_request":{'), frame(TEXT, b'"key":'), frame(BINARY, b'"Zm9v"}}')],
        [frame(TEXT, b'{"create_req', is_last=False), frame(MORE, b'uest":{"key":"Zm9v"}}')],
        [
            frame(TEXT, b'{"create_request"', is_last=False),
            frame(PONG, b"unasked"),
            frame(MORE, b"", is_last=False),
            frame(MORE, b':{"key":"Zm9v"}}'),
        ],
        [frame(TEXT, b" " * 70_000 + CREATE.encode())],
        [frame(TEXT, CREATE.encode(), mask=b"\0\0\0\0")],
    ],
)
def test_forms_of_frames(both: Both, talk: Talk, frames: list[bytes]) -> None:
    with Sockets(both, "/v3/watch") as sockets:
        sockets.send(*frames)
        assert sockets.check_line()["result"]["created"] is True
        talk.say("/v3/kv/put", key=FOO)
        assert sockets.check_line()["result"]["events"]


def test_frames_that_arrive_byte_by_byte(both: Both) -> None:
    with Sockets(both, "/v3/watch") as sockets:
        for byte in frame(TEXT, CREATE.encode()):
            sockets.send(bytes([byte]))
        assert sockets.check_line()["result"]["created"] is True


def test_several_values_in_a_frame(both: Both) -> None:
    with Sockets(both, "/v3/watch") as sockets:
        sockets.say(CREATE * 3)
        ids = [sockets.check_line()["result"].get("watch_id") for _ in range(3)]
        assert ids == [None, "1", "2"]


def test_pings(both: Both) -> None:
    with Sockets(both, "/v3/watch") as sockets:
        for payload in (b"", b"x", b"\xff" * 125):
            for each in (sockets.ours, sockets.theirs):
                assert each.is_answered(payload)


# Ends.


@pytest.mark.parametrize("payload", [b"", b"\x03\xe8", b"\x03\xe8bye", b"\x03\xe9", b"\x0f\xa0"])
def test_the_client_closes(both: Both, payload: bytes) -> None:
    with Sockets(both, "/v3/watch") as sockets:
        sockets.say(CREATE)
        sockets.check_line()
        sockets.send(frame(CLOSE, payload))
        sockets.check_close()
        assert sockets.ours.next() is None
        assert sockets.theirs.next() is None


@pytest.mark.parametrize("says_so", [True, False])
def test_the_end_cancels_the_watch(both: Both, says_so: bool) -> None:
    with Sockets(both, "/v3/watch") as sockets:
        sockets.say(CREATE, CREATE)
        sockets.check_line()
        sockets.check_line()
        assert [metric(address, WATCHERS) for address in both] == [2, 2]
        if says_so:
            sockets.send(frame(CLOSE, b"\x03\xe8"))
            sockets.check_close()
    for address in both:
        until("no watchers", lambda address=address: metric(address, WATCHERS) == 0)  # type: ignore[misc]


@pytest.mark.parametrize(
    "frames",
    [
        b"\x81\x02{}",
        frame(TEXT, b"{}", reserved=4),
        frame(TEXT, b"{}", reserved=1),
        frame(3, b"{}"),
        frame(0xB, b""),
        frame(PING, b"x" * 126),
        frame(PING, b"x", is_last=False),
        frame(MORE, b"{}"),
        frame(TEXT, b"{", is_last=False) + frame(TEXT, b"}"),
        frame(CLOSE, b"\x03"),
        frame(CLOSE, b"\x00\x01"),
        frame(CLOSE, b"\x03\xe8\xff"),
    ],
    # Not their bytes: the masks are random.
    ids=itertools.count(),
)
def test_frames_that_break_the_rules_close_it(both: Both, frames: bytes) -> None:
    with Sockets(both, "/v3/watch") as sockets:
        sockets.say(CREATE)
        sockets.check_line()
        sockets.send(frames)
        sockets.check_closed()
    assert ask(both.ours, "/v3/kv/range", f'{{"key":"{FOO}"}}').status == 200


# Who asks.


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """The two, where only root may do anything."""
    with running_both(tmp_path_factory.mktemp("users")) as both:
        for address in both:
            for target, body in (
                ("user/add", '{"name":"root","password":"root"}'),
                ("user/grant", '{"user":"root","role":"root"}'),
                ("enable", ""),
            ):
                assert ask(address, f"/v3/auth/{target}", body).status == 200
        yield both


def root_tokens(both: Both) -> list[str]:
    login = json.dumps({"name": "root", "password": "root"})
    return [ask(address, "/v3/auth/authenticate", login).json["token"] for address in both]


@pytest.mark.parametrize(
    ("form", "is_known"),
    [
        ({"Sec-WebSocket-Protocol": "Bearer, {}"}, True),
        ({"Sec-WebSocket-Protocol": "Bearer,{}"}, True),
        ({"Cookie": "token={}"}, True),
        ({"Cookie": "a=b; token={}; c=d"}, True),
        ({"Cookie": "token={}", "Sec-WebSocket-Protocol": "Bearer, wrong"}, True),
        ({"Cookie": "token=wrong", "Sec-WebSocket-Protocol": "Bearer, {}"}, False),
        ({"Sec-WebSocket-Protocol": "Bearer, wrong"}, False),
        ({"Sec-WebSocket-Protocol": "other"}, False),
        ({"Sec-WebSocket-Protocol": "{}"}, False),
        ({"Sec-WebSocket-Protocol": "Bearer"}, False),
        ({"Cookie": "token="}, False),
        ({"Cookie": "tokens={}"}, False),
        ({"Authorization": "{}"}, False),
        ({"Grpc-Metadata-Token": "{}"}, False),
        ({}, False),
    ],
    ids=str,
)
def test_tokens(users: Both, form: dict[str, str], is_known: bool) -> None:
    given = [
        {name: value.format(token) for name, value in form.items()} for token in root_tokens(users)
    ]
    with Sockets(users, "/v3/watch", given) as sockets:
        sockets.say(CREATE)
        found = sockets.check_line()["result"]
        assert ("cancel_reason" in found) is not is_known
    with Sockets(users, "/v3/lease/keepalive", given) as sockets:
        sockets.say('{"ID":7}')
        assert ("result" in sockets.check_line()) is is_known


# What only ours does.


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if OURS_IS_ETCD:
        pytest.skip("at an etcd, unary calls wait for the end of the WebSocket")
    with running_ours(tmp_path_factory.mktemp("ours") / "data") as address:
        yield address


def test_unary_calls_are_answered_after_the_first_value(ours: str) -> None:
    for target, request, expected in (
        ("/v3/kv/put", f'{{"key":"{FOO}","value":"MQ=="}}', ["header"]),
        ("/v3/kv/range", f'{{"key":"{FOO}"}}', ["header", "kvs", "count"]),
        ("/v3/kv/range", "{}", ["code", "message"]),
        ("/v3/kv/range", '{"key":7}', ["code", "message"]),
        ("/v3/kv/range", "broken", ["code", "message"]),
        ("/v3/maintenance/snapshot", "{}", ["result"]),
        ("/v3/maintenance/snapshot", "[]", ["code", "message"]),
    ):
        with WebSocket(ours, target) as socket:
            socket.say(request)
            found = [socket.line()]
            while isinstance(text := socket.next(), str):
                found.append(parsed(text.encode()))
            assert [list(each) for each in found] == [expected] * len(found)
            assert text is None or isinstance(text, CloseConnection)
            assert len(found) == 1 or target == "/v3/maintenance/snapshot"


def test_a_unary_call_whose_value_comes_in_parts(ours: str) -> None:
    with WebSocket(ours, "/v3/kv/range") as socket:
        socket.say('{"key":')
        assert socket.is_answered(b"not yet")
        socket.say(f'"{FOO}"}} and more')
        assert "header" in socket.line()
        assert socket.is_closed()


def test_an_observation(ours: str) -> None:
    ask(ours, "/v3/lease/grant", '{"ID":7,"TTL":3000}')
    campaign = f'{{"name":"{FOO}","lease":7,"value":"MQ=="}}'
    with WebSocket(ours, "/v3/election/observe") as socket:
        socket.say(f'{{"name":"{FOO}"}}')
        assert ask(ours, "/v3/election/campaign", campaign).status == 200
        assert socket.line()["result"]["kv"]["value"] == "MQ=="


def test_a_client_that_closes_before_its_call_began(ours: str) -> None:
    for target in ("/v3/kv/put", "/v3/lock/lock", "/v3/watch", "/v3/maintenance/snapshot"):
        for request in ("", '{"name":'):
            with WebSocket(ours, target) as socket:
                socket.say(request)
                socket.send(frame(CLOSE, b"\x03\xe8"))
                assert socket.is_closed()
    assert ask(ours, "/v3/kv/range", f'{{"key":"{FOO}"}}').status == 200


def test_a_lock_is_given_up_with_its_websocket(ours: str) -> None:
    for lease in (11, 12):
        ask(ours, "/v3/lease/grant", f'{{"ID":{lease},"TTL":3000}}')
    with ExitStack() as stack:
        first, second = (stack.enter_context(WebSocket(ours, "/v3/lock/lock")) for _ in range(2))
        first.say('{"name":"bA==","lease":11}')
        assert "key" in first.line()
        second.say('{"name":"bA==","lease":12}')
        assert second.is_answered(b"it waits")
        until("it waits", lambda: _keys_of(ours, 12))
    until("it no longer waits", lambda: not _keys_of(ours, 12))


def _keys_of(address: str, lease: int) -> list[str]:
    answer = ask(address, "/v3/lease/timetolive", f'{{"ID":{lease},"keys":true}}').json
    found: list[str] = answer.get("keys", [])
    return found


def test_a_message_ends_with_a_line_feed(ours: str) -> None:
    """What is cut within a string is broken: nothing more is taken, and the watch goes on.

    At an etcd nobody reads the WebSocket any more then, so that it is never noticed to be closed.
    """
    with WebSocket(ours, "/v3/watch") as socket:
        socket.say(CREATE, '{"create_req', 'uest":{}}', CREATE)
        assert socket.line()["result"]["created"] is True
        assert socket.is_answered(b"still there")
        ask(ours, "/v3/kv/put", f'{{"key":"{FOO}"}}')
        assert len(socket.line()["result"]["events"]) == 1
    until("no watchers", lambda: metric(ours, WATCHERS) == 0)


def test_text_that_is_not_utf8(ours: str) -> None:
    with WebSocket(ours, "/v3/watch") as socket:
        socket.send(frame(TEXT, b"\xff"))
        found = socket.next()
        assert isinstance(found, CloseConnection)
        assert found.code == 1007


def test_messages_without_an_end_are_bounded(ours: str) -> None:
    for kind in (TEXT, BINARY):
        with WebSocket(ours, "/v3/watch") as socket:
            piece = frame(MORE, b" " * 1_000_000, is_last=False)
            try:
                socket.send(frame(kind, b" ", is_last=False))
                for _ in range(100):
                    socket.send(piece)
            except ConnectionError:
                continue
            assert socket.is_closed()
