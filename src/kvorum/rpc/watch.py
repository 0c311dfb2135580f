"""The Watch service: the messages of a stream, passed to the hub and back.

Messages of a stream are sent in the hub's order. A stream whose client does not take what was
sent is paused; its watchers fall behind, and keep only the revision to go on from.
"""

from kvorum.api.pb.etcdserverpb import WatchRequest
from kvorum.member.callers import Caller
from kvorum.member.member import Member
from kvorum.mvcc.watch.stream import WatchStream


class Watches:
    """All watch streams."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._streams: dict[int, WatchStream] = {}

    def opened(self, call: int) -> None:
        """Begin a stream, without watchers."""
        self._streams[call] = self._member.hub.open_stream(call)

    def received(self, call: int, _caller: Caller, payload: bytes) -> None:
        """Serve one request of a stream; one whose union is unset gets no answer."""
        message = WatchRequest.FromString(payload)
        stream = self._streams[call]
        kind = message.WhichOneof("request_union")
        if kind == "create_request":
            create = message.create_request
            stream.create(
                create.key,
                create.range_end,
                create.start_revision,
                watch_id=create.watch_id,
                progress_notify=create.progress_notify,
                filters=create.filters,
                prev_kv=create.prev_kv,
                fragment=create.fragment,
            )
        elif kind == "cancel_request":
            stream.cancel(message.cancel_request.watch_id)
        elif kind == "progress_request":
            stream.request_progress()

    def half_closed(self, call: int) -> None:
        """Go on: watchers outlive their client's last request."""

    def ended(self, call: int) -> None:
        """Forget a stream and its watchers."""
        self._streams.pop(call).close()

    def writable(self, call: int) -> None:
        """Let a paused stream go on."""
        self._streams[call].resume()

    def full(self, call: int) -> None:
        """Send a stream no more events until it is writable."""
        self._streams[call].pause()
