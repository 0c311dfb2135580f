"""Requests as users of etcd make them: keys, ranges, transactions over several keys, leases."""

from random import Random
from typing import Any

from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    Compare,
    DeleteRangeRequest,
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseRevokeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.sim.calls import PlannedRequest
from kvorum.sim.history import History, Record
from kvorum.sim.operations import Pairs
from kvorum.sim.workloads import (
    KEY_PREFIX,
    KEY_PREFIX_END,
    KUBERNETES,
    OBJECT_PREFIX,
    OBJECT_PREFIX_END,
    Workload,
)

_COMPACTED_FROM = 5
"""Before this revision there is nothing to compact."""


class EtcdShape:
    """The requests of one client."""

    __slots__ = (
        "_history",
        "_kinds",
        "_leases",
        "_number",
        "_random",
        "_revision",
        "_seen",
        "_values",
        "_weights",
        "_workload",
    )

    def __init__(self, random: Random, history: History, workload: Workload, number: int) -> None:
        self._random = random
        self._history = history
        self._workload = workload
        self._number = number
        self._kinds = [kind for kind, _ in workload.weights]
        self._weights = [weight for _, weight in workload.weights]
        self._values = 0
        # The keys as this client last saw them.
        self._seen: dict[bytes, KeyValue] = {}
        self._revision = 0
        self._leases: list[int] = []

    def next(self) -> PlannedRequest:
        """Return the next request."""
        kind = self._random.choices(self._kinds, self._weights)[0]
        if kind in ("revoke", "keep") and not self._leases:
            kind = "put"
        if kind == "compact" and self._history.revision < _COMPACTED_FROM:
            kind = "get"
        if kind == "past" and not self._revision:
            kind = "get"
        asked: PlannedRequest = getattr(self, f"_{kind}")()
        return asked

    def _key(self) -> bytes:
        return KEY_PREFIX + b"%02d" % self._random.randrange(self._workload.keys)

    def _value(self) -> bytes:
        """Return a value that no other request writes."""
        self._values += 1
        value = b"%d.%d" % (self._number, self._values)
        length = self._random.randint(0, self._workload.value_bytes_max)
        return value + b"." * max(0, length - len(value))

    # Requests for one key.

    def _put(self) -> PlannedRequest:
        random = self._random
        request = PutRequest(key=self._key(), value=self._value(), prev_kv=random.random() < 0.5)
        if self._leases and random.random() < 0.4:
            request.lease = random.choice(self._leases)
        return PlannedRequest("put", request)

    def _get(self) -> PlannedRequest:
        serializable = self._random.random() < 0.3
        request = RangeRequest(key=self._key(), serializable=serializable)
        return PlannedRequest("get", request, (), not serializable)

    def _delete(self) -> PlannedRequest:
        return PlannedRequest("delete", DeleteRangeRequest(key=self._key(), prev_kv=True))

    # Ranges.

    def _list(self) -> PlannedRequest:
        random = self._random
        serializable = random.random() < 0.3
        request = RangeRequest(
            key=KEY_PREFIX,
            range_end=KEY_PREFIX_END,
            serializable=serializable,
            limit=random.choice([0, 0, 2]),
            count_only=random.random() < 0.1,
        )
        return PlannedRequest("list", request, (), not serializable)

    def _past(self) -> PlannedRequest:
        """Read at a revision that was seen before."""
        random = self._random
        revision = max(1, self._revision - random.choice([0, 1, 3, 10]))
        request = RangeRequest(key=KEY_PREFIX, range_end=KEY_PREFIX_END, revision=revision)
        request.serializable = random.random() < 0.5
        return PlannedRequest("past", request, (), not request.serializable)

    def _clear(self) -> PlannedRequest:
        first, last = sorted([self._key(), self._key()])
        return PlannedRequest(
            "clear", DeleteRangeRequest(key=first, range_end=last + b"\0", prev_kv=True)
        )

    # Transactions.

    def _compare(self, key: bytes) -> Compare:
        """Return a condition that holds if the key is as it was last seen."""
        kv = self._seen.get(key)
        if kv is None:
            return Compare(key=key, target=Compare.CREATE, create_revision=0)
        if self._random.random() < 0.3:
            return Compare(key=key, target=Compare.VALUE, value=kv.value)
        return Compare(key=key, target=Compare.MOD, mod_revision=kv.mod_revision)

    def _expected(self, keys: list[bytes]) -> Pairs:
        return tuple((key, self._seen[key].value if key in self._seen else None) for key in keys)

    def _set(self) -> PlannedRequest:
        key = self._key()
        return PlannedRequest(
            "set",
            TxnRequest(
                compare=[self._compare(key)],
                success=[RequestOp(request_put=PutRequest(key=key, value=self._value()))],
                failure=[RequestOp(request_range=RangeRequest(key=key))],
            ),
            self._expected([key]),
        )

    def _move(self) -> PlannedRequest:
        """Write several keys if all of them are as they were seen, half of the time nested."""
        random = self._random
        keys = sorted({self._key() for _ in range(random.randint(2, 3))})
        operations = [
            RequestOp(request_put=PutRequest(key=key, value=self._value(), prev_kv=True))
            for key in keys
        ]
        if random.random() < 0.5:
            operations[-1] = RequestOp(request_delete_range=DeleteRangeRequest(key=keys[-1]))
        reads = [RequestOp(request_range=RangeRequest(key=key)) for key in keys]
        # Keys that this client has not seen are compared last.
        compares = [self._compare(key) for key in sorted(keys, key=lambda key: key in self._seen)]
        compares.reverse()
        if random.random() < 0.5:
            inner = TxnRequest(compare=compares[1:], success=operations[1:])
            operations = [operations[0], RequestOp(request_txn=inner)]
        request = TxnRequest(compare=compares, success=operations, failure=reads)
        return PlannedRequest("move", request, self._expected(keys))

    def _nest(self) -> PlannedRequest:
        """Write a key, and others one or two levels deep, without compares."""
        random, keys = self._random, self._workload.keys
        chosen = random.sample(range(keys), min(keys, random.randint(1, 3)))
        puts = [
            PutRequest(
                key=KEY_PREFIX + b"%02d" % key,
                value=self._value(),
                prev_kv=random.random() < 0.2,
            )
            for key in chosen
        ]
        operations = [RequestOp(request_put=put) for put in puts[1:] or puts]
        for _ in range(random.randint(1, 2)):
            operations = [RequestOp(request_txn=TxnRequest(success=operations))]
        if len(puts) > 1:
            operations.insert(0, RequestOp(request_put=puts[0]))
        return PlannedRequest("nest", TxnRequest(success=operations))

    def _pair(self) -> PlannedRequest:
        keys = sorted({self._key(), self._key()})
        puts = [PutRequest(key=key, value=self._value(), prev_kv=True) for key in keys]
        operations = [RequestOp(request_put=put) for put in puts]
        operations.append(RequestOp(request_range=RangeRequest(key=keys[0])))
        return PlannedRequest("pair", TxnRequest(success=operations))

    # The rest.

    def _compact(self) -> PlannedRequest:
        random = self._random
        revision = max(1, self._history.revision - random.choice([0, 1, 5, 20]))
        return PlannedRequest(
            "compact", CompactionRequest(revision=revision, physical=random.random() < 0.3)
        )

    def _grant(self) -> PlannedRequest:
        return PlannedRequest(
            "grant", LeaseGrantRequest(TTL=self._random.randint(*self._workload.lease_seconds))
        )

    def _keep(self) -> PlannedRequest:
        return PlannedRequest("keep", LeaseKeepAliveRequest(ID=self._random.choice(self._leases)))

    def _revoke(self) -> PlannedRequest:
        return PlannedRequest("revoke", LeaseRevokeRequest(ID=self._leases.pop(0)))

    def learn(self, record: Record) -> None:
        """Remember what an answer says about keys and leases."""
        request, response = record.request, record.response
        self._revision = max(self._revision, response.header.revision)
        if record.kind == "grant":
            self._leases.append(response.ID)
        elif record.kind == "keep":
            if not response.TTL and request.ID in self._leases:
                self._leases.remove(request.ID)
        elif record.kind not in ("compact", "revoke", "past"):
            self._learn(request, response, response.header.revision)

    def _learn(self, request: Any, response: Any, revision: int) -> None:
        seen = self._seen
        if isinstance(request, PutRequest):
            seen[request.key] = KeyValue(value=request.value, mod_revision=revision)
        elif isinstance(request, RangeRequest):
            if not request.range_end:
                seen.pop(request.key, None)
            for kv in response.kvs:
                seen[kv.key] = kv
        elif isinstance(request, DeleteRangeRequest):
            seen.pop(request.key, None)
            for kv in response.prev_kvs:
                seen.pop(kv.key, None)
        else:
            operations = request.success if response.succeeded else request.failure
            for operation, answer in zip(operations, response.responses, strict=True):
                self._learn(
                    getattr(operation, operation.WhichOneof("request") or ""),
                    getattr(answer, answer.WhichOneof("response") or ""),
                    revision,
                )


class ReaderShape:
    """The requests of a client that only reads: a key, or everything that starts with a prefix."""

    __slots__ = ("_random", "_workload")

    def __init__(self, random: Random, history: History, workload: Workload, number: int) -> None:
        del history, number
        self._random = random
        self._workload = workload

    def next(self) -> PlannedRequest:
        """Return the next request."""
        random = self._random
        prefix, end = KEY_PREFIX, KEY_PREFIX_END
        if KUBERNETES in self._workload.shapes and random.random() < 0.5:
            prefix, end = OBJECT_PREFIX, OBJECT_PREFIX_END
        if random.random() < 0.3:
            return PlannedRequest("list", RangeRequest(key=prefix, range_end=end))
        key = prefix + b"%02d" % random.randrange(self._workload.keys)
        return PlannedRequest("get", RangeRequest(key=key))

    def learn(self, record: Record) -> None:
        """Ignore the answer: checks judge reads after the run."""


class CachedShape(EtcdShape):
    """The requests of a client that reads the same again and again, and writes it in between."""

    __slots__ = ("_asked", "_times")

    def __init__(self, random: Random, history: History, workload: Workload, number: int) -> None:
        super().__init__(random, history, workload, number)
        # The read that it repeats, and how often it will do so.
        self._asked = self._get()
        self._times = 0

    def next(self) -> PlannedRequest:
        """Return the next request."""
        random = self._random
        choice = random.random()
        if choice < 0.1:
            return self._put()
        if choice < 0.13:
            return self._delete()
        if not self._times:
            self._times = random.randint(1, 12)
            request = RangeRequest(key=self._key(), serializable=random.random() < 0.9)
            if choice < 0.5:
                request.key, request.range_end = KEY_PREFIX, KEY_PREFIX_END
            kind = "list" if request.range_end else "get"
            self._asked = PlannedRequest(kind, request, (), not request.serializable)
        self._times -= 1
        return self._asked

    def _key(self) -> bytes:
        return KEY_PREFIX + b"%02d" % self._random.randrange(min(2, self._workload.keys))
