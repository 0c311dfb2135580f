"""The same stream to two servers: what is said to both, and the lines that both answer with."""

from collections.abc import Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from tests.server.http.asking import Headers, Stream
from tests.server.http.comparing import headers_of, text_of
from tests.server.http.servers import Both

AT_ONCE = {"Expect": "100-continue"}
"""Without it, a real etcd holds its answer back until the body has ended, and throws away what it
had not yet read of the body when it had something to say."""


class Streams:
    """One stream to each of the two, closed at the end of the block."""

    def __init__(self, both: Both, path: str, headers: Headers | None = None) -> None:
        self._path = path
        self.ours, self.theirs = (
            Stream(address, path, {**AT_ONCE, **(headers or {})}) for address in both
        )

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
        self.ours.close()
        self.theirs.close()

    def say(self, *values: bytes | str) -> None:
        """Send values to both, each in a chunk of its own."""
        for stream in (self.ours, self.theirs):
            stream.say(*values)

    def end(self) -> None:
        """End both bodies."""
        for stream in (self.ours, self.theirs):
            stream.end()

    def check_head(self) -> int:
        """Wait for the heads of both answers, and compare them; return the status."""
        ours, theirs = self.ours.opened, self.theirs.opened
        assert (ours.status, headers_of(ours)) == (theirs.status, headers_of(theirs))
        return ours.status

    def check_line(self) -> Any:
        """Wait for the next line of both, and compare them; return ours, None at the end."""
        ours, theirs = self.ours.line(), self.theirs.line()
        if ours is None or theirs is None:
            assert ours == theirs
            return None
        found, expected = text_of(self._path, ours), text_of(self._path, theirs)
        assert found == expected
        return ours

    def check_lines(self, count: int) -> list[Any]:
        """Compare so many lines."""
        return [self.check_line() for _ in range(count)]

    def check_end(self) -> list[Any]:
        """Compare all lines that are left, up to the end of both answers."""
        found: list[Any] = []
        while (line := self.check_line()) is not None:
            found.append(line)
        return found

    def check_events(self, count: int) -> list[Any]:
        """Compare so many events; of history, servers may make as many lines as they like."""
        ours, theirs = (_events(stream, count) for stream in (self.ours, self.theirs))
        assert ours == theirs
        return ours


def _events(stream: Stream, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        line = stream.line()
        assert line is not None, found
        found += line["result"]["events"]
    return found


def spoken(values: Sequence[bytes], cuts: Sequence[int]) -> list[bytes]:
    """Return a body in pieces, cut at any places."""
    body = b"".join(values)
    places = sorted({0, *(each % (len(body) + 1) for each in cuts), len(body)})
    return [body[start:end] for start, end in pairwise(places)]
