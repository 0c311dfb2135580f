"""The keys that a leasing client owns: read without a call until another client wants to write.

Keys and values on the wire are those of Go's leasing package. Rules:

- For every owned key there is an ownership key, on the lease of this client's session. Who writes
  the key without owning it asks for that key's removal first, and waits for it.
- What is owned is given up before its ownership key is removed, so nobody reads here what was
  already changed elsewhere.
- A key whose own write is under way, or ended in doubt, is not answered from here.
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
from kvorum.client.watching import Watch, Watching

REVOKE: Final = b"REVOKE"
"""What an ownership key is set to by whoever wants its owner to give it up."""
REST_SECONDS: Final = 2.0
"""How long a key is not taken again after it was given up: others want to write it."""
RESTS_MAX: Final = 1000
"""So many keys that were given up are remembered before the old ones are forgotten."""
CALL_SECONDS_MAX: Final = 5.0
ATTEMPTS_MAX: Final = 3
"""How often it is tried to remove an ownership key before the lease goes with it."""


class Names:
    """Ownership keys: inside a namespace, a prefix in front of what they are for."""

    __slots__ = ("_namespace", "_prefix")

    def __init__(self, namespace: bytes, prefix: bytes) -> None:
        self._namespace = namespace
        self._prefix = namespace + prefix

    def of(self, key: bytes) -> bytes:
        """Return the ownership key of a key."""
        return self._prefix + key[len(self._namespace) :]

    def owned(self, name: bytes) -> bytes:
        """Return the key that an ownership key is for."""
        return self._namespace + name[len(self._prefix) :]

    def of_range(self, keys: KeyRange) -> KeyRange:
        """Return the ownership keys of all keys of a range, or of one key."""
        key, end = keys
        if not end:
            return KeyRange(self.of(key), b"")
        is_inside = end != ALL and end.startswith(self._namespace)
        return KeyRange(self.of(key), self.of(end) if is_inside else prefix_end(self._prefix))


class Standing(Enum):
    """How far the ownership of a key is."""

    ASKED = "is asked for"
    OWNED = "is owned"
    LEFT = "was given up, and its ownership key is being removed"


class Owned:
    """A key, and what is known of it."""

    __slots__ = ("as_of", "kv", "revision", "standing", "watch", "writes")

    def __init__(self) -> None:
        self.standing: Standing = Standing.ASKED
        self.revision: int = 0
        """The ownership key is not newer than this revision."""
        self.kv: KeyValue | None = None
        """The key itself; None if it does not exist."""
        self.as_of: int = 0
        """The revision of the store at which it was so."""
        self.writes: int = 0
        """How many writes of this client's are under way; until they end it is not known."""
        self.watch: Watch | None = None


class Owning:
    """What one session of a leasing client owns. All of it is used in turns of the shell."""

    def __init__(self, core: Core, watching: Watching, names: Names, lease: int) -> None:
        self._core = core
        self._watching = watching
        self._names = names
        self.lease: int = lease
        self.has_ended: bool = False
        """Whether nothing is owned any more, and nothing will be."""
        self._owned: dict[bytes, Owned] = {}
        self._rests: dict[bytes, float] = {}
        """Until when keys are not taken again."""
        self._header = pb.ResponseHeader()

    # Reading.

    def read(self, request: pb.RangeRequest) -> pb.RangeResponse | None:
        """Return the answer to a read of one key; None if it is not known here."""
        owned = self._known(request.key)
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
        """Return the answer to a transaction that only reads what is known here, or None."""
        succeeded = True
        for compare in request.compare:
            owned = self._known(compare.key)
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
        # Without keys there is nothing that could be known here.
        return response if request.compare or response.responses else None

    def _known(self, key: bytes) -> Owned | None:
        owned = self._owned.get(key)
        is_known = owned is not None and owned.standing is Standing.OWNED and not owned.writes
        return owned if is_known and not self.has_ended else None

    def owns(self, key: bytes) -> bool:
        """Return whether a key is owned."""
        owned = self._owned.get(key)
        return owned is not None and owned.standing is Standing.OWNED

    # Taking.

    def ask(self, request: pb.RangeRequest) -> pb.TxnRequest | None:
        """Return the transaction that reads a key and takes it; None if it is not to be taken now.

        `granted` or `refused` tells how it ended. If it is not taken, it answers the request.
        """
        key = request.key
        if self.has_ended or key in self._owned or self._rests.get(key, 0.0) > self._core.now:
            return None
        self._rests.pop(key, None)
        self._owned[key] = Owned()
        name = self._names.of(key)
        take = pb.PutRequest(key=name, lease=self.lease)
        return pb.TxnRequest(
            compare=[
                pb.Compare(key=name, target=pb.Compare.CREATE, create_revision=0),
                # A key with a lease of its own ends without anybody asking its owner.
                pb.Compare(key=key, target=pb.Compare.LEASE, lease=0),
            ],
            success=[
                pb.RequestOp(request_range=pb.RangeRequest(key=key)),
                pb.RequestOp(request_put=take),
            ],
            failure=[pb.RequestOp(request_range=request)],
        )

    def granted(self, key: bytes, response: pb.TxnResponse) -> None:
        """Own a key from now on: its ownership key is there, and the key was read with that."""
        owned = self._owned[key]
        owned.standing = Standing.OWNED
        owned.revision = response.header.revision
        self._fill(owned, response.responses[0].response_range, response.header)
        request = watch_request(
            KeyRange(self._names.of(key), b""),
            owned.revision + 1,
            previous=False,
            progress=False,
            puts=True,
            deletes=True,
        )
        owned.watch = self._watching.begin(
            request, lambda: self._changed(key, owned), owned.revision
        )

    def refused(self, key: bytes) -> None:
        """Leave a key alone for a while: it is another's, or nobody may own it."""
        self._owned.pop(key, None)
        self._rest(key)

    # Writing.

    def begin_write(self, written: Iterable[KeyRange]) -> dict[bytes, Owned]:
        """Note that keys are being written; return those of them that are owned."""
        found = {
            key: owned
            for keys in written
            for key, owned in self._in_range(keys)
            if owned.standing is Standing.OWNED
        }
        for owned in found.values():
            owned.writes += 1
        return found

    def end_write(self, written: dict[bytes, Owned]) -> None:
        """Note that keys were not written after all."""
        for owned in written.values():
            owned.writes -= 1

    def wrote(
        self,
        written: dict[bytes, Owned],
        found: dict[bytes, pb.RangeResponse],
        header: pb.ResponseHeader,
    ) -> None:
        """Note what keys are after a write; those that were not read with it are given up."""
        for key, owned in written.items():
            owned.writes -= 1
            if owned.standing is Standing.OWNED:
                if key in found:
                    self._fill(owned, found[key], header)
                if key not in found or (owned.kv is not None and owned.kv.lease):
                    self.leave(key, owned)

    def doubt(self, written: dict[bytes, Owned]) -> None:
        """Give keys up whose write failed: it may still be on its way."""
        for key, owned in written.items():
            owned.writes -= 1
            self.leave(key, owned)

    def _in_range(self, keys: KeyRange) -> list[tuple[bytes, Owned]]:
        if not keys.end:
            owned = self._owned.get(keys.key)
            return [] if owned is None else [(keys.key, owned)]
        return [
            (key, owned)
            for key, owned in self._owned.items()
            if keys.key <= key and (keys.end == ALL or key < keys.end)
        ]

    def _fill(self, owned: Owned, found: pb.RangeResponse, header: pb.ResponseHeader) -> None:
        # Only this client writes it, so the newest of its answers tells what it is.
        if header.revision > owned.as_of:
            owned.as_of = header.revision
            owned.kv = found.kvs[0] if found.kvs else None
        if header.revision > self._header.revision:
            self._header.CopyFrom(header)

    # Giving up.

    def _changed(self, key: bytes, owned: Owned) -> None:
        """Take what the watch of an ownership key tells: any change of it ends the ownership."""
        watch = owned.watch
        if watch is None:
            return
        changes = self._watching.take(watch)
        if watch.error is not None or (changes is not None and changes.events):
            self.leave(key, owned)

    def leave(self, key: bytes, owned: Owned) -> None:
        """Answer for a key no longer, and let others have it."""
        if owned.standing is not Standing.OWNED:
            return
        owned.standing = Standing.LEFT
        if owned.watch is not None:
            self._watching.cancel(owned.watch)
            owned.watch = None
        self._remove(key, ATTEMPTS_MAX)

    def _remove(self, key: bytes, attempts: int) -> None:
        if self.has_ended:
            return
        name = self._names.of(key)
        request = pb.TxnRequest(
            compare=[pb.Compare(key=name, target=pb.Compare.LEASE, lease=self.lease)],
            success=[pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=name))],
        )

        def answered(answer: bytes | KvorumError) -> None:
            if isinstance(answer, bytes):
                self._owned.pop(key, None)
                self._rest(key)
            elif attempts > 1 and not isinstance(answer, ClosedError):
                self._remove(key, attempts - 1)
            else:
                self.end()

        self._core.start(rpcs.TXN, request.SerializeToString(), CALL_SECONDS_MAX, answered)

    def _rest(self, key: bytes) -> None:
        now = self._core.now
        if len(self._rests) >= RESTS_MAX:
            self._rests = {each: until for each, until in self._rests.items() if until > now}
        self._rests[key] = now + REST_SECONDS

    def end(self) -> None:
        """Own nothing any more: the lease ends, and with it every ownership key.

        This is also for a key of which nobody can say whether it is owned: an ownership key that
        nobody answers for would hold up all writers for as long as the session is kept alive.
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

        def answered(answer: bytes | KvorumError) -> None:
            if isinstance(answer, UnavailableError | DeadlineError):
                self._revoke()

        self._core.start(rpcs.LEASE_REVOKE, request, CALL_SECONDS_MAX, answered)


def written_by(step: pb.RequestOp) -> list[KeyRange]:
    """Return the keys that a step may write, each once."""
    return list(dict.fromkeys(_written_by(step)))


def _written_by(step: pb.RequestOp) -> Iterator[KeyRange]:
    match step.WhichOneof("request"):
        case "request_put":
            yield KeyRange(step.request_put.key, b"")
        case "request_delete_range":
            yield KeyRange(step.request_delete_range.key, step.request_delete_range.range_end)
        case "request_txn":
            for each in (*step.request_txn.success, *step.request_txn.failure):
                yield from _written_by(each)


def guarded(
    names: Names,
    step: pb.RequestOp,
    newest: dict[KeyRange, int],
    read: Iterable[bytes],
) -> pb.TxnRequest:
    """Return the transaction that does a step if no other client owns what it writes.

    `newest` has what is written, and the newest revision at which an ownership key of it that does
    not stand in the way was created. Behind the step keys are read; if it is not done, all
    ownership keys of what it writes are read instead.
    """
    request = pb.TxnRequest(success=[step])
    for key in read:
        request.success.add().request_range.key = key
    for keys, revision in newest.items():
        name = names.of_range(keys)
        request.compare.add(
            key=name.key,
            range_end=name.end,
            target=pb.Compare.CREATE,
            result=pb.Compare.LESS,
            create_revision=revision + 1,
        )
        request.failure.add(request_range=pb.RangeRequest(key=name.key, range_end=name.end))
    return request


def revoking(kv: KeyValue) -> pb.TxnRequest:
    """Return the transaction that asks an owner to give its key up, if it is still the same."""
    return pb.TxnRequest(
        compare=[
            pb.Compare(key=kv.key, target=pb.Compare.CREATE, create_revision=kv.create_revision)
        ],
        success=[
            pb.RequestOp(request_put=pb.PutRequest(key=kv.key, value=REVOKE, ignore_lease=True))
        ],
    )


def _is_wanted(kv: KeyValue, request: pb.RangeRequest) -> bool:
    """Return whether a read of one key shows it."""
    return (
        not request.count_only
        and kv.mod_revision >= request.min_mod_revision
        and kv.create_revision >= request.min_create_revision
        and (not request.max_mod_revision or kv.mod_revision <= request.max_mod_revision)
        and (not request.max_create_revision or kv.create_revision <= request.max_create_revision)
    )


def _holds(compare: pb.Compare, kv: KeyValue | None) -> bool:
    """Return whether a condition holds of a key; None has no value, and else only zeros."""
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
