"""Plain HTTP requests: dispatch to endpoints by path, CORS, the host whitelist, refusals.

An endpoint answers at once, or keeps the call open and answers later; its cancel function runs if
the client goes away. The JSON gateway serves paths below `/v3/` and tracks its own calls. Headers
and texts are etcd's. An unforeseen error of an endpoint ends that request with 500 (see
`kvorum.api.boundary`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kvorum.api.boundary import Boundary
from kvorum.member.waits import Steps
from kvorum.network.edge import EdgeEventKind, Headers
from kvorum.network.edge.targets import TargetError, parse_target

TEXT = ("content-type", "text/plain; charset=utf-8")
NO_SNIFFING = ("x-content-type-options", "nosniff")
JSON = ("content-type", "application/json")
METHODS = "POST, GET, OPTIONS, PUT, DELETE"
HEADERS = "accept, content-type, authorization"
TREE = "/v3/"
OLD_TREE = "/v3beta/"
"""The JSON gateway's path prefix, and an older one."""
READ_HEADERS = ("host", "origin", "accept", "accept-encoding")
"""Headers that endpoints read."""
ANY = ("*", "")
"""Values of the flags that allow every origin or every host."""


def _cors_headers(origin: str) -> Headers:
    return (
        ("access-control-allow-headers", HEADERS),
        ("access-control-allow-methods", METHODS),
        ("access-control-allow-origin", origin),
    )


ANY_ORIGIN = _cors_headers("*")


class HttpOutput(Protocol):
    """The part of an edge that sends answers."""

    def respond(self, call: int, status: int, headers: Headers, body: bytes | None) -> None:
        """As `Edge.respond`."""


class HttpRequest(NamedTuple):
    """A request for an endpoint; endpoints do not read bodies."""

    call: int
    method: str
    path: str
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]


class HttpEndpoint(NamedTuple):
    """Serves one path. Without methods, it serves every method."""

    serve: Callable[[HttpRequest], None]
    methods: tuple[str, ...] = ("GET",)
    on_metrics: bool = False
    """Whether the metrics listeners serve it, too."""


class Tree(Protocol):
    """Serves all paths below `/v3/`: the JSON gateway."""

    def open_request(self, request: HttpRequest) -> None:
        """Serve a request: answer it now or later."""


class HttpFront:
    """Answers the HTTP requests among an edge's events."""

    __slots__ = (
        "_any_host",
        "_any_origin",
        "_boundary",
        "_cors",
        "_edge",
        "_endpoints",
        "_extra",
        "_hosts",
        "_metrics_listeners",
        "_tree",
        "_tree_refusal",
        "open",
    )

    def __init__(
        self, edge: HttpOutput, cors: Sequence[str], hosts: Sequence[str], boundary: Boundary
    ) -> None:
        self._edge = edge
        self._boundary = boundary
        self._cors = frozenset(cors)
        self._hosts = frozenset(hosts)
        self._any_origin = not self._cors.isdisjoint(ANY)
        self._any_host = not self._hosts.isdisjoint(ANY)
        self._endpoints: dict[str, HttpEndpoint] = {}
        self._tree: Tree | None = None
        self._tree_refusal: Callable[[int], str | None] | None = None
        self._metrics_listeners: set[int] = set()
        self._extra: dict[int, Headers] = {}
        self.open: dict[int, Callable[[], None] | None] = {}
        """Calls whose endpoints answer later, with the function that cancels each."""

    def add(self, path: str, endpoint: HttpEndpoint) -> None:
        """Serve a path with an endpoint."""
        self._endpoints[path] = endpoint

    def add_tree(self, tree: Tree, refusal: Callable[[int], str | None] | None = None) -> None:
        """Serve paths below `/v3/` that have no endpoint.

        `refusal` returns why to refuse a call before any other check of its request, or None.
        """
        self._tree, self._tree_refusal = tree, refusal

    def add_metrics_listener(self, number: int) -> None:
        """Serve only endpoints with `on_metrics` at this listener."""
        self._metrics_listeners.add(number)

    def handle(self, kind: int, call: int, detail: object) -> None:
        """Take an event of an HTTP call."""
        if kind == EdgeEventKind.HTTP_OPENED:
            assert isinstance(detail, tuple)
            try:
                self._serve(call, *detail)
            except Exception as error:
                self._failed(call, error, str(detail[1:]), self.open.pop(call, None))
        elif kind == EdgeEventKind.ENDED:
            self.forget(call)
            cancel = self.open.pop(call, None)
            if cancel is not None:
                cancel()

    def keep_open(self, call: int, cancel: Callable[[], None]) -> None:
        """Keep a call for a later answer; `cancel` runs if the client goes away before."""
        self.open[call] = cancel

    def bounded(self, call: int, steps: Steps) -> Steps:
        """Wrap steps that answer a call, so that an unforeseen error answers it with 500."""
        try:
            return (yield from steps)
        except Exception as error:
            self._failed(call, error, "", None)
            return None

    def forget(self, call: int) -> None:
        """Forget a call whose client is gone."""
        self._extra.pop(call, None)

    def respond(self, call: int, status: int, headers: Headers, body: bytes | None) -> None:
        """Answer a call; with body None, send only the head, and pieces of the body follow."""
        self.open.pop(call, None)
        extra = self._extra.pop(call, ())
        self._edge.respond(call, status, [*extra, *headers], body)

    def upgrade(self, call: int, headers: Headers) -> None:
        """Answer a tree's call with 101; the connection carries raw bytes from now on."""
        self._extra.pop(call, None)
        self._edge.respond(call, 101, headers, None)

    def refuse(self, call: int, status: int, message: str, headers: Headers = ()) -> None:
        """Answer with a status and a line of text."""
        text = f"{message}\n".encode(errors="backslashreplace")
        self.respond(call, status, [*headers, TEXT, NO_SNIFFING], text)

    def _failed(
        self, call: int, error: Exception, sent: str, cancel: Callable[[], None] | None
    ) -> None:
        self._boundary.take(error, "http", f"HTTP request {call}", sent)
        if cancel is not None:
            cancel()
        self.refuse(call, 500, "Internal Server Error")

    def _serve(self, call: int, listener: int, method: str, target: str, headers: Headers) -> None:
        try:
            path, fields = parse_target(target)
            if path.startswith(OLD_TREE):
                path = TREE + path.removeprefix(OLD_TREE)
            # `reversed` makes the first of several headers with one name win.
            request = HttpRequest(call, method, path, fields, dict(reversed(headers)))
        except TargetError as error:
            self.refuse(call, 400, f"400 Bad Request: {error}")
            return
        endpoint = self._endpoints.get(path)
        tree = self._tree if path.startswith(TREE) else None
        if listener in self._metrics_listeners:
            tree = None
            if endpoint is not None and not endpoint.on_metrics:
                endpoint = None
        elif not self._admit(request, tree):
            return
        if endpoint is None and tree is not None:
            tree.open_request(request)
        elif endpoint is None:
            self.refuse(call, 404, "404 page not found")
        elif endpoint.methods and method not in endpoint.methods:
            allowed = [("allow", ", ".join(endpoint.methods))]
            self.refuse(call, 405, "Method Not Allowed", allowed)
        else:
            endpoint.serve(request)

    def _admit(self, request: HttpRequest, tree: Tree | None) -> bool:
        """Check the host and add CORS headers; answer requests that need no endpoint."""
        if not self._any_host:
            host = _host_name(request.headers.get("host", ""))
            if host not in self._hosts:
                text = f"host {host!r} is not among the names that --host-whitelist allows"
                self.refuse(request.call, 421, text)
                return False
        if tree is not None and self._tree_refusal is not None:
            refusal = self._tree_refusal(request.call)
            if refusal is not None:
                self.refuse(request.call, 400, refusal)
                return False
        origin = request.headers.get("origin", "")
        if self._any_origin:
            self._extra[request.call] = ANY_ORIGIN
        elif origin in self._cors:
            self._extra[request.call] = _cors_headers(origin)
        if request.method == "OPTIONS":
            self.respond(request.call, 200, (), b"")
            return False
        return True


def _host_name(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
