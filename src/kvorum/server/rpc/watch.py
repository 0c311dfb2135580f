"""The Watch service: passes the requests of a stream to the hub, which sends the responses.

The service pauses a stream whose client reads too slowly; the stream's watchers fall behind, and
keep only the revision to resume from.

The service checks a caller's permission to read a range when it creates the watcher, and never
again: the watcher lives as long as its stream.
"""

from kvorum.api import errors
from kvorum.api.pb.etcdserverpb import WatchCreateRequest, WatchRequest
from kvorum.api.wire import parse_message
from kvorum.member.member import Member
from kvorum.state.apply.callers import Caller
from kvorum.state.apply.permissions import read_refusal
from kvorum.state.mvcc.watch.stream import WatchStream

FIRST_KEY = b"\0"
"""An empty key in a request stands for this key."""

FILTERS_MAX = 1_000
"""How many filters a watch may name; etcd has two kinds, and takes any number of them."""

_TOLD = (errors.INVALID_AUTH_TOKEN, errors.AUTH_OLD_REVISION, errors.USER_EMPTY)
"""Refusals that a client receives as they are; all others become PERMISSION_DENIED."""


class Watches:
    """All watch streams."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._streams: dict[int, WatchStream] = {}

    def open_stream(self, call: int) -> None:
        """Open a stream without watchers."""
        self._streams[call] = self._member.hub.open_stream(call)

    def take_message(self, call: int, caller: Caller, payload: bytes) -> None:
        """Serve one request of a stream; a request whose union is unset gets no answer."""
        message = parse_message(WatchRequest, payload)
        stream = self._streams[call]
        kind = message.WhichOneof("request_union")
        if kind == "create_request":
            create = message.create_request
            refusal = self._refusal(caller, create) or _filters_refusal(create)
            if refusal is not None:
                stream.refuse(refusal)
                return
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

    def _refusal(self, caller: Caller, create: WatchCreateRequest) -> str | None:
        """Return the error if the caller may not read the range.

        None for a negative revision: the hub reports that error instead.
        """
        if create.start_revision < 0:
            return None
        status = read_refusal(self._member.state, caller, create.key or FIRST_KEY, create.range_end)
        if status is None:
            return None
        if status not in _TOLD:
            status = errors.PERMISSION_DENIED
        return status.wrapped()

    def take_half_close(self, call: int) -> None:
        """Do nothing: watchers outlive their client's last request."""

    def end_stream(self, call: int) -> None:
        """Forget a stream and its watchers."""
        self._streams.pop(call).close()

    def resume_stream(self, call: int) -> None:
        """Resume a paused stream."""
        self._streams[call].resume()

    def pause_stream(self, call: int) -> None:
        """Send a stream no more events until it is writable."""
        self._streams[call].pause()


def _filters_refusal(create: WatchCreateRequest) -> str | None:
    """Return the error if a watch names too many filters."""
    count = len(create.filters)
    if count <= FILTERS_MAX:
        return None
    return f"a watch may name {FILTERS_MAX} filters, and this one names {count}: name each once"
