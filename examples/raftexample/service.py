"""The store over HTTP: `PUT` and `GET` a key, `POST` and `DELETE` a node.

A change is answered when this node has applied it. A `GET` returns the state applied on this node,
which may be older than another node's.
"""

from typing import NamedTuple

from examples.raftexample.node import Node
from kvorum.network.edge import Edge, EdgeEventKind
from kvorum.raft import ChangeType

BODY_BYTES_MAX = 1 << 20


class Request(NamedTuple):
    """A request whose body is not complete yet."""

    method: str
    target: str
    body: bytearray


class Service:
    """Answers the calls of one listener."""

    def __init__(self, node: Node, edge: Edge) -> None:
        self._node = node
        self._edge = edge
        self._requests: dict[int, Request] = {}

    def open_request(self, call: int, method: str, target: str) -> None:
        """Start a request."""
        self._requests[call] = Request(method, target, bytearray())

    def handle(self, kind: int, call: int, detail: bytes | None, now: float) -> None:
        """Handle an event of a call."""
        request = self._requests.get(call)
        if request is None:
            return
        if kind == EdgeEventKind.MESSAGE and detail is not None:
            request.body.extend(detail)
            if len(request.body) > BODY_BYTES_MAX:
                self._answer(call, 413, b"at most 1 MiB is taken\n")
        elif kind == EdgeEventKind.HALF_CLOSED:
            self._serve(call, request, now)
        elif kind == EdgeEventKind.ENDED:
            del self._requests[call]

    def _serve(self, call: int, request: Request, now: float) -> None:
        method, target, body = request
        # A value may be any bytes.
        text = bytes(body).decode(errors="surrogateescape")
        if method == "GET":
            value = self._node.store.values.get(target)
            if value is None:
                self._answer(call, 404, b"Failed to GET\n")
            else:
                self._answer(call, 200, value.encode(errors="surrogateescape"))
        elif method == "PUT":
            self._node.put(target, text, lambda applied: self._changed(call, applied), now)
        elif method in ("POST", "DELETE"):
            self._change(call, method, target, text, now)
        else:
            self._answer(call, 405, b"Method not allowed\n", ("Allow", "PUT, GET, POST, DELETE"))

    def _change(self, call: int, method: str, target: str, url: str, now: float) -> None:
        name = target.removeprefix("/")
        if not (name.isascii() and name.isdigit() and 0 < int(name) < 1 << 63):
            self._answer(call, 400, f"{name!r} is not the number of a node\n".encode())
        elif method == "POST" and not url.startswith(("http://", "https://")):
            self._answer(call, 400, b"the body has to be the URL of the node\n")
        else:
            kind = ChangeType.ADD_NODE if method == "POST" else ChangeType.REMOVE_NODE
            self._node.change(
                kind, int(name), url, lambda applied: self._changed(call, applied), now
            )

    def _changed(self, call: int, is_applied: bool) -> None:
        if is_applied:
            self._answer(call, 204, b"")
        else:
            self._answer(call, 503, b"no leader took it in time; it may happen still\n")

    def _answer(self, call: int, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self._requests.pop(call, None)
        self._edge.respond(call, status, headers, body)
