"""Answers of other members are read the same however their bytes are cut."""

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.network.dialer.http_reader import (
    HEAD_BYTES_MAX,
    LINE_BYTES_MAX,
    TRAILER_LINES_MAX,
    AnswerError,
    Body,
    ChunkedBody,
    Head,
    SizedBody,
    keeps_connection,
)

cuts = st.lists(st.integers(0, 400), max_size=12)


def in_parts(data: bytes, places: list[int]) -> list[bytes]:
    """Cut into parts, none of which is empty but that of nothing."""
    edges = sorted({0, *(place for place in places if place < len(data)), len(data)})
    return [data[start:stop] for start, stop in pairwise(edges)]


def fed(body: Body, parts: list[bytes]) -> bytes:
    return b"".join(body.feed(part) for part in parts)


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    extension=st.sampled_from([b"", b";a=b", b" "]),
    trailers=st.sampled_from([b"", b"a: b\r\n", b"a: b\r\nc: d\r\n"]),
    excess=st.binary(max_size=3),
    places=cuts,
)
def test_chunks(
    chunks: list[bytes], extension: bytes, trailers: bytes, excess: bytes, places: list[int]
) -> None:
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(one), extension, one) for one in chunks)
    body = ChunkedBody()
    assert fed(body, in_parts(framed, places)) == b"".join(chunks)
    assert not body.is_complete
    parts = in_parts(b"0\r\n" + trailers + b"\r\n", places)
    assert fed(body, parts[:-1]) == b""
    assert body.feed(parts[-1] + excess) == b""
    assert body.is_complete
    assert body.has_excess == bool(excess)


@given(data=st.binary(max_size=100), places=cuts)
def test_garbage_instead_of_chunks_is_refused_or_waits_for_more(
    data: bytes, places: list[int]
) -> None:
    said: list[tuple[bytes, bool | None]] = []
    for parts in ([data], in_parts(data, places)):
        body = ChunkedBody()
        try:
            said.append((fed(body, parts), body.is_complete))
        except AnswerError:
            said.append((b"", None))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "data",
    [
        b"x\r\n",
        b"-1\r\n",
        b"0x1\r\n",
        b"1_0\r\n",
        b"\r\n",
        b"f" * 16 + b"\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n\r",
        b"1;" + b"x" * LINE_BYTES_MAX,
        b"0\r\n" + b"a: b\r\n" * (TRAILER_LINES_MAX + 1),
    ],
)
def test_what_is_no_chunk(data: bytes) -> None:
    with pytest.raises(AnswerError):
        ChunkedBody().feed(data)
    with pytest.raises(AnswerError):
        fed(ChunkedBody(), in_parts(data, list(range(len(data)))))


@given(size=st.integers(1, 50), excess=st.binary(max_size=3), places=cuts)
def test_a_size(size: int, excess: bytes, places: list[int]) -> None:
    body = SizedBody(size)
    parts = in_parts(bytes(size), places)
    assert fed(body, parts[:-1]) + body.feed(parts[-1] + excess) == bytes(size)
    assert body.is_complete and body.has_excess == bool(excess)


def answered(data: bytes, method: str = "GET") -> tuple[h11.Response, Body, bytes] | None:
    head = Head(method)
    head.write(h11.Request(method=method, target="/", headers=[("host", "x")]))
    return head.feed(data)


def test_heads_tell_how_the_body_ends() -> None:
    def kind(rest: bytes, method: str = "GET") -> tuple[str, bool, bool]:
        found = answered(b"HTTP/1.1 " + rest, method)
        assert found is not None
        response, body, _ = found
        return type(body).__name__, body.is_complete, keeps_connection(response)

    assert kind(b"200 OK\r\ncontent-length: 3\r\n\r\nabc") == ("SizedBody", False, True)
    assert kind(b"200 OK\r\ntransfer-encoding: chunked\r\n\r\n") == ("ChunkedBody", False, True)
    assert kind(b"200 OK\r\n\r\n") == ("EndlessBody", False, True)
    assert kind(b"204 No Content\r\n\r\n") == ("SizedBody", True, True)
    assert kind(b"200 OK\r\ncontent-length: 3\r\n\r\n", "HEAD") == ("SizedBody", True, True)
    closing = b"200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    assert kind(closing) == ("SizedBody", True, False)
    assert kind(b"100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n") == ("SizedBody", True, True)
    assert answered(b"HTTP/1.1 200 OK\r\ncontent-len") is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"x" * HEAD_BYTES_MAX,
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    with pytest.raises(AnswerError):
        answered(data)
