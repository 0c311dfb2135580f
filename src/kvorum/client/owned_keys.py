"""The keys that a leasing client owns: it reads them locally until another client wants to write.

Keys and values on the wire are those of Go's leasing package. Rules:

- For every owned key there is an ownership key, attached to the lease of this client's session. A
  client that writes the key without owning it first asks the owner to remove the ownership key, and
  waits for that.
- The client stops answering for a key before it removes the ownership key, so no local read returns
  a value that another client has already changed.
- The client does not answer for a key while its own write of the key is under way, or after that
  write ended in doubt.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, Final

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.api.ranges import prefix_end
from kvorum.client import rpcs
from kvorum.client.core import Core
from kvorum.client.errors import ClosedError, DeadlineError, KvorumError, UnavailableError
from kvorum.client.keys import ALL, KeyRange
from kvorum.client.operations import watch_request
from kvorum.client.watch_set import Watch, WatchSet

REVOKE: Final = b"REVOKE"
"""The value that a client writes to an ownership key to ask its owner for the removal."""
REST_SECONDS: Final = 2.0
"""How long a client does not take a released key again, so that others can write the key."""
RESTS_MAX: Final = 1000
"""From this many resting keys on, those whose rest is over are removed from memory."""
CALL_SECONDS_MAX: Final = 5.0
ATTEMPTS_MAX: Final = 3
"""How often the client tries to remove an ownership key before it revokes the lease instead."""


class OwnershipNames:
    """The names of ownership keys: inside a namespace, a prefix before the owned key."""

    __slots__ = ("_namespace", "_prefix")

    def __init__(self, namespace: bytes, prefix: bytes) -> None:
        self._namespace = namespace
        self._prefix = namespace + prefix

    def ownership_key(self, key: bytes) -> bytes:
        """Return the ownership key of a key."""
        return self._prefix + key[len(self._namespace) :]

    def owned_key(self, name: bytes) -> bytes:
        """Return the key that an ownership key is for."""
        return self._namespace + name[len(self._prefix) :]

    def ownership_range(self, keys: KeyRange) -> KeyRange:
        """Return the ownership keys of all keys of a range, or of one key."""
        key, end = keys
        if not end:
            return KeyRange(self.ownership_key(key), b"")
        is_inside = end != ALL and end.startswith(self._namespace)
        return KeyRange(
            self.ownership_key(key),
            self.ownership_key(end) if is_inside else prefix_end(self._prefix),
        )


class OwnershipState(Enum):
    """The states of a key's ownership."""

    REQUESTED = "is asked for"
    OWNED = "is owned"
    RELEASED = "was released, and its ownership key is being removed"


class OwnedKey:
    """A key that is owned, requested or being released, and its last known state."""

    __slots__ = ("as_of", "kv", "revision", "state", "watch", "writes")

    def __init__(self) -> None:
        self.state: OwnershipState = OwnershipState.REQUESTED
        self.revision: int = 0
        """The ownership key was not created after this revision."""
        self.kv: KeyValue | None = None
        """The key itself; None if it does not exist."""
        self.as_of: int = 0
        """The revision of the store at which `kv` was read."""
        self.writes: int = 0
        """How many writes of this client are under way; until they end `kv` is uncertain."""
        self.watch: Watch | None = None


class OwnedKeys:
    """The keys that one session of a leasing client owns. Use it only in turns of the shell."""

    def __init__(self, core: Core, watching: WatchSet, names: OwnershipNames, lease: int) -> None:
        self._core = core
        self._watching = watching
        self._names = names
        self.lease: int = lease
        self.has_ended: bool = False
        """Whether the session has released all keys and takes no new ones."""
        self._owned: dict[bytes, OwnedKey] = {}
        self._rests: dict[bytes, float] = {}
        """Until when the session does not take each released key again."""
        self._header = pb.ResponseHeader()

    # Reading.

    def read(self, request: pb.RangeRequest) -> pb.RangeResponse | None:
        """Return the answer to a read of one key; None if only the server has it."""
        owned = self._readable(request.key)
        if owned is None or request.range_end or request.revision:
            return None
        response = pb.RangeResponse(header=self._header)
        kv = owned.kv
        if kv is not None:
            response.count = 1
            if _is_wanted(kv, request):
                shown = response.kvs.add()
                shown.CopyFrom(kv)
                if request.keys_only:
                    shown.ClearField("value")
        return response

    def transact(self, request: pb.TxnRequest) -> pb.TxnResponse | None:
        """Return the answer to a transaction that only reads owned keys; None for any other."""
        succeeded = True
        for compare in request.compare:
            owned = self._readable(compare.key)
            if owned is None or compare.range_end:
                return None
            succeeded = succeeded and _holds(compare, owned.kv)
        response = pb.TxnResponse(header=self._header, succeeded=succeeded)
        for step in request.success if succeeded else request.failure:
            found = self.read(step.request_range) if step.HasField("request_range") else None
            if found is None:
                return None
            found.ClearField("header")
            response.responses.add().response_range.CopyFrom(found)
        # A transaction without keys concerns no owned key.
        return response if request.compare or response.responses else None

    def _readable(self, key: bytes) -> OwnedKey | None:
        owned = self._owned.get(key)
        is_known = owned is not None and owned.state is OwnershipState.OWNED and not owned.writes
        return owned if is_known and not self.has_ended else None

    def owns(self, key: bytes) -> bool:
        """Return whether a key is owned."""
        owned = self._owned.get(key)
        return owned is not None and owned.state is OwnershipState.OWNED

    # Taking.

    def request_ownership(self, request: pb.RangeRequest) -> pb.TxnRequest | None:
        """Return the transaction that reads and takes a key; None if the key must not be taken now.

        The caller reports its result to `note_granted` or `note_refused`. If the transaction cannot
        take the key, its response answers the request.
        """
        key = request.key
        if self.has_ended or key in self._owned or self._rests.get(key, 0.0) > self._core.now:
            return None
        self._rests.pop(key, None)
        self._owned[key] = OwnedKey()
        name = self._names.ownership_key(key)
        take = pb.PutRequest(key=name, lease=self.lease)
        return pb.TxnRequest(
            compare=[
                pb.Compare(key=name, target=pb.Compare.CREATE, create_revision=0),
                # The server deletes a key with a lease of its own without asking the owner.
                pb.Compare(key=key, target=pb.Compare.LEASE, lease=0),
            ],
            success=[
                pb.RequestOp(request_range=pb.RangeRequest(key=key)),
                pb.RequestOp(request_put=take),
            ],
            failure=[pb.RequestOp(request_range=request)],
        )

    def note_granted(self, key: bytes, response: pb.TxnResponse) -> None:
        """Own a key: the transaction has created its ownership key and read the key."""
        owned = self._owned[key]
        owned.state = OwnershipState.OWNED
        owned.revision = response.header.revision
        self._fill(owned, response.responses[0].response_range, response.header)
        request = watch_request(
            KeyRange(self._names.ownership_key(key), b""),
            owned.revision + 1,
            previous=False,
            progress=False,
            puts=True,
            deletes=True,
        )
        owned.watch = self._watching.begin(
            request, lambda: self._take_changes(key, owned), owned.revision
        )

    def note_refused(self, key: bytes) -> None:
        """Do not take a key again for a while: another client owns it, or no client may."""
        self._owned.pop(key, None)
        self._rest(key)

    # Writing.

    def begin_write(self, written: Iterable[KeyRange]) -> dict[bytes, OwnedKey]:
        """Record that a write of keys starts; return the owned ones among them."""
        found = {
            key: owned
            for keys in written
            for key, owned in self._in_range(keys)
            if owned.state is OwnershipState.OWNED
        }
        for owned in found.values():
            owned.writes += 1
        return found

    def end_write(self, written: dict[bytes, OwnedKey]) -> None:
        """Record that keys were not written after all."""
        for owned in written.values():
            owned.writes -= 1

    def note_written(
        self,
        written: dict[bytes, OwnedKey],
        found: dict[bytes, pb.RangeResponse],
        header: pb.ResponseHeader,
    ) -> None:
        """Update keys after a write; release those that it did not read, or that have a lease."""
        for key, owned in written.items():
            owned.writes -= 1
            if owned.state is OwnershipState.OWNED:
                if key in found:
                    self._fill(owned, found[key], header)
                if key not in found or (owned.kv is not None and owned.kv.lease):
                    self.release(key, owned)

    def note_doubt(self, written: dict[bytes, OwnedKey]) -> None:
        """Release keys whose write failed, because that write may still take effect."""
        for key, owned in written.items():
            owned.writes -= 1
            self.release(key, owned)

    def _in_range(self, keys: KeyRange) -> list[tuple[bytes, OwnedKey]]:
        if not keys.end:
            owned = self._owned.get(keys.key)
            return [] if owned is None else [(keys.key, owned)]
        return [
            (key, owned)
            for key, owned in self._owned.items()
            if keys.key <= key and (keys.end == ALL or key < keys.end)
        ]

    def _fill(self, owned: OwnedKey, found: pb.RangeResponse, header: pb.ResponseHeader) -> None:
        # Only this client writes the key, so the newest answer has the key's present state.
        if header.revision > owned.as_of:
            owned.as_of = header.revision
            owned.kv = found.kvs[0] if found.kvs else None
        if header.revision > self._header.revision:
            self._header.CopyFrom(header)

    # Releasing.

    def _take_changes(self, key: bytes, owned: OwnedKey) -> None:
        """Handle the watch of an ownership key: any change of that key ends the ownership."""
        watch = owned.watch
        if watch is None:
            return
        changes = self._watching.take(watch)
        if watch.error is not None or (changes is not None and changes.events):
            self.release(key, owned)

    def release(self, key: bytes, owned: OwnedKey) -> None:
        """Release a key: stop answering for it, and remove its ownership key."""
        if owned.state is not OwnershipState.OWNED:
            return
        owned.state = OwnershipState.RELEASED
        if owned.watch is not None:
            self._watching.cancel(owned.watch)
            owned.watch = None
        self._remove(key, ATTEMPTS_MAX)

    def _remove(self, key: bytes, attempts: int) -> None:
        if self.has_ended:
            return
        name = self._names.ownership_key(key)
        request = pb.TxnRequest(
            compare=[pb.Compare(key=name, target=pb.Compare.LEASE, lease=self.lease)],
            success=[pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=name))],
        )

        def take_answer(answer: bytes | KvorumError) -> None:
            if isinstance(answer, bytes):
                self._owned.pop(key, None)
                self._rest(key)
            elif attempts > 1 and not isinstance(answer, ClosedError):
                self._remove(key, attempts - 1)
            else:
                self.end()

        self._core.start(rpcs.TXN, request.SerializeToString(), CALL_SECONDS_MAX, take_answer)

    def _rest(self, key: bytes) -> None:
        now = self._core.now
        if len(self._rests) >= RESTS_MAX:
            self._rests = {each: until for each, until in self._rests.items() if until > now}
        self._rests[key] = now + REST_SECONDS

    def end(self) -> None:
        """Release all keys: revoke the lease, and with it every ownership key.

        This is also the way out if it is unknown whether the session owns a key: an ownership key
        that no client answers for would block all writers while the session is kept alive.
        """
        if self.has_ended:
            return
        self.has_ended = True
        for owned in self._owned.values():
            if owned.watch is not None:
                self._watching.cancel(owned.watch)
        self._owned.clear()
        self._revoke()

    def _revoke(self) -> None:
        request = pb.LeaseRevokeRequest(ID=self.lease).SerializeToString()

        def take_answer(answer: bytes | KvorumError) -> None:
            if isinstance(answer, UnavailableError | DeadlineError):
                self._revoke()

        self._core.start(rpcs.LEASE_REVOKE, request, CALL_SECONDS_MAX, take_answer)


def written_ranges(step: pb.RequestOp) -> list[KeyRange]:
    """Return the keys and ranges that a step may write, each once."""
    return list(dict.fromkeys(_iterate_written_ranges(step)))


def _iterate_written_ranges(step: pb.RequestOp) -> Iterator[KeyRange]:
    match step.WhichOneof("request"):
        case "request_put":
            yield KeyRange(step.request_put.key, b"")
        case "request_delete_range":
            yield KeyRange(step.request_delete_range.key, step.request_delete_range.range_end)
        case "request_txn":
            for each in (*step.request_txn.success, *step.request_txn.failure):
                yield from _iterate_written_ranges(each)


def make_guarded_txn(
    names: OwnershipNames,
    step: pb.RequestOp,
    newest: dict[KeyRange, int],
    read: Iterable[bytes],
) -> pb.TxnRequest:
    """Return the transaction that performs a step if no other client owns the keys it writes.

    `newest` maps each written key or range to a revision: only ownership keys that were created
    later block the step. After the step the transaction reads the keys in `read`. If the step is
    blocked, the transaction reads the ownership keys of all written keys instead.
    """
    request = pb.TxnRequest(success=[step])
    for key in read:
        request.success.add().request_range.key = key
    for keys, revision in newest.items():
        name = names.ownership_range(keys)
        request.compare.add(
            key=name.key,
            range_end=name.end,
            target=pb.Compare.CREATE,
            result=pb.Compare.LESS,
            create_revision=revision + 1,
        )
        request.failure.add(request_range=pb.RangeRequest(key=name.key, range_end=name.end))
    return request


def make_revoke_txn(kv: KeyValue) -> pb.TxnRequest:
    """Return the transaction that asks an owner for its key, unless the owner has changed."""
    return pb.TxnRequest(
        compare=[
            pb.Compare(key=kv.key, target=pb.Compare.CREATE, create_revision=kv.create_revision)
        ],
        success=[
            pb.RequestOp(request_put=pb.PutRequest(key=kv.key, value=REVOKE, ignore_lease=True))
        ],
    )


def _is_wanted(kv: KeyValue, request: pb.RangeRequest) -> bool:
    """Return whether the answer to a read of one key contains the key."""
    return (
        not request.count_only
        and kv.mod_revision >= request.min_mod_revision
        and kv.create_revision >= request.min_create_revision
        and (not request.max_mod_revision or kv.mod_revision <= request.max_mod_revision)
        and (not request.max_create_revision or kv.create_revision <= request.max_create_revision)
    )


def _holds(compare: pb.Compare, kv: KeyValue | None) -> bool:
    """Return whether a condition holds for a key; a missing key has no value, but zero numbers."""
    if kv is None:
        if compare.target == pb.Compare.VALUE:
            return False
        kv = KeyValue()
    name = _TARGETS[compare.target]
    return _RESULTS[compare.result](getattr(kv, name), getattr(compare, name))


_TARGETS: Final = {
    pb.Compare.VERSION: "version",
    pb.Compare.CREATE: "create_revision",
    pb.Compare.MOD: "mod_revision",
    pb.Compare.VALUE: "value",
    pb.Compare.LEASE: "lease",
}
_RESULTS: Final[dict[int, Callable[[Any, Any], bool]]] = {
    pb.Compare.EQUAL: operator.eq,
    pb.Compare.NOT_EQUAL: operator.ne,
    pb.Compare.GREATER: operator.gt,
    pb.Compare.LESS: operator.lt,
}
