"""The ledger: the required effect of every committed entry, by its caller and the state before it.

The ledger takes entries in the order of the log as soon as any member knows that they are
committed. A naive store, `kvorum.sim.model` for keys and `kvorum.sim.permissions` for users, runs
them, and determines the rows that a request writes, or the reason for its refusal. So the effect of
an entry is known before any member applies it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvorum.api.pb.etcdserverpb import AlarmRequest, InternalRaftRequest
from kvorum.sim import model, permissions
from kvorum.sim.history import Row, is_in_range
from kvorum.sim.permissions import State, Wanted
from kvorum.state.mvcc.keyvalue import key_of, lease_of

OTHER = "refused for another reason"
_NO_SPACE, _CORRUPT = 1, 2
_KEYS = ("put", "delete_range", "txn")
_TOUCHING = (*_KEYS, "compaction", "lease_grant", "lease_revoke")


@dataclass(slots=True, frozen=True)
class Entry:
    """A committed request, and its required outcome."""

    index: int
    kind: str
    """The name of its field in InternalRaftRequest."""
    request: Any
    user: str
    revision: int
    refusal: str | None
    """Why it must be refused; None if it must take effect."""


class Ledger:
    """All committed entries, the states of users between them, and the rows they must write."""

    __slots__ = (
        "_alarms",
        "_changed_at",
        "_keys",
        "_leases",
        "_mains",
        "_states",
        "entries",
        "expected",
        "last",
    )

    def __init__(self) -> None:
        self.last = 0
        """The index of the last entry taken."""
        self.entries: dict[tuple[str, bytes], list[Entry]] = {}
        """Entries by kind, and by the bytes of the request."""
        self.expected: dict[int, tuple[Row, ...]] = {}
        """The rows that every revision must write."""
        self._changed_at = [0]
        self._states = [State()]
        # The revision after each entry.
        self._mains = [1]
        self._keys = _Keys()
        self._leases: dict[int, set[bytes]] = {}
        self._alarms: set[tuple[int, int]] = set()

    # Queries.

    def state_at(self, index: int) -> State:
        """Return the state of the users after an entry."""
        return self._states[bisect_right(self._changed_at, index) - 1]

    def states(self, first: int, last: int) -> list[State]:
        """Return all states of the users after the entries from first to last."""
        start = bisect_right(self._changed_at, first) - 1
        return self._states[start : bisect_right(self._changed_at, max(first, last))]

    def main_at(self, index: int) -> int:
        """Return the revision of the store after an entry."""
        return self._mains[index]

    # Committed entries.

    def take(self, index: int, data: bytes) -> None:
        """Run the next committed entry; `data` is empty if the entry is no request."""
        assert index == self.last + 1, f"entry {index} follows {self.last}"
        self.last = index
        if data:
            envelope = InternalRaftRequest.FromString(data)
            kind = permissions.name_of(envelope)
            request, header = getattr(envelope, kind), envelope.header
            refusal = self._run(index, kind, request, header.username, header.auth_revision)
            entry = Entry(index, kind, request, header.username, header.auth_revision, refusal)
            self.entries.setdefault((kind, request.SerializeToString()), []).append(entry)
        self._mains.append(self._keys.main)

    def _run(self, index: int, kind: str, request: Any, user: str, revision: int) -> str | None:
        """Run a request; return why it is refused, or None."""
        if self._is_alarmed(kind, request):
            return OTHER
        state = self._states[-1]
        if permissions.is_change(kind):
            refusal = None
            if kind != "authenticate":
                refusal = state.admin_refusal(user, revision)
            if refusal is None:
                after, refusal = permissions.changed(state, kind, request, index)
                if after is not state:
                    self._changed_at.append(index)
                    self._states.append(after)
            return refusal
        for wanted in self._wants(kind, request) if state.is_enabled else ():
            refusal = self._refusal(state, user, revision, wanted)
            if refusal is not None:
                return refusal
        return self._execute(kind, request)

    def _is_alarmed(self, kind: str, request: Any) -> bool:
        types = {alarm for _, alarm in self._alarms}
        if _CORRUPT in types and kind in _TOUCHING:
            return True
        needs_space = kind in ("put", "lease_grant") or (kind == "txn" and _has_put(request))
        return _NO_SPACE in types and needs_space

    def _wants(self, kind: str, request: Any) -> Iterable[Wanted | int]:
        if kind == "put":
            return permissions.put_wants(request, self._leases)
        if kind == "delete_range":
            return permissions.delete_wants(request)
        if kind == "txn":
            return permissions.txn_wants(request, self._leases)
        return [request.ID] if kind == "lease_revoke" and request.ID in self._leases else ()

    def _refusal(self, state: State, user: str, revision: int, wanted: Wanted | int) -> str | None:
        if not isinstance(wanted, int):
            key, end, is_write = wanted
            return state.keys_refusal(user, revision, key, end, is_write=is_write)
        # Revoking a lease needs write access to all of its keys, or an administrator.
        if state.admin_refusal(user, revision) is None:
            return None
        refusals = (
            state.keys_refusal(user, revision, key, b"", is_write=True)
            for key in sorted(self._leases[wanted])
        )
        return next((each for each in refusals if each is not None), None)

    def _execute(self, kind: str, request: Any) -> str | None:
        keys, leases = self._keys, self._leases
        if kind == "lease_grant":
            leases.setdefault(request.ID, set())
        elif kind == "lease_revoke":
            if request.ID not in leases:
                return OTHER
            transaction = keys.begin()
            for key in sorted(leases[request.ID]):
                transaction.delete(key)
            self._write(transaction.rows)
            del leases[request.ID]
        elif kind == "alarm":
            alarm = (request.memberID, request.alarm)
            if request.action == AlarmRequest.ACTIVATE and request.alarm:
                self._alarms.add(alarm)
            elif request.action == AlarmRequest.DEACTIVATE:
                self._alarms.discard(alarm)
        elif kind in _KEYS:
            puts = [request] if kind == "put" else _puts_that_run(keys.begin(), request)
            if any(put.lease and put.lease not in leases for put in puts):
                return OTHER
            self._write(model.run(keys, request, keys.main, keys.main + 1)[1])
        return None

    def _write(self, rows: list[Row]) -> None:
        if not rows:
            return
        keys = self._keys
        keys.main += 1
        self.expected[keys.main] = tuple(rows)
        for revision, kv in rows:
            key = key_of(kv)
            before = keys.kvs.pop(key, None)
            if before is not None and lease_of(before):
                self._leases[lease_of(before)].discard(key)
            if not revision & 1:
                keys.kvs[key] = kv
                if lease_of(kv):
                    self._leases[lease_of(kv)].add(key)


class _Keys:
    """The present keys, with the interface of a history."""

    __slots__ = ("kvs", "main")

    def __init__(self) -> None:
        self.kvs: dict[bytes, bytes] = {}
        self.main = 1

    def begin(self) -> model.Transaction:
        return model.Transaction(self, self.main, self.main + 1)

    def all_keys(self) -> Iterable[bytes]:
        """Return every key, in order."""
        return sorted(self.kvs)

    def at(self, key: bytes, _main: int) -> bytes | None:
        """Return the encoded key-value of a key."""
        return self.kvs.get(key)

    def range_at(self, key: bytes, end: bytes, _main: int) -> list[bytes]:
        """Return the encoded key-values of a range, in the order of keys."""
        return [self.kvs[each] for each in sorted(self.kvs) if is_in_range(each, key, end)]


def _has_put(request: Any) -> bool:
    return any(
        each.HasField("request_put")
        or (each.HasField("request_txn") and _has_put(each.request_txn))
        for each in (*request.success, *request.failure)
    )


def _puts_that_run(transaction: model.Transaction, request: Any) -> Iterator[Any]:
    """Return the puts that a transaction's compares choose; nothing for another request."""
    if not hasattr(request, "compare"):
        return
    branch = request.success if model.holds(transaction, request.compare) else request.failure
    for each in branch:
        if each.HasField("request_put"):
            yield each.request_put
        elif each.HasField("request_txn"):
            yield from _puts_that_run(transaction, each.request_txn)
