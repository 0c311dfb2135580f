"""Requests as Kubernetes makes them: objects are created, updated and deleted by their revision.

Every write is a transaction that compares the object's modification revision with the one last
seen; where the compare fails, the answer has the current object, and the next attempt starts from
it. Lists come in pages, all of one revision.
"""

from random import Random

from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    Compare,
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.sim.calls import PlannedRequest
from kvorum.sim.history import History, Record
from kvorum.sim.workloads import OBJECT_PREFIX, OBJECT_PREFIX_END, Workload

PAGE = 3


class KubernetesShape:
    """The requests of one client."""

    __slots__ = ("_history", "_number", "_objects", "_page", "_random", "_values", "_workload")

    def __init__(self, random: Random, history: History, workload: Workload, number: int) -> None:
        self._random = random
        self._history = history
        self._workload = workload
        self._number = number
        self._values = 0
        self._objects: dict[bytes, KeyValue] = {}
        # Where the next page of a list begins, and its revision.
        self._page: tuple[bytes, int] | None = None

    def next(self) -> PlannedRequest:
        """Return the next request."""
        random = self._random
        if self._page is not None:
            key, revision = self._page
            self._page = None
            request = RangeRequest(
                key=key, range_end=OBJECT_PREFIX_END, limit=PAGE, revision=revision
            )
            return PlannedRequest("page", request)
        choice = random.random()
        if choice < 0.15:
            request = RangeRequest(key=OBJECT_PREFIX, range_end=OBJECT_PREFIX_END, limit=PAGE)
            return PlannedRequest("list", request)
        key = OBJECT_PREFIX + b"%02d" % random.randrange(self._workload.keys)
        if choice < 0.25:
            return PlannedRequest("get", RangeRequest(key=key))
        if choice < 0.28 and self._history.revision > PAGE:
            return PlannedRequest(
                "compact", CompactionRequest(revision=self._history.revision - random.randint(0, 9))
            )
        known = self._objects.get(key)
        if known is None:
            return self._write("create", key, None)
        return self._write("update" if choice < 0.8 else "delete", key, known)

    def _write(self, kind: str, key: bytes, known: KeyValue | None) -> PlannedRequest:
        revision = 0 if known is None else known.mod_revision
        operation = RequestOp(request_delete_range=DeleteRangeRequest(key=key))
        if kind != "delete":
            self._values += 1
            value = b"%d.%d" % (self._number, self._values)
            operation = RequestOp(request_put=PutRequest(key=key, value=value))
        request = TxnRequest(
            compare=[Compare(key=key, target=Compare.MOD, mod_revision=revision)],
            success=[operation],
            failure=[RequestOp(request_range=RangeRequest(key=key))],
        )
        return PlannedRequest(kind, request, ((key, None if known is None else known.value),))

    def learn(self, record: Record) -> None:
        """Remember objects, and where the next page of a list begins."""
        request, response = record.request, record.response
        if isinstance(request, TxnRequest):
            key, revision = request.compare[0].key, response.header.revision
            if not response.succeeded:
                self._found(key, response.responses[0].response_range.kvs)
            elif record.kind == "delete":
                self._objects.pop(key, None)
            else:
                value = request.success[0].request_put.value
                self._objects[key] = KeyValue(value=value, mod_revision=revision)
        elif record.kind == "get":
            self._found(request.key, response.kvs)
        elif isinstance(request, RangeRequest):
            for kv in response.kvs:
                self._objects[kv.key] = kv
            if response.more:
                revision = request.revision or response.header.revision
                self._page = (response.kvs[-1].key + b"\0", revision)

    def _found(self, key: bytes, kvs: object) -> None:
        self._objects.pop(key, None)
        for kv in kvs:  # type: ignore[attr-defined]
            self._objects[kv.key] = kv
