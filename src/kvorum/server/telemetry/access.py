"""The access log: one line of JSON per call with its user, method, key, time, client and result.

A unary call gets a line when it is answered. A stream gets one after its first message, and one
when it ends. Keys are truncated and escaped; the log never reads values or passwords. Calls that
are not sampled, or whose key is outside the configured prefix, cost only that check.

The log passes lines to a writer in batches, a few milliseconds after the first line of a batch.
"""

import json
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, Protocol

from kvorum.api.codec import before_revision, read_varint
from kvorum.api.errors import Code, Status
from kvorum.api.ranges import prefix_end
from kvorum.network.edge.interface import EdgeEventKind, Metadata, Request
from kvorum.server.rpc.table import GATEWAY_KEY, RPCS
from kvorum.server.telemetry.logs import escaped, time_text

KEY_BYTES_MAX: Final = 128
"""Length at which a line truncates a key."""
WAIT_SECONDS: Final = 0.02
LINES_MAX: Final = 2000
"""Age and number of lines at which a batch is passed to the writer."""
CONNECTIONS_MAX: Final = 4096
"""Connections whose address and certificate are cached; a full cache is cleared."""

_AUTH: Final = "/etcdserverpb.Auth/"
_KV: Final = "/etcdserverpb.KV/"
_ELECTION: Final = "/v3electionpb.Election/"
_ANY: Final = 0
_WAYS: Final[dict[str, tuple[tuple[int, ...], ...]]] = {
    _KV + "Range": ((1,),),
    _KV + "RangeStream": ((1,),),
    _KV + "Put": ((1,),),
    _KV + "DeleteRange": ((1,),),
    # The key of the first comparison, or of the first operation.
    _KV + "Txn": ((1, 3), (2, _ANY, 1), (3, _ANY, 1)),
    "/etcdserverpb.Watch/Watch": ((1, 1),),
    "/v3lockpb.Lock/Lock": ((1,),),
    "/v3lockpb.Lock/Unlock": ((1,),),
    _ELECTION + "Campaign": ((1,),),
    _ELECTION + "Proclaim": ((1, 1),),
    _ELECTION + "Leader": ((1,),),
    _ELECTION + "Observe": ((1,),),
    _ELECTION + "Resign": ((1, 1),),
}
"""Paths of field numbers to a request's first key; a later path applies if the earlier find
none."""
_RANGES: Final = frozenset({_KV + "Range", _KV + "RangeStream", _KV + "DeleteRange"})
"""Requests whose second field ends a range."""


def _ways(path: str) -> tuple[tuple[int, ...], ...]:
    # In requests about users and roles, field 1 is a name, and passwords are in other fields.
    return ((1,),) if path.startswith(_AUTH) else _WAYS.get(path, ())


_WAYS_BY_METHOD: Final = [_ways(rpc.path) for rpc in RPCS]
_IS_DIRECT: Final = [ways == ((1,),) for ways in _WAYS_BY_METHOD]

_IS_RANGE: Final = [rpc.path in _RANGES for rpc in RPCS]
_IS_SECRET: Final = [rpc.is_secret for rpc in RPCS]
_IS_STREAM: Final = [rpc.is_stream for rpc in RPCS]
_METHODS: Final = [f',"method":{json.dumps(rpc.path)}' for rpc in RPCS]
_NAMES: Final = [',"name":' if rpc.is_secret else ',"key":' for rpc in RPCS]

# Steps by the golden ratio hit any interval in proportion to its length, so that sampling is even
# whatever period calls have.
_STEP: Final = 0x9E3779B9
_CYCLE: Final = 0xFFFFFFFF


class Clients(Protocol):
    """Looks up the client of a call's connection."""

    def remote(self, call: int) -> str:
        """Return the address of the client; empty if the connection is gone."""

    def certificate_name(self, call: int) -> str:
        """Return the common name in the client's verified certificate; empty without one."""


class Lines(Protocol):
    """The writer of lines."""

    def put(self, data: bytes, count: int) -> None:
        """Accept `count` lines without blocking."""


class _LoggedCall:
    """A call in flight."""

    __slots__ = ("arrived", "has_begun", "key", "method", "user", "via")

    def __init__(self, method: int, key: bytes, arrived: float, via: str) -> None:
        self.method = method
        self.key = key
        self.arrived = arrived
        self.via = via
        self.user = ""
        self.has_begun = True
        """Whether the stream's first message has come; always true for unary calls."""


class AccessLog:
    """Receives the beginning and end of every call of a server, and makes the lines."""

    __slots__ = (
        "_calls",
        "_clients",
        "_clock",
        "_connections",
        "_header",
        "_lines",
        "_opening",
        "_phase",
        "_prefix",
        "_prefix_end",
        "_share",
        "_stamp",
        "_stamp_of",
        "_to",
        "_wall_clock",
        "wake_at",
    )

    def __init__(
        self,
        clients: Clients,
        to: Lines,
        identity: tuple[int, int],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        one_in: int,
        prefix: bytes,
    ) -> None:
        """Log one in `one_in` calls; with a prefix, only calls that concern keys under it.

        `identity` holds the ids of cluster and member, with which answers begin.
        """
        self._clients = clients
        self._to = to
        self._clock = clock
        self._wall_clock = wall_clock
        self._header = before_revision(*identity)
        self._share = _CYCLE // max(one_in, 1)
        self._phase = 0
        self._prefix = prefix
        self._prefix_end = prefix_end(prefix)
        self._calls: dict[int, _LoggedCall] = {}
        # Streams whose first message has come in this turn.
        self._opening: list[int] = []
        self._connections: dict[int, str] = {}
        self._lines: list[str] = []
        self._stamp_of = -1.0
        self._stamp = ""
        self.wake_at = inf
        """The time at which `flush` is due."""

    # Arrivals.

    def receive(self, requests: Sequence[Request]) -> None:
        """Record unary calls to log."""
        now = self._clock()
        calls, share, phase, prefix = self._calls, self._share, self._phase, self._prefix
        for call, method, payload, metadata in requests:
            phase = (phase + _STEP) & _CYCLE
            if phase > share:
                continue
            key = _key_of(method, payload)
            if prefix and not self._concerns(method, payload, key):
                continue
            calls[call] = _LoggedCall(method, key, now, "" if metadata is None else _via(metadata))
        self._phase = phase

    def note(self, kind: int, call: int, detail: Any) -> None:
        """Record a stream's beginning, and its key with the first message."""
        if kind == EdgeEventKind.OPENED:
            self._phase = (self._phase + _STEP) & _CYCLE
            if self._phase <= self._share:
                method, metadata = detail
                via = "" if metadata is None else _via(metadata)
                found = self._calls[call] = _LoggedCall(method, b"", self._clock(), via)
                found.has_begun = False
        elif kind == EdgeEventKind.MESSAGE and call in self._calls:
            found = self._calls[call]
            if not found.has_begun:
                found.has_begun = True
                found.key = _key_of(found.method, detail)
                if self._prefix and not self._concerns(found.method, detail, found.key):
                    del self._calls[call]
                    return
                self._opening.append(call)
                self._wake_soon(found.arrived)

    def identify(self, call: int, user: str) -> None:
        """Record the user of a call."""
        found = self._calls.get(call)
        if found is not None:
            found.user = user

    def _concerns(self, method: int, payload: bytes, key: bytes) -> bool:
        """Return whether a request concerns keys under the prefix."""
        if not key or _IS_SECRET[method]:
            return False
        if key.startswith(self._prefix):
            return True
        if not _IS_RANGE[method] or (key >= self._prefix_end and self._prefix_end != b"\0"):
            return False
        range_end = _field(payload, 2)
        return range_end == b"\0" or (range_end or b"") > self._prefix

    # Answers.

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """Write the lines of unary calls."""
        calls = self._calls
        if not calls:
            return
        now = self._clock()
        lines, clients, header = self._lines, self._connections, self._header
        header_end = 2 + len(header)
        arrived, connection, method = -1.0, -1, -1
        head = tail = ""
        for call, result in batch:
            found = calls.pop(call, None)
            if found is None:
                continue
            if not isinstance(result, bytes):
                self._write(call, found, now, result.code.name)
                continue
            # Calls of one method from one connection and turn have the same head and tail.
            if found.arrived != arrived or call >> 32 != connection or found.method != method:
                arrived, connection, method = found.arrived, call >> 32, found.method
                self._note_time(arrived)
                client = clients.get(connection)
                if client is None:
                    client = self._look_up(call)
                head = f"{self._stamp}{client}{_METHODS[method]}"
                tail = f',"took_us":{_microseconds(now - arrived)},"code":"OK"}}\n'
            subject = _subject(found)
            if len(result) > header_end and result[2:header_end] == header:
                revision = _varint(result, header_end)
                lines.append(f'{head}{subject},"revision":{revision}{tail}')
            else:
                lines.append(f"{head}{subject}{tail}")
        if len(lines) >= LINES_MAX:
            self.flush()
        elif lines:
            self._wake_soon(now)

    def end(self, call: int, code: Code) -> None:
        """Write the line of a stream that ends, or of a call whose client left."""
        self._open_streams()
        found = self._calls.pop(call, None)
        # A stream without a first message has no key, hence none under a prefix.
        if found is not None and (found.has_begun or not self._prefix):
            self._write(call, found, self._clock(), code.name)

    def _open_streams(self) -> None:
        """Write the first lines of streams."""
        for call in self._opening:
            found = self._calls.get(call)
            if found is not None:
                self._add(self._beginning(call, found) + ',"stream":"opened"}\n', found.arrived)
        self._opening.clear()

    def _write(self, call: int, found: _LoggedCall, now: float, code: str) -> None:
        stream = ',"stream":"ended"' if _IS_STREAM[found.method] else ""
        took = _microseconds(now - found.arrived)
        self._add(
            f'{self._beginning(call, found)}{stream},"took_us":{took},"code":"{code}"}}\n', now
        )

    def _beginning(self, call: int, found: _LoggedCall) -> str:
        self._note_time(found.arrived)
        client = self._connections.get(call >> 32)
        if client is None:
            client = self._look_up(call)
        return f"{self._stamp}{client}{_METHODS[found.method]}{_subject(found)}"

    def _note_time(self, arrived: float) -> None:
        """Set `_stamp` to the beginning of the lines of calls that arrived then."""
        if arrived != self._stamp_of:
            self._stamp_of = arrived
            moment = self._wall_clock() - (self._clock() - arrived)
            self._stamp = f'{{"ts":"{time_text(moment)}"'

    def _look_up(self, call: int) -> str:
        """Return the fields with the address and certificate name of a call's client."""
        remote, name = self._clients.remote(call), self._clients.certificate_name(call)
        client = f',"remote":{_quoted(remote)}' if remote else ""
        if name:
            client += f',"certificate":{_quoted(name)}'
        if len(self._connections) >= CONNECTIONS_MAX:
            self._connections.clear()
        if remote:
            self._connections[call >> 32] = client
        return client

    def _add(self, line: str, now: float) -> None:
        self._lines.append(line)
        self._wake_soon(now)

    def _wake_soon(self, now: float) -> None:
        if self.wake_at == inf:
            self.wake_at = now + WAIT_SECONDS

    def flush(self) -> None:
        """Pass the gathered lines to the writer."""
        self.wake_at = inf
        if self._opening:
            self._open_streams()
            self.wake_at = inf
        if self._lines:
            data = "".join(self._lines).encode(errors="backslashreplace")
            self._to.put(data, len(self._lines))
            self._lines.clear()


def _quoted(text: str) -> str:
    """Return a text as JSON with terminal control characters escaped."""
    return escaped(json.dumps(text))


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _subject(found: _LoggedCall) -> str:
    """Return the fields with the user of a call, its key or name, and the gateway."""
    key = found.key
    if not key or (len(key) <= KEY_BYTES_MAX and key.isascii()):
        text = key.decode("ascii")
        # JSON and a terminal take such a text without escapes.
        if text.isprintable() and '"' not in text and "\\" not in text:
            text = f'{_NAMES[found.method]}"{text}"' if key else ""
        else:
            text = f"{_NAMES[found.method]}{_quoted(text)}"
    else:
        text = _quoted(key[:KEY_BYTES_MAX].decode("utf-8", "backslashreplace"))
        text = f"{_NAMES[found.method]}{text}"
        if len(key) > KEY_BYTES_MAX:
            text += f',"key_bytes":{len(key)}'
    if found.user:
        text = f',"user":{_quoted(found.user)}{text}'
    return text + found.via if found.via else text


def _via(metadata: Metadata) -> str:
    return ',"via":"gateway"' if GATEWAY_KEY in metadata else ""


def _varint(data: bytes, place: int) -> int:
    try:
        return read_varint(data, place)[0]
    except ValueError:
        return 0


def _key_of(method: int, payload: bytes) -> bytes:
    """Return the first key in a request; empty if it has none."""
    if _IS_DIRECT[method] and len(payload) > 2 and payload[0] == 0x0A:
        length = payload[1]
        if length < 0x80:
            return payload[2 : 2 + length]
    for way in _WAYS_BY_METHOD[method]:
        found: bytes | None = payload
        for number in way:
            found = _field(found, number) if found else None
        if found:
            return found
    return b""


def _field(message: bytes, number: int) -> bytes | None:
    """Return the content of the first length-delimited field with this number, or None."""
    place, length = 0, len(message)
    try:
        while place < length:
            tag, place = read_varint(message, place)
            kind = tag & 7
            if kind == 0:
                _, place = read_varint(message, place)
            elif kind == 1:
                place += 8
            elif kind == 5:
                place += 4
            elif kind == 2:
                size, place = read_varint(message, place)
                if tag >> 3 == number or number == _ANY:
                    return message[place : place + size]
                place += size
            else:
                return None
    except ValueError:
        return None
    return None
