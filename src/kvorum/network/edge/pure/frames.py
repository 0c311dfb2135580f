"""The `h2` library's connection adapted to the edge, and the rules of a request's headers.

Only this module uses private parts of the library.
"""

import re
from typing import Any, TypeAlias

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.events import Event
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

from kvorum.network.edge.interface import Limits

Fields: TypeAlias = list[tuple[bytes, bytes]]

DEFAULT_WINDOW_BYTES = 65_535
WINDOW_BYTES_MAX = 2**31 - 1
HEADERS_HARD_FACTOR = 4
"""The edge refuses requests with headers above `header_list_bytes_max`; above this multiple of it,
the edge ends the connection."""

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_BAD_VALUE = re.compile(rb"[\0-\x08\x0a-\x1f\x7f]")

# An invalid header should end one stream; the library's own check would end the connection.
_CONFIGURATION = H2Configuration(
    client_side=False,
    validate_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


def is_malformed(headers: Fields) -> bool:
    """Return whether a request's headers break the rules of HTTP/2."""
    pseudo: set[bytes] = set()
    regular = False
    known: set[tuple[bytes, bytes]] = set()
    for field in headers:
        # HPACK lets a client repeat a long header with a single byte: check each header once.
        if field in known:
            continue
        name, value = field
        if name[:1] == b":":
            if regular or name in pseudo or name not in _PSEUDO:
                return True
            pseudo.add(name)
        else:
            regular = True
            known.add(field)
            if not _NAME.fullmatch(name) or name in HOP_BY_HOP:
                return True
            if name == b"te" and value.lower() != b"trailers":
                return True
        if _BAD_VALUE.search(value):
            return True
    if (b":method", b"CONNECT") in headers:
        return pseudo != {b":method", b":authority"}
    return not {b":method", b":scheme", b":path"} <= pseudo or (b":path", b"") in headers


class Frames(H2Connection):
    """The library's connection, with changes for a server of many calls."""

    # Remembering 65,536 closed streams costs megabytes on a connection that lives long.
    MAX_CLOSED_STREAMS = 1024

    def __init__(self, limits: Limits) -> None:
        """Prepare the server's preface."""
        super().__init__(_CONFIGURATION)
        self.answered = False
        """Whether HEADERS or DATA were sent since the client's last ping."""
        window = min(limits.stream_queued_bytes_max, WINDOW_BYTES_MAX)
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: limits.streams_per_connection_max,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
                SettingCodes.INITIAL_WINDOW_SIZE: max(window, DEFAULT_WINDOW_BYTES),
            },
        )
        self.decoder.max_header_list_size = HEADERS_HARD_FACTOR * limits.header_list_bytes_max
        self.initiate_connection()
        if window < DEFAULT_WINDOW_BYTES:
            # The client may send a default window's worth before it receives the smaller one.
            self.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        more = min(limits.connection_queued_bytes_max, WINDOW_BYTES_MAX) - DEFAULT_WINDOW_BYTES
        if more > 0:
            self.increment_flow_control_window(more)

    def send_headers(self, *arguments: Any, **more: Any) -> None:
        """Send HEADERS and set `answered`."""
        self.answered = True
        super().send_headers(*arguments, **more)

    def send_data(self, *arguments: Any, **more: Any) -> None:
        """Send DATA and set `answered`."""
        self.answered = True
        super().send_data(*arguments, **more)

    @property
    def open_inbound_streams(self) -> int:
        """Return 0; `Http2` refuses excess streams instead.

        The library would walk all streams for every new one, and end the connection over one
        too many.
        """
        return 0

    def _receive_goaway_frame(self, _frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        """Ignore a client's GOAWAY: it only means that the client accepts no pushed streams."""
        return [], []

    @property
    def is_over(self) -> bool:
        """Whether the library has ended the connection."""
        return self.state_machine.state is ConnectionState.CLOSED

    def forget(self, stream: int) -> None:
        """Drop a closed stream, as the library would in `open_inbound_streams`."""
        closed = self.streams.pop(stream, None)
        if closed is not None:
            self._closed_streams[stream] = closed.closed_by

    def is_closed(self, stream: int) -> bool:
        """Return whether nothing more can be sent on a stream."""
        return stream not in self.streams or self.streams[stream].closed

    def has_overlong_frame(self) -> bool:
        """Return whether the next frame is too long; the library would buffer all of it first."""
        begin = self.incoming_buffer._data[:3]
        return len(begin) == 3 and int.from_bytes(begin, "big") > self.max_inbound_frame_size

    def close(self) -> None:
        """Break the library's references to itself."""
        self._frame_dispatch_table.clear()
