"""HTTP/1.1 on a raw socket: what a server sends is seen chunk by chunk, and may be provoked freely.

Requests may be sent in pieces, or be broken. Nothing is retried, nothing is followed.
"""

import json
import socket
import ssl
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

WAIT_SECONDS_MAX = 20.0

Headers = Mapping[str, str]


class ClosedError(Exception):
    """The server has closed the connection."""


class Head(NamedTuple):
    """The status and the headers of an answer; names in lower case, several values as one."""

    status: int
    headers: dict[str, str]

    @property
    def is_chunked(self) -> bool:
        return self.headers.get("transfer-encoding") == "chunked"


class Answer(NamedTuple):
    """A whole answer; the chunks of one without them are its body."""

    status: int
    headers: dict[str, str]
    chunks: list[bytes]

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return parsed(self.body)


def parsed(text: bytes) -> Any:
    """Parse JSON as the strictest client would: no field may come twice, numbers are finite."""
    return json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_refused)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), pairs
    return found


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def head_bytes(method: str, target: str, headers: Headers) -> bytes:
    """Return the head of a request, with a Host header unless there is one."""
    lines = [f"{method} {target} HTTP/1.1"]
    if "Host" not in headers:
        lines.append("Host: localhost")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Return a chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection:
    """A connection to `host:port` or `unix:path`, closed at the end of the block."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        if host == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(WAIT_SECONDS_MAX)
            self.socket.connect(port)
        else:
            self.socket = socket.create_connection((host, int(port)), WAIT_SECONDS_MAX)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.reader = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.reader.close()
        self.socket.close()

    def send(self, *pieces: bytes) -> None:
        self.socket.sendall(b"".join(pieces))

    def begin(self, method: str, target: str, body: bytes, headers: Headers | None = None) -> None:
        """Send a whole request."""
        given = {"Content-Length": str(len(body)), **(headers or {})}
        self.send(head_bytes(method, target, given), body)

    def open(self, target: str, headers: Headers | None = None) -> None:
        """Send the head of a request whose body follows in chunks."""
        given = {"Transfer-Encoding": "chunked", **(headers or {})}
        self.send(head_bytes("POST", target, given))

    def head(self) -> Head:
        """Read the head of an answer; what is only provisional is passed over."""
        while True:
            line = self._line()
            status = int(line.split()[1])
            headers: dict[str, str] = {}
            while line := self._line():
                name, _, value = line.partition(": ")
                name = name.lower()
                headers[name] = f"{headers[name]}, {value}" if name in headers else value
            if status != 100:
                return Head(status, headers)

    def _line(self) -> str:
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise ClosedError(line)
        return line[:-2].decode("latin-1")

    def chunk(self) -> bytes:
        """Read one chunk of an answer; the last one is empty."""
        size = int(self._line(), 16)
        data = self.reader.read(size)
        end = self.reader.read(2)
        if end != b"\r\n":
            raise ClosedError(data + end)
        return data

    def rest(self, head: Head, method: str = "POST") -> Answer:
        """Read what follows the head of an answer."""
        chunks: list[bytes] = []
        if method == "HEAD" or head.status in (101, 204, 304):
            pass
        elif head.is_chunked:
            while data := self.chunk():
                chunks.append(data)
        else:
            size = int(head.headers.get("content-length", "-1"))
            chunks.append(self.reader.read(size))
            if len(chunks[0]) < size:
                raise ClosedError(chunks[0])
        return Answer(head.status, head.headers, chunks)

    def answer(self, method: str = "POST") -> Answer:
        """Read a whole answer."""
        return self.rest(self.head(), method)

    def ask(self, target: str, body: bytes | str = b"", headers: Headers | None = None) -> Answer:
        """POST a body; return the whole answer."""
        self.begin("POST", target, body.encode() if isinstance(body, str) else body, headers)
        return self.answer()


def ask(
    address: str,
    target: str,
    body: bytes | str = b"",
    headers: Headers | None = None,
    method: str = "POST",
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Make one request on a connection of its own; return the whole answer."""
    with Connection(address, tls) as connection:
        connection.begin(method, target, body.encode() if isinstance(body, str) else body, headers)
        return connection.answer(method)


class Stream(Connection):
    """A POST whose body goes on, and whose answer comes line by line, one in each chunk."""

    def __init__(
        self,
        address: str,
        target: str,
        headers: Headers | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(address, tls)
        self._head: Head | None = None
        self.open(target, headers)

    def say(self, *values: bytes | str) -> None:
        """Send values, each in a chunk of its own."""
        self.send(*(chunk(each.encode() if isinstance(each, str) else each) for each in values))

    def end(self) -> None:
        """End the body."""
        self.send(b"0\r\n\r\n")

    @property
    def opened(self) -> Head:
        """The head of the answer, for which this waits."""
        if self._head is None:
            self._head = self.head()
        return self._head

    def line(self) -> Any:
        """Wait for a line, and return it parsed; None at the end."""
        if self.opened.headers.get("content-length") == "0":
            return None
        assert self.opened.is_chunked, self.opened
        found = self.chunk()
        if not found:
            return None
        assert found.endswith(b"\n"), found
        assert found.count(b"\n") == 1, f"a chunk is one line: {found!r}"
        return parsed(found)

    def lines(self) -> Iterable[Any]:
        """Return all lines up to the end."""
        while (line := self.line()) is not None:
            yield line
