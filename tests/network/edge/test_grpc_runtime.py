"""What the gRPC runtime itself answers, compared with a real etcd that is sent the same bytes.

The tests below `LATER` are about what 3.5.1, with grpc-go 1.38, answers in another way than 3.7,
with grpc-go 1.83: they ask the real one only if it is 3.7.
"""

import gzip
import struct

import pytest

from kvorum.api.errors import Code
from kvorum.network.edge import EdgeEventKind
from tests.etcd import is_target
from tests.network.edge.service import RANGE, WATCH, Service
from tests.network.edge.wire import Answer, HeaderList, Wire, grpc_headers, message

KEY = message(b"\x0a\x01a")
COMPRESSED = gzip.compress(b"\x0a\x01a")
LIMIT = 2 * 1024 * 1024

SAME: dict[str, tuple[str, bytes, HeaderList]] = {
    "no such service": ("/a.B/C", KEY, []),
    "no such method": ("/etcdserverpb.KV/C", KEY, []),
    "a service with a slash": ("/a/b/c", KEY, []),
    "a method with a slash": (RANGE + "/", KEY, []),
    "a method with a query": (RANGE + "?x=1", KEY, []),
    "an empty method": ("/etcdserverpb.KV/", KEY, []),
    "an empty service": ("//", KEY, []),
    "a service outside ASCII": ("/ä/%41", KEY, []),
    "compressed without saying how": (RANGE, message(b"\x0a\x01a", 1), []),
    "compressed as identity": (RANGE, message(b"a", 1), [("grpc-encoding", "identity")]),
    "compressed without saying how, in a stream": (WATCH, message(b"a", 1), []),
    "a payload format of the future": (RANGE, message(b"\x0a\x01a", 2), []),
    "an encoding that is not there": (RANGE, message(b"a", 1), [("grpc-encoding", "snappy")]),
    "an encoding that is not used": (RANGE, KEY, [("grpc-encoding", "snappy")]),
    "an encoding that needs quoting": (RANGE, KEY, [("grpc-encoding", 'sn"ap\\py')]),
    "an encoding of a stream": (WATCH, KEY, [("grpc-encoding", "snappy")]),
    "too large by one": (RANGE, struct.pack(">BI", 0, LIMIT + 1), []),
    "too large by far": (RANGE, struct.pack(">BI", 0, 2**32 - 1), []),
    "too large in a stream": (WATCH, struct.pack(">BI", 0, LIMIT + 1), []),
}


INCOMPLETE = {
    "no message": (RANGE, b""),
    "half a message's header": (RANGE, b"\0\0"),
    "half a message": (RANGE, KEY[:-1]),
    "half a message of a stream": (WATCH, b"\0\0\0\0\x05a"),
    "half a message's header in a stream": (WATCH, b"\0\0\0"),
}


@pytest.mark.parametrize("end", [True, False], ids=["half-closed", "open"])
@pytest.mark.parametrize("case", SAME)
def test_the_same_answer_as_a_real_etcd(
    service: Service, etcd: str, case: str, *, end: bool
) -> None:
    path, body, headers = SAME[case]
    compare(service, etcd, path, body, headers, end=end)


@pytest.mark.parametrize("case", INCOMPLETE)
def test_the_same_answer_to_what_breaks_off(service: Service, etcd: str, case: str) -> None:
    path, body = INCOMPLETE[case]
    if is_target() and "header" in case:
        # 3.7 takes it for the end, and a stream stays open; here whoever breaks off hears of it.
        with Wire(service.address) as wire:
            code, text = wire.answer(wire.call(path, body, end=True)).status
        assert (code, text) == (Code.INTERNAL if path == WATCH else Code.UNKNOWN, "unexpected EOF")
        return
    compare(service, etcd, path, body, [], end=True)


def compare(
    service: Service, etcd: str, path: str, body: bytes, headers: HeaderList, *, end: bool
) -> None:
    answers = []
    for address in (etcd, service.address):
        with Wire(address) as wire:
            answers.append(wire.answer(wire.call(path, body, *headers, end=end)))
            assert wire.goaway is None
    theirs, ours = answers
    assert theirs.ended, "the real one answers"
    assert ours.gist == theirs.gist
    assert ours.headers["content-type"] == theirs.headers["content-type"]
    assert ours.headers.keys() - {"date"} == theirs.headers.keys(), "headers come with the status"


WELL_FORMED = {
    "half-closed with the message": (KEY, [], True),
    "before the client half-closes": (KEY, [], False),
    "two messages, the second ignored": (KEY + KEY, [], True),
    "rubbish after the message": (KEY + b"\1\2", [], True),
    "gzip": (message(COMPRESSED, 1), [("grpc-encoding", "gzip")], True),
    "gzip announced and not used": (KEY, [("grpc-encoding", "gzip")], True),
    "the longest deadline": (KEY, [("grpc-timeout", "99999999H")], True),
    "a subtype": (KEY, [("content-type", "application/grpc+proto")], True),
}


@pytest.mark.parametrize("case", WELL_FORMED)
def test_a_real_etcd_serves_it_too(service: Service, etcd: str, case: str) -> None:
    body, headers, end = WELL_FORMED[case]
    for address in (etcd, service.address):
        with Wire(address) as wire:
            answer = wire.answer(wire.call(RANGE, body, *headers, end=end))
            assert answer.ended
            assert answer.status == (0, "")
            assert answer.headers[":status"] == "200"
            assert answer.data


@pytest.mark.parametrize("missing", ["te", ":authority"])
def test_headers_that_may_be_missing(service: Service, etcd: str, missing: str) -> None:
    headers = [pair for pair in grpc_headers(RANGE) if pair[0] != missing]
    # 3.7 refuses a call without an authority, which nothing of it looks at.
    is_asked = missing == "te" or not is_target()
    for address in (etcd, service.address) if is_asked else (service.address,):
        with Wire(address) as wire:
            stream = wire.open(headers)
            wire.data(stream, KEY, end=True)
            assert wire.answer(stream).status == (0, "")


# LATER: etcd 3.7 answers differently from 3.5.1.


def ask(service: Service, path: str, body: bytes, *headers: tuple[str, str]) -> Answer:
    with Wire(service.address) as wire:
        answer = wire.answer(wire.call(path, body, *headers))
        assert wire.goaway is None
        # The connection goes on.
        assert wire.unary(RANGE, b"").status == (0, "")
        return answer


def ask_both(
    service: Service, etcd: str, path: str, body: bytes, *headers: tuple[str, str]
) -> Answer:
    answer = ask(service, path, body, *headers)
    if is_target() and answer.ended:
        with Wire(etcd) as wire:
            assert wire.answer(wire.call(path, body, *headers)).gist == answer.gist
    return answer


@pytest.mark.parametrize("path", ["/", "/a", "*", "a", "etcdserverpb.KV/Range"])
def test_malformed_paths(service: Service, etcd: str, path: str) -> None:
    # 3.5.1: RESOURCE_EXHAUSTED, and the path without a slash is served.
    answer = ask_both(service, etcd, path, KEY)
    if not answer.ended and not path.startswith(("/", "*")):
        # What is no path to HTTP/2 may be refused there already.
        assert answer.reset == 1
    else:
        assert answer.status == (Code.UNIMPLEMENTED, f'malformed method name: "{path}"')


@pytest.mark.parametrize(
    ("timeout", "text"),
    [
        ("", 'transport: timeout string is too short: ""'),
        ("1", 'transport: timeout string is too short: "1"'),
        ("1x", 'transport: timeout unit is not recognized: "1x"'),
        ("123456789S", 'transport: timeout string is too long: "123456789S"'),
        ("-1S", 'strconv.ParseUint: parsing "-1": invalid syntax'),
        ("1.5S", 'strconv.ParseUint: parsing "1.5": invalid syntax'),
    ],
)
def test_malformed_timeouts(service: Service, etcd: str, timeout: str, text: str) -> None:
    # 3.5.1: a reset stream.
    answer = ask_both(service, etcd, RANGE, KEY, ("grpc-timeout", timeout))
    assert answer.headers[":status"] == "400"
    assert answer.status == (Code.INTERNAL, f"malformed grpc-timeout: {text}")


@pytest.mark.parametrize("timeout", ["0S", "0n"])
def test_deadlines_of_zero(service: Service, etcd: str, timeout: str) -> None:
    # 3.5.1: UNKNOWN.
    answer = ask_both(service, etcd, RANGE, KEY, ("grpc-timeout", timeout))
    assert answer.status == (Code.DEADLINE_EXCEEDED, "context deadline exceeded")


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
def test_methods_other_than_post(service: Service, etcd: str, method: str) -> None:
    # 3.5.1: a reset stream.
    answer = ask_both(service, etcd, RANGE, KEY, (":method", method))
    assert answer.headers[":status"] == "405"
    assert answer.status == (
        Code.INTERNAL,
        f'Received a HEADERS frame with :method "{method}" which should be POST',
    )


def test_headers_that_end_the_request(service: Service) -> None:
    # No etcd ever answers this.
    with Wire(service.address) as wire:
        answer = wire.answer(wire.open(grpc_headers(RANGE), end=True))
        assert answer.status == (Code.UNKNOWN, "EOF")


@pytest.mark.parametrize("size", [LIMIT + 1, 20 * LIMIT])
def test_what_decompresses_to_too_much(service: Service, etcd: str, size: int) -> None:
    # 3.5.1 names the size it would have, and trusts the sender about it.
    body = message(gzip.compress(bytes(size)), 1)
    answer = ask_both(service, etcd, RANGE, body, ("grpc-encoding", "gzip"))
    assert answer.status == (
        Code.RESOURCE_EXHAUSTED,
        f"grpc: received message after decompression larger than max {LIMIT}",
    )


def test_what_decompresses_to_the_limit(service: Service) -> None:
    body = message(gzip.compress(bytes(LIMIT)), 1)
    assert ask(service, RANGE, body, ("grpc-encoding", "gzip")).status == (0, "")


@pytest.mark.parametrize("path", [RANGE, WATCH])
@pytest.mark.parametrize(
    "payload",
    [b"", b"not gzip at all", COMPRESSED[:-3], COMPRESSED[:12]],
    ids=["empty", "other", "cut short", "little of it"],
)
def test_what_does_not_decompress(service: Service, path: str, payload: bytes) -> None:
    answer = ask(service, path, message(payload, 1), ("grpc-encoding", "gzip"))
    code, text = answer.status
    assert code == Code.INTERNAL
    # The words after this are those of the library that decompresses.
    assert text.startswith(
        ("grpc: failed to decompress the message: ", "grpc: failed to read decompressed data: ")
    )


@pytest.mark.parametrize(
    "kind", ["application/json", "application/grpcx", "application/grpc-web", "text/plain", None]
)
def test_other_content_types_are_plain_http(service: Service, kind: str | None) -> None:
    # A real etcd without TLS takes all of HTTP/2 for gRPC; here plain requests are served too.
    headers = [pair for pair in grpc_headers("/held") if pair[0] not in ("content-type", "te")]
    if kind is not None:
        headers.append(("content-type", kind))
    with Wire(service.address) as wire:
        stream = wire.open(headers, end=True)
        opened = service.next_event(EdgeEventKind.HTTP_OPENED)
        assert opened.detail[1:3] == ("POST", "/held")
        service.next_event(EdgeEventKind.HALF_CLOSED, opened.call)
        service.remote.respond(opened.call, 200, [("x", "y")], b"body")
        answer = wire.answer(stream)
        assert (answer.headers[":status"], answer.headers["x"], answer.data) == (
            "200",
            "y",
            b"body",
        )
