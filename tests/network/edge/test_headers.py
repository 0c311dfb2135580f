"""Headers of plain HTTP: which are passed on, and that values arrive as they were sent."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.network.edge import EdgeEventKind
from tests.network.edge.plain import body, plain
from tests.network.edge.service import Service
from tests.network.edge.wire import HeaderList, Wire

REQUEST = [(":method", "GET"), (":scheme", "http"), (":path", "/held"), (":authority", "x")]
BYTES = [byte for byte in range(256) if byte not in b"\0\r\n"]


def asked(service: Service, protocol: str, headers: list[tuple[str, bytes]]) -> HeaderList | None:
    """Send a request; return what the loop is told of its headers, or None if it is refused."""
    before = service.remote.counters()["calls_received"]
    if protocol == "http1":
        with plain(service) as client:
            fields = b"".join(b"%s: %s\r\n" % (name.encode(), value) for name, value in headers)
            client.send(b"GET /held HTTP/1.1\r\nhost: x\r\n" + fields + b"\r\n")
            return told(service) if client.reply().status == 200 else None
    with Wire(service.address) as wire:
        pairs: list[Any] = [(name.lower().encode(), value) for name, value in headers]
        stream = wire.open([*REQUEST, *pairs], end=True)
        if wire.answer(stream).headers.get(":status") == "200":
            return told(service)
    assert service.remote.counters()["calls_received"] == before
    return None


def told(service: Service) -> HeaderList:
    """Take what was told of a request that has been answered."""
    headers: HeaderList = service.next_event(EdgeEventKind.HTTP_OPENED).detail[3]
    service.next_event(EdgeEventKind.HALF_CLOSED)
    return headers


@pytest.fixture
def answering(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Answer every request at once, and keep what was told of it."""
    happen = service._happen

    def answer(event: Any) -> None:
        happen(event)
        if event[0] == EdgeEventKind.HALF_CLOSED:
            service.edge.respond(event[1], 200, [], b"")

    monkeypatch.setattr(service, "_happen", answer)
    return service


NAMES = st.sampled_from(["X-Mixed", "x-mixed", "X-Many-A", "x-many-a", "x-many-", "X-MANY-b"])
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)


@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_subscribed_headers_and_no_others(answering: Service, protocol: str) -> None:
    others = st.tuples(st.sampled_from(["x-man", "x-other", "accept", "x-mixed-not"]), VALUES)

    @settings(max_examples=40)
    @given(st.lists(st.one_of(st.tuples(NAMES, VALUES), others), max_size=12))
    def holds(headers: list[tuple[str, str]]) -> None:
        got = asked(answering, protocol, [(name, text.encode()) for name, text in headers])
        assert got is not None
        assert ("host", "x") in got
        wanted = [
            (name.lower(), text)
            for name, text in headers
            if name.lower() == "x-mixed" or name.lower().startswith("x-many-")
        ]
        # Those of one name keep their order.
        assert sorted(got, key=first) == sorted([("host", "x"), *wanted], key=first)

    holds()


def first(pair: tuple[str, str]) -> str:
    return pair[0]


@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_values_arrive_as_they_were_sent(answering: Service, protocol: str) -> None:
    for byte in BYTES:
        value = b"a" + bytes([byte]) + b"z"
        got = asked(answering, protocol, [("x-mixed", value)])
        if byte == ord("\t") or (byte >= 0x20 and byte != 0x7F):
            assert got is not None and ("x-mixed", value.decode("latin-1")) in got, byte
        else:
            assert got is None, f"{byte} is a control character"


@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_headers_of_an_answer(service: Service, protocol: str) -> None:
    headers = [
        ("X-One", "1"),
        ("x-many", "a"),
        ("x-many", "b"),
        ("x-latin", "\xe9"),
        ("x-wide", "\u0100"),
        ("x-line", "a\r\nx-injected: b"),
    ]

    def answer() -> None:
        call = service.next_event(EdgeEventKind.HTTP_OPENED).call
        assert body(service, call) == b""
        service.remote.respond(call, 200, headers, b"")

    if protocol == "http1":
        with plain(service) as client:
            client.send(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
            answer()
            lines = client.begin().lower().split(b"\r\n")
        got = [line.partition(b":")[::2] for line in lines if line.startswith(b"x-")]
        pairs = [(name.decode(), value.strip()) for name, value in got]
        assert pairs == [("x-one", b"1"), ("x-many", b"a"), ("x-many", b"b"), ("x-latin", b"\xe9")]
    else:
        with Wire(service.address) as wire:
            stream = wire.open(REQUEST, end=True)
            answer()
            while not wire.answers[stream].headers and not wire.answers[stream].ended:
                wire.pump()
            answered = wire.answers[stream].headers
        named = {name: value for name, value in answered.items() if name.startswith("x-")}
        assert named == {"x-one": "1", "x-many": "b", "x-latin": "\xe9"}
