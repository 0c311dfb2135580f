"""A stand-in for a node: it stores keys in a dict, on the real edge, over the real API.

It serves Put and Range of single keys until the server takes its place. Nothing is kept on
disk, and there is no history: a revision counts the puts.
"""

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from kvorum.api import errors
from kvorum.api.codec import HeaderEncoder, key_value, length_delimited
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import PutRequest, RangeRequest
from kvorum.edge import Edge, Event, EventKind, Request

CALLS_PER_TURN = 1000
BYTES_PER_TURN = 4 * 1024 * 1024


class Demo:
    """Serves what the edge has, one turn at a time."""

    METHODS = (("/etcdserverpb.KV/Put", False), ("/etcdserverpb.KV/Range", False))

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self._header = HeaderEncoder(cluster_id=1, member_id=1, raft_term=1)
        self._revision = 1
        self._stored: dict[bytes, tuple[int, int, bytes]] = {}
        """Each key's encoded KeyValue behind its create revision and version."""

    def turn(self) -> bool:
        """Serve what waits; return whether the edge is drained."""
        while True:
            requests, events = self.edge.poll(CALLS_PER_TURN, BYTES_PER_TURN)
            self.edge.reply([(request[0], self._answer(request)) for request in requests])
            self._refuse_http(events)
            if self.edge.is_drained():
                return True
            if not requests and not events and self.edge.announce_sleep():
                return False

    def _answer(self, request: Request) -> bytes | Status:
        _, method, payload, _ = request
        try:
            return self._put(payload) if method == 0 else self._range(payload)
        except DecodeError as error:
            return errors.unparsable_request(str(error))

    def _put(self, payload: bytes) -> bytes | Status:
        request = PutRequest.FromString(payload)
        if not request.key:
            return errors.EMPTY_KEY
        self._revision += 1
        created, version, _ = self._stored.get(request.key, (self._revision, 0, b""))
        stored = key_value(
            request.key, created, self._revision, version + 1, request.value, request.lease
        )
        self._stored[request.key] = (created, version + 1, stored)
        return self._header.field(self._revision)

    def _range(self, payload: bytes) -> bytes | Status:
        request = RangeRequest.FromString(payload)
        if not request.key:
            return errors.EMPTY_KEY
        header = self._header.field(self._revision)
        if request.key not in self._stored:
            return header
        # Fields kvs and count.
        return header + length_delimited(b"\x12", self._stored[request.key][2]) + b"\x20\x01"

    def _refuse_http(self, events: Iterable[Event]) -> None:
        for kind, call, _ in events:
            if kind == EventKind.HTTP_OPENED:
                headers = [("content-type", "text/plain; charset=utf-8")]
                self.edge.respond(call, 404, headers, b"404 page not found\n")
