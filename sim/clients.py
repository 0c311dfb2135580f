"""Clients that put, get, delete, compare and set, and lease; they speak request bytes.

A client has one request on its way at a time and patience for some time. It retries a read that
failed; a write whose outcome is unknown it never sends again, since it may have happened. What
it asked and what it was told goes into the history; judging is done there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from kvorum.api.errors import Code, Status
from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    CompactionResponse,
    Compare,
    DeleteRangeRequest,
    DeleteRangeResponse,
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    LeaseRevokeRequest,
    LeaseRevokeResponse,
    PutRequest,
    PutResponse,
    RangeRequest,
    RangeResponse,
    RequestOp,
    TxnRequest,
    TxnResponse,
)
from sim.history import History, Record
from sim.machine import REFUSED
from sim.trace import shown
from sim.world import World

METHODS: dict[str, tuple[str, Any]] = {
    "put": ("/etcdserverpb.KV/Put", PutResponse),
    "get": ("/etcdserverpb.KV/Range", RangeResponse),
    "list": ("/etcdserverpb.KV/Range", RangeResponse),
    "delete": ("/etcdserverpb.KV/DeleteRange", DeleteRangeResponse),
    "set": ("/etcdserverpb.KV/Txn", TxnResponse),
    "pair": ("/etcdserverpb.KV/Txn", TxnResponse),
    "compact": ("/etcdserverpb.KV/Compact", CompactionResponse),
    "grant": ("/etcdserverpb.Lease/LeaseGrant", LeaseGrantResponse),
    "revoke": ("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeResponse),
    "keep": ("/etcdserverpb.Lease/LeaseKeepAlive", LeaseKeepAliveResponse),
}
"""What clients ask for, its path, and the message they are answered with."""

READS = {"get", "list"}
# These codes say nothing about whether a request has happened.
_UNKNOWN = {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.UNKNOWN, Code.CANCELLED}
BACKLOG_SECONDS = 0.3
KEY_PREFIX = b"k/"
KEY_PREFIX_END = b"k0"


class Calls(Protocol):
    """How clients reach members."""

    members: Sequence[int]

    def call(
        self,
        member: int,
        path: str,
        payload: bytes,
        answered: Callable[[bytes | Status | None], None],
    ) -> int:
        """Send a request; the answer, or None if the connection broke, is told later."""

    def open_stream(
        self,
        member: int,
        path: str,
        answered: Callable[[bytes | Status | None], None],
        message: Callable[[bytes], None],
    ) -> int:
        """Open a stream; its end is told, None if the connection broke."""

    def send(self, member: int, call: int, payload: bytes) -> None:
        """Send a message on a stream."""

    def hang_up(self, member: int, call: int) -> None:
        """Wait no longer for an answer."""


@dataclass(slots=True, frozen=True)
class Workload:
    """What the clients of a run do."""

    clients: int
    keys: int
    requests: int
    """How many each client makes at the most."""
    think: float
    """About the time between an answer and the next request; half of the time there is none."""
    patience: tuple[float, float]
    value_bytes_max: int
    weights: tuple[tuple[str, float], ...]
    watchers: int
    lease_seconds: tuple[int, int]


def draw_workload(random: Random, seconds: float) -> Workload:
    """Return what the clients of a run do, so that it lasts about so long."""
    clients = random.randint(2, 8)
    requests = max(8, random.randint(40, 260) // clients)
    weights = [
        ("put", random.uniform(1.0, 4.0)),
        ("get", random.choice([1.0, 3.0, 8.0])),
        ("list", random.uniform(0.0, 0.7)),
        ("delete", random.uniform(0.2, 1.0)),
        ("set", random.uniform(0.3, 2.0)),
        ("pair", random.uniform(0.0, 0.7)),
        ("compact", random.choice([0.0, 0.0, 0.1, 0.3])),
        ("grant", random.choice([0.0, 0.2, 0.5])),
        ("revoke", random.uniform(0.0, 0.3)),
        ("keep", random.choice([0.0, 0.5, 1.5])),
    ]
    return Workload(
        clients=clients,
        keys=random.choice([1, 3, 6, 12]),
        requests=requests,
        think=2 * seconds / requests,
        patience=random.choice([(0.5, 2.0), (2.0, 9.0)]),
        value_bytes_max=random.choice([16, 16, 400, 4000]),
        weights=tuple(weights),
        watchers=random.randint(0, 4),
        lease_seconds=random.choice([(1, 3), (2, 8)]),
    )


class Client:
    """One client, busy until it is told to stop."""

    __slots__ = (
        "_calls",
        "_history",
        "_kinds",
        "_leases",
        "_member",
        "_number",
        "_random",
        "_requests",
        "_roams",
        "_seen",
        "_values",
        "_waiting",
        "_weights",
        "_workload",
        "_world",
        "is_stopped",
    )

    def __init__(
        self, world: World, calls: Calls, history: History, workload: Workload, number: int
    ) -> None:
        self._world = world
        self._calls = calls
        self._history = history
        self._workload = workload
        self._number = number
        self._random: Random = world.stream(f"client {number}")
        self._kinds = [kind for kind, _ in workload.weights]
        self._weights = [weight for _, weight in workload.weights]
        self._member = self._random.choice(calls.members)
        # How soon it looks for another member when this one does not answer.
        self._roams = self._random.choice([0.05, 1.0])
        self._values = 0
        self._requests = 0
        # Value and revision of keys as this client last saw them.
        self._seen: dict[bytes, tuple[bytes | None, int]] = {}
        self._leases: list[int] = []
        # The call that is waited for, and its record.
        self._waiting: tuple[int, Record] | None = None
        self.is_stopped = False

    def start(self) -> None:
        """Begin soon."""
        self._world.after(self._random.uniform(0.0, 0.5), self._next)

    def _next(self) -> None:
        self._requests += 1
        if self.is_stopped or self._requests > self._workload.requests:
            return
        kind = self._random.choices(self._kinds, self._weights)[0]
        if kind in ("revoke", "keep") and not self._leases:
            kind = "put"
        if kind == "compact" and self._history.revision < 5:
            kind = "get"
        request, expected, is_linearizable = self._request(kind)
        self._send(kind, request, expected, is_linearizable)

    def _send(self, kind: str, request: Any, expected: bytes | None, is_linearizable: bool) -> None:
        world, history = self._world, self._history
        record = Record(self._number, kind, self._member, request, history.moment(), world.now)
        record.expected = expected
        record.linearizable = is_linearizable
        history.records.append(record)
        if world.trace is not None:
            world.trace.line(
                world.now,
                f"c{self._number}",
                f"{kind} #{record.invoked} at m{self._member} {describe_request(request)}",
            )
        path, payload = METHODS[kind][0], request.SerializeToString()

        def answered(result: bytes | Status | None) -> None:
            self._answered(record, result)

        if kind == "keep":
            call = self._calls.open_stream(self._member, path, answered, answered)
            self._calls.send(self._member, call, payload)
        else:
            call = self._calls.call(self._member, path, payload, answered)
        self._waiting = (call, record)
        world.after(self._random.uniform(*self._workload.patience), self._lose_patience, record)

    def _lose_patience(self, record: Record) -> None:
        if self._waiting is not None and self._waiting[1] is record:
            self._calls.hang_up(self._member, self._waiting[0])
            self._answered(record, None)

    def _answered(self, record: Record, result: bytes | Status | None) -> None:
        if self._waiting is None or self._waiting[1] is not record:
            return
        if record.kind == "keep":
            self._calls.hang_up(record.member, self._waiting[0])
        self._waiting = None
        world = self._world
        record.finished = world.now
        failed = result is None or isinstance(result, Status)
        if isinstance(result, bytes):
            record.response = METHODS[record.kind][1].FromString(result)
            record.returned = self._history.moment()
            self._learn(record)
        elif isinstance(result, Status) and (result is REFUSED or result.code not in _UNKNOWN):
            record.response = result
            record.returned = self._history.moment()
        if world.trace is not None:
            world.trace.line(
                world.now,
                f"c{self._number}",
                f"= #{record.invoked} {describe_result(result, record)}",
            )
        if self._random.random() < (self._roams if failed else 0.1 * self._roams):
            self._member = self._random.choice(self._calls.members)
        pause = 0.0
        # Who had to wait has more to do by now.
        if world.now - record.started < BACKLOG_SECONDS and self._random.random() < 0.5:
            pause = self._random.expovariate(1.0) * self._workload.think
        if failed:
            pause += 0.05
        if failed and record.kind in READS and self._random.random() < 0.5:
            world.after(pause, self._retry, record)
        else:
            world.after(pause, self._next)

    def _retry(self, record: Record) -> None:
        if not self.is_stopped:
            self._send(record.kind, record.request, None, record.linearizable)

    # What is asked.

    def _key(self) -> bytes:
        return KEY_PREFIX + b"%02d" % self._random.randrange(self._workload.keys)

    def _value(self) -> bytes:
        """Return a value that nobody else writes."""
        self._values += 1
        value = b"%d.%d" % (self._number, self._values)
        length = self._random.randint(0, self._workload.value_bytes_max)
        return value + b"." * max(0, length - len(value))

    def _put(self, key: bytes) -> PutRequest:
        request = PutRequest(key=key, value=self._value(), prev_kv=self._random.random() < 0.5)
        if self._leases and self._random.random() < 0.4:
            request.lease = self._random.choice(self._leases)
        return request

    def _request(self, kind: str) -> tuple[Any, bytes | None, bool]:
        """Return a request, what a compare expects, and whether the answer must be current."""
        random = self._random
        if kind == "get":
            serializable = random.random() < 0.3
            return RangeRequest(key=self._key(), serializable=serializable), None, not serializable
        if kind == "list":
            serializable = random.random() < 0.3
            request = RangeRequest(
                key=KEY_PREFIX,
                range_end=KEY_PREFIX_END,
                serializable=serializable,
                limit=random.choice([0, 0, 2]),
            )
            return request, None, not serializable
        if kind == "delete":
            return DeleteRangeRequest(key=self._key(), prev_kv=True), None, True
        if kind == "set":
            key = self._key()
            value, revision = self._seen.get(key, (None, 0))
            compare = Compare(
                key=key, target=Compare.MOD, result=Compare.EQUAL, mod_revision=revision
            )
            if value is None:
                compare = Compare(key=key, target=Compare.CREATE, result=Compare.EQUAL)
                compare.create_revision = 0
            put = PutRequest(key=key, value=self._value())
            return (
                TxnRequest(
                    compare=[compare],
                    success=[RequestOp(request_put=put)],
                    failure=[RequestOp(request_range=RangeRequest(key=key))],
                ),
                value,
                True,
            )
        if kind == "pair":
            keys = sorted({self._key(), self._key()})
            puts = [PutRequest(key=key, value=self._value(), prev_kv=True) for key in keys]
            return (
                TxnRequest(
                    success=[
                        *(RequestOp(request_put=put) for put in puts),
                        RequestOp(request_range=RangeRequest(key=keys[0])),
                    ]
                ),
                None,
                True,
            )
        if kind == "compact":
            revision = max(1, self._history.revision - random.randint(0, 20))
            return CompactionRequest(revision=revision), None, True
        if kind == "grant":
            return LeaseGrantRequest(TTL=random.randint(*self._workload.lease_seconds)), None, True
        if kind == "keep":
            return LeaseKeepAliveRequest(ID=random.choice(self._leases)), None, True
        if kind == "revoke":
            return LeaseRevokeRequest(ID=self._leases.pop(0)), None, True
        return self._put(self._key()), None, True

    def _learn(self, record: Record) -> None:
        """Remember what an answer says about keys and leases."""
        response, request, kind = record.response, record.request, record.kind
        if kind == "put":
            self._seen[request.key] = (request.value, response.header.revision)
        elif kind == "delete":
            self._seen.pop(request.key, None)
        elif kind == "get":
            self._seen[request.key] = _value_and_revision(response)
        elif kind == "list":
            for kv in response.kvs:
                self._seen[kv.key] = (kv.value, kv.mod_revision)
        elif kind == "set":
            key = request.compare[0].key
            if response.succeeded:
                put = request.success[0].request_put
                self._seen[key] = (put.value, response.header.revision)
            else:
                self._seen[key] = _value_and_revision(response.responses[0].response_range)
        elif kind == "pair":
            for operation in request.success[:-1]:
                put = operation.request_put
                self._seen[put.key] = (put.value, response.header.revision)
        elif kind == "grant":
            self._leases.append(response.ID)
        elif kind == "keep" and not response.TTL and request.ID in self._leases:
            self._leases.remove(request.ID)


def _value_and_revision(response: RangeResponse) -> tuple[bytes | None, int]:
    if not response.kvs:
        return None, 0
    return response.kvs[0].value, response.kvs[0].mod_revision


def describe_request(request: Any) -> str:
    """Return a request in a few words."""
    if isinstance(request, PutRequest):
        lease = f" lease {request.lease:x}" if request.lease else ""
        return f"{shown(request.key)}={shown(request.value)}{lease}"
    if isinstance(request, RangeRequest):
        return shown(request.key) + (" serializable" if request.serializable else "")
    if isinstance(request, DeleteRangeRequest):
        return shown(request.key)
    if isinstance(request, TxnRequest):
        puts = [each.request_put for each in request.success if each.HasField("request_put")]
        compares = [f"if {shown(each.key)}@{each.mod_revision}" for each in request.compare]
        return " ".join(compares + [describe_request(put) for put in puts])
    if isinstance(request, CompactionRequest):
        return str(request.revision)
    if isinstance(request, LeaseGrantRequest):
        return f"{request.TTL}s"
    return f"{request.ID:x}"


def describe_result(result: bytes | Status | None, record: Record) -> str:
    """Return an answer in a few words."""
    if result is None:
        return "lost"
    if isinstance(result, Status):
        return result.text
    response = record.response
    text = f"r{response.header.revision} t{response.header.raft_term}"
    if isinstance(response, RangeResponse):
        text += " " + " ".join(f"{shown(kv.value)}@{kv.mod_revision}" for kv in response.kvs)
    elif isinstance(response, TxnResponse):
        text += " succeeded" if response.succeeded else " failed"
    elif isinstance(response, DeleteRangeResponse):
        text += f" deleted {response.deleted}"
    elif isinstance(response, LeaseGrantResponse):
        text += f" lease {response.ID:x} {response.TTL}s"
    elif isinstance(response, LeaseKeepAliveResponse):
        text += f" {response.TTL}s"
    return text
