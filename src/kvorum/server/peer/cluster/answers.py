"""Answer the requests of other members at the peer port, besides raft.

The requests are for the member list, for versions, and those of `kvorum.member.peer_requests`. The
latter are served once the whole body has arrived, within limits of size and time. Refusals have
etcd's text.
"""

import json
from collections.abc import Iterator
from math import inf

from kvorum.api.errors import Code, Status
from kvorum.member import peer_requests
from kvorum.member.member import Member
from kvorum.member.peer_requests import Answered, make_refusal
from kvorum.member.waits import Steps
from kvorum.network.edge.interface import EdgeEventKind, Headers
from kvorum.network.edge.targets import split_target
from kvorum.server.peer.interface import PeerOutput
from kvorum.state.apply.callers import Caller, Front
from kvorum.state.membership.documents import encode_members

MEMBERS_PATH = "/members"
VERSION_PATH = "/version"
CLUSTER_ID = "x-etcd-cluster-id"

JSON = "application/json"
UNDECIDED_CLUSTER = "not_decided"
UNKNOWN_STORAGE = "unknown"

BODY_SECONDS_MAX = 5.0
"""How long the body of a request may take to arrive."""
OPEN_MAX = 1000
"""How many requests may be open at once; further ones are refused."""

_WITHOUT_CLUSTER_ID = (VERSION_PATH, peer_requests.LEASES_PATH, peer_requests.LEASES_INTERNAL_PATH)
_WITHOUT_ALLOW = (peer_requests.LEASES_PATH, peer_requests.LEASES_INTERNAL_PATH)
PEER = Caller(Front.PEER)
"""The caller of requests at the peer port: another member."""

_BROKEN_OFF = Status(Code.UNAVAILABLE, "the request took too long")


def version_document(member: Member) -> bytes:
    """Return the answer to `/version`, for members and for clients."""
    cluster = member.state.cluster
    versions = {
        "etcdserver": member.config.server_version,
        "etcdcluster": str(cluster.version or UNDECIDED_CLUSTER),
        "storage": str(cluster.storage_version or UNKNOWN_STORAGE),
    }
    return json.dumps(versions, separators=(",", ":")).encode()


class _Question:
    """A request whose body is incomplete."""

    __slots__ = ("body_bytes", "deadline", "headers", "path", "pieces")

    def __init__(self, path: str, headers: Headers, deadline: float) -> None:
        self.path = path
        self.headers = headers
        self.deadline = deadline
        self.pieces: list[bytes] = []
        self.body_bytes = 0


class PeerAnswers:
    """Answers the requests of other members through an edge."""

    __slots__ = ("_member", "_output", "_reading", "open")

    def __init__(self, member: Member, output: PeerOutput) -> None:
        self._member = member
        self._output = output
        # In the order of their deadlines.
        self._reading: dict[int, _Question] = {}
        self.open: dict[int, str] = {}
        """The path of every open request."""

    def open_request(
        self, call: int, method: str, target: str, headers: Headers, now: float
    ) -> None:
        """Take the head of a request."""
        path, _ = split_target(target)
        refusal = self._refusal(method, path, headers)
        if refusal is not None:
            self._respond(call, path, *refusal)
        elif path == MEMBERS_PATH:
            body = encode_members(self._member.state.cluster.members) + b"\n"
            self._respond(call, path, Answered(200, JSON, body))
        elif path == VERSION_PATH:
            self._respond(call, path, Answered(200, JSON, version_document(self._member)))
        else:
            self.open[call] = path
            self._reading[call] = _Question(path, headers, now + BODY_SECONDS_MAX)

    def handle(self, kind: int, call: int, detail: object) -> None:
        """Take an event of an open request."""
        question = self._reading.get(call)
        if kind == EdgeEventKind.MESSAGE and question is not None:
            assert isinstance(detail, bytes)
            question.body_bytes += len(detail)
            question.pieces.append(detail)
            if question.body_bytes > peer_requests.BODY_BYTES_MAX:
                self._respond(call, question.path, make_refusal(413, "request body too large"))
        elif kind == EdgeEventKind.HALF_CLOSED and question is not None:
            del self._reading[call]
            body = b"".join(question.pieces)
            steps = self._answered(call, question.path, body, question.headers)
            self._member.start(call, PEER, steps)
        elif kind == EdgeEventKind.ENDED:
            self.forget(call)
            self._member.cancel(call)

    def pass_time(self, now: float) -> float:
        """End requests whose bodies are overdue; return when to check again."""
        overdue = [call for call, question in self._reading.items() if question.deadline <= now]
        for call in overdue:
            self.forget(call)
            self._output.finish(call, _BROKEN_OFF)
        return next((question.deadline for question in self._reading.values()), inf)

    def _refusal(
        self, method: str, path: str, headers: Headers
    ) -> tuple[Answered, tuple[tuple[str, str], ...]] | None:
        """Return the refusal of a request, by its head alone, and the refusal's extra headers."""
        allowed = peer_requests.allowed_method(path)
        if path in (MEMBERS_PATH, VERSION_PATH):
            allowed = "GET"
        if allowed is None:
            return make_refusal(404, "404 page not found"), ()
        if method != allowed:
            allow = () if path in _WITHOUT_ALLOW else (("allow", allowed),)
            return make_refusal(405, "Method Not Allowed"), allow
        if path == peer_requests.HASH_KV_PATH:
            given = next((value for name, value in headers if name == CLUSTER_ID), "")
            if given and given != self._cluster_id:
                return make_refusal(412, "cluster ID mismatch"), ()
        if len(self.open) >= OPEN_MAX:
            return make_refusal(503, "too many questions are open"), ()
        return None

    def _answered(self, call: int, path: str, body: bytes, headers: Headers) -> Steps:
        try:
            answered = yield from peer_requests.answer_request(
                self._member, path, body, dict(headers)
            )
        except Exception as error:
            self._member.boundary.take(error, "peer", f"a question at {path[:100]}", body)
            answered = make_refusal(500, "Internal Server Error")
        self._respond(call, path, answered)
        return None

    def _respond(
        self, call: int, path: str, answered: Answered, extra: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.forget(call)
        headers = [*extra, *self._headers(path, answered)]
        self._output.respond(call, answered.status, headers, answered.body)

    def _headers(self, path: str, answered: Answered) -> Iterator[tuple[str, str]]:
        if self._names_cluster(path, answered.status):
            yield CLUSTER_ID, self._cluster_id
        yield "content-type", answered.content_type
        if answered.status != 200:
            yield "x-content-type-options", "nosniff"

    @staticmethod
    def _names_cluster(path: str, status: int) -> bool:
        """Return whether an answer carries the cluster's id, as etcd's does."""
        if path in _WITHOUT_CLUSTER_ID or status == 405:
            return False
        if path == peer_requests.HASH_KV_PATH:
            return status == 200
        return path == MEMBERS_PATH or peer_requests.allowed_method(path) is not None

    @property
    def _cluster_id(self) -> str:
        return f"{self._member.state.cluster.cluster_id:x}"

    def forget(self, call: int) -> None:
        """Forget a request without answering it."""
        self._reading.pop(call, None)
        self.open.pop(call, None)
