"""Parses an HTTP/1.1 answer as its bytes arrive: the head with h11, the body with its own code.

Every raft message that a member receives is a part of a chunked body, so parsing a chunk must be
cheap. Parsers return pieces of a body as they arrive and never gather them; callers that gather
pieces must limit them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import h11

HEAD_BYTES_MAX = 64 * 1024
LINE_BYTES_MAX = 4 * 1024
"""Length of a chunk's size line, or of a line after the last chunk."""
TRAILER_LINES_MAX = 64

_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}", re.ASCII)
_CRLF = b"\r\n"


class AnswerError(Exception):
    """The other side's answer violates HTTP/1.1."""


class SizedBody:
    """A body with a Content-Length."""

    __slots__ = ("_left", "has_excess", "is_complete")
    ends_with_connection = False

    def __init__(self, size: int) -> None:
        self._left = size
        self.is_complete = not size
        self.has_excess = False
        """Whether bytes arrived after the end."""

    def feed(self, data: bytes) -> bytes:
        """Return the part of received bytes that belongs to the body."""
        self.has_excess = len(data) > self._left
        piece = data[: self._left] if self.has_excess else data
        self._left -= len(piece)
        self.is_complete = not self._left
        return piece


class EndlessBody:
    """A body that ends with the connection."""

    __slots__ = ()
    ends_with_connection = True
    is_complete = False
    has_excess = False

    def feed(self, data: bytes) -> bytes:
        """Return the part of received bytes that belongs to the body: all."""
        return data


class ChunkedBody:
    """A chunked body; the parser ignores trailers."""

    __slots__ = ("_left", "_line", "_trailer_lines", "has_excess", "is_complete")
    ends_with_connection = False

    def __init__(self) -> None:
        self._left = 0
        """Remaining bytes of a chunk, including the CRLF after it."""
        self._line = b""
        """The start of a line whose end has not arrived."""
        self._trailer_lines = -1
        """Lines since the last chunk, or -1 before it."""
        self.is_complete = False
        self.has_excess = False

    def feed(self, data: bytes) -> bytes:
        """Return the part of received bytes that belongs to the body; raise AnswerError."""
        if self._line:
            data, self._line = self._line + data, b""
        pieces: list[bytes] = []
        left, at, end = self._left, 0, len(data)
        while at < end:
            if left:
                stop = at + left - 2
                if stop > at:
                    pieces.append(data[at : min(stop, end)])
                if stop + 2 > end:
                    self._check_end(data[max(at, stop) : end], left)
                    left = stop + 2 - end
                    break
                if data[max(at, stop) : stop + 2] != _CRLF[max(at - stop, 0) :]:
                    raise AnswerError("a chunk is longer than its size")
                at, left = stop + 2, 0
                continue
            stop = data.find(_CRLF, at, at + LINE_BYTES_MAX)
            if stop < 0:
                if end - at >= LINE_BYTES_MAX:
                    raise AnswerError("the line of a chunk's size is too long")
                self._line = data[at:]
                break
            left, at = self._read_line(data[at:stop]), stop + 2
            if self.is_complete:
                self.has_excess = at < end
                break
        self._left = left
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_line(self, line: bytes) -> int:
        """Parse a size line or a trailer line; return the bytes up to the next line."""
        if self._trailer_lines < 0:
            digits = line.partition(b";")[0].rstrip()
            if not _SIZE.fullmatch(digits):
                raise AnswerError(f"{digits[:32]!r} is no size of a chunk")
            size = int(digits, 16)
            if size:
                return size + 2
        self._trailer_lines += 1
        if self._trailer_lines > TRAILER_LINES_MAX:
            raise AnswerError("too many lines after the last chunk")
        self.is_complete = self._trailer_lines > 0 and not line
        return 0

    def _check_end(self, beginning: bytes, left: int) -> None:
        """Check the first byte of a chunk's final CRLF, if only that one has arrived."""
        if beginning and beginning != (_CRLF[:1] if left >= 2 else _CRLF[1:]):
            raise AnswerError("a chunk is longer than its size")


Body = SizedBody | EndlessBody | ChunkedBody


class Head:
    """Writes one request's head, and parses the head of its answer."""

    __slots__ = ("_http", "_method")

    def __init__(self, method: str) -> None:
        # A cluster of one member reads no answers and does not need this import.
        import h11

        self._method = method
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)

    def write(self, request: h11.Request) -> bytes:
        """Return the bytes of a request's head."""
        data = self._http.send(request)
        assert data is not None
        return data

    def feed(self, data: bytes) -> tuple[h11.Response, Body, bytes] | None:
        """Process received bytes; once the head is complete, return it, its body, and the rest.

        Raises AnswerError.
        """
        import h11

        http = self._http
        try:
            http.receive_data(data)
            while (event := http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Response):
                    return event, self._body(event), http.trailing_data[0]
                if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                    raise AnswerError("the answer is none to the request")
        except h11.RemoteProtocolError as error:
            raise AnswerError(str(error)) from None
        return None

    def _body(self, response: h11.Response) -> Body:
        if self._method == "HEAD" or response.status_code in (204, 304):
            return SizedBody(0)
        headers = dict(response.headers)
        if b"transfer-encoding" in headers:
            # h11 has refused every other coding.
            return ChunkedBody()
        if b"content-length" in headers:
            return SizedBody(int(headers[b"content-length"]))
        return EndlessBody()


def keeps_connection(response: h11.Response) -> bool:
    """Return whether another request may follow on the same connection."""
    if response.http_version != b"1.1":
        return False
    return not any(
        name == b"connection" and b"close" in value.lower() for name, value in response.headers
    )
