# Written by `make client` from kvorum/client/aio; change that.
"""A leasing client: it owns keys that it has read, and reads them locally until others write.

All clients that write those keys must be leasing clients with the same prefix, ours or Go's.
"""

from typing import TYPE_CHECKING

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.client import rpcs
from kvorum.client.errors import CallError, ClosedError, KvorumError
from kvorum.client.keys import KeyRange
from kvorum.client.operations import Operation
from kvorum.client.owned_keys import (
    OwnedKey,
    OwnedKeys,
    OwnershipNames,
    make_guarded_txn,
    make_revoke_txn,
    written_ranges,
)
from kvorum.client.rpcs import Rpc
from kvorum.client.sync.carrier import Carrier
from kvorum.client.sync.recipes.sessions import Session, begin_session
from kvorum.client.sync.recipes.waiting import CALL_SECONDS_MIN, Deadline
from kvorum.client.threads import clock

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client

BEGIN_SECONDS = 1.0
"""How long the client waits after a failure to begin a session before it tries again."""
READ_KEYS_MAX = 32
"""How many owned keys stay owned when one transaction writes them."""


class Leasing:
    """Carries the calls of a leasing client."""

    def __init__(
        self,
        client: "Client",
        below: Carrier,
        namespace: bytes,
        prefix: bytes,
        ttl: int,
    ) -> None:
        self._client = client
        """A client without a namespace."""
        self._below = below
        self._shell = client.shell
        self._names = OwnershipNames(namespace, prefix)
        self._ttl = ttl
        self._session: Session | None = None
        self._owning: OwnedKeys | None = None
        self._is_beginning = False
        self._begin_at = 0.0
        self._is_closed = False

    def close(self) -> None:
        """Release all owned keys, and end the session."""
        with self._shell.turn():
            self._is_closed = True
            owning, session = self._owning, self._session
            self._owning = self._session = None
            if owning is not None:
                owning.end()
        if session is not None:
            session.close()

    def call(self, rpc: Rpc, message: bytes, seconds_max: float, at: int | None = None) -> bytes:
        """Make a call, or answer it from the owned keys."""
        if self._is_closed:
            raise ClosedError("the leasing client is closed")
        if rpc.path == rpcs.RANGE.path and at is None:
            return self._read(rpc, message, seconds_max)
        if rpc is rpcs.PUT:
            put = pb.RequestOp(request_put=pb.PutRequest.FromString(message))
            answer = (self._write(put, seconds_max)).response_put
            return answer.SerializeToString()
        if rpc is rpcs.DELETE_RANGE:
            request = pb.DeleteRangeRequest.FromString(message)
            delete = pb.RequestOp(request_delete_range=request)
            answered = (self._write(delete, seconds_max)).response_delete_range
            return answered.SerializeToString()
        if rpc.path == rpcs.TXN.path:
            return self._transact(rpc, message, seconds_max)
        return self._below.call(rpc, message, seconds_max, at)

    # Reading.

    def _read(self, rpc: Rpc, message: bytes, seconds_max: float) -> bytes:
        request = pb.RangeRequest.FromString(message)
        until = clock() + seconds_max
        if not request.range_end and not request.revision:
            owning = self._current()
            with self._shell.turn():
                found = None if owning is None else owning.read(request)
            if found is not None:
                return found.SerializeToString()
            if not request.serializable:
                taken = self._take(request, until)
                if taken is not None:
                    return taken.SerializeToString()
        return self._below.call(rpc, message, _seconds_to(until))

    def _take(self, request: pb.RangeRequest, until: float) -> pb.RangeResponse | None:
        """Read and own a key, if possible; None if the caller must read it as usual."""
        owning = self._current() or self._begin()
        if owning is None:
            return None
        with self._shell.turn():
            asked = owning.request_ownership(request)
        if asked is None:
            return None
        try:
            answer = self._below.call(rpcs.TXN, asked.SerializeToString(), _seconds_to(until))
        except CallError:
            # The server refused: perhaps the user may not write ownership keys.
            with self._shell.turn():
                owning.note_refused(request.key)
            return None
        except BaseException as error:
            with self._shell.turn():
                owning.end()
            if isinstance(error, KvorumError):
                return None
            raise
        response = pb.TxnResponse.FromString(answer)
        with self._shell.turn():
            if owning.has_ended:
                return None
            if response.succeeded:
                owning.note_granted(request.key, response)
                self._shell.start_reading()
                return owning.read(request)
            owning.note_refused(request.key)
        found = response.responses[0].response_range
        found.header.CopyFrom(response.header)
        return found

    def _current(self) -> OwnedKeys | None:
        """Return the owned keys, if the session surely lives."""
        with self._shell.turn():
            owning, session = self._owning, self._session
        if owning is None or session is None:
            return None
        if session.lost is None and not owning.has_ended:
            return owning
        with self._shell.turn():
            owning.end()
            # Another thread may have noticed the loss earlier, and started a new session.
            if self._owning is owning:
                self._owning = self._session = None
        session.orphan()
        return None

    def _begin(self) -> OwnedKeys | None:
        with self._shell.turn():
            if self._is_beginning or self._owning is not None or clock() < self._begin_at:
                return None
            self._is_beginning = True
        try:
            session = begin_session(self._client, self._ttl)
        except KvorumError:
            # Until the next attempt, the client reads keys as usual.
            self._begin_at = clock() + BEGIN_SECONDS
            return None
        finally:
            self._is_beginning = False
        with self._shell.turn():
            owning = OwnedKeys(self._shell.core, self._shell.watching, self._names, session.id)
            if not self._is_closed:
                self._session, self._owning = session, owning
                return owning
        session.close()
        return None

    # Writing.

    def _transact(self, rpc: Rpc, message: bytes, seconds_max: float) -> bytes:
        request = pb.TxnRequest.FromString(message)
        owning = self._current()
        with self._shell.turn():
            found = None if owning is None else owning.transact(request)
        if found is not None:
            return found.SerializeToString()
        if rpc is rpcs.READ_TXN:
            return self._below.call(rpc, message, seconds_max)
        response = self._write(pb.RequestOp(request_txn=request), seconds_max)
        return response.response_txn.SerializeToString()

    def _write(self, step: pb.RequestOp, seconds_max: float) -> pb.ResponseOp:
        """Perform a step once no other client owns the keys that it writes."""
        written = written_ranges(step)
        until = clock() + seconds_max
        while True:
            owning = self._current()
            newest = dict.fromkeys(written, 0)
            for keys in written:
                if keys.end:
                    newest[keys] = self._clear(owning, keys, until)
            with self._shell.turn():
                held = {} if owning is None else owning.begin_write(written)
            read = [keys.key for keys in written if keys.key in held and not keys.end]
            read = read[:READ_KEYS_MAX]
            for keys in written:
                if keys.key in held and not keys.end:
                    newest[keys] = held[keys.key].revision
            request = make_guarded_txn(self._names, step, newest, read)
            response = self._commit(owning, held, request, until)
            if response.succeeded:
                reads = zip(read, response.responses[1:], strict=True)
                found = {key: each.response_range for key, each in reads}
                with self._shell.turn():
                    if owning is not None:
                        owning.note_written(held, found, response.header)
                return _with_header(response)
            with self._shell.turn():
                if owning is not None:
                    owning.end_write(held)
            for each in response.responses:
                self._revoke_all(owning, list(each.response_range.kvs), until)

    def _commit(
        self,
        owning: OwnedKeys | None,
        held: dict[bytes, OwnedKey],
        request: pb.TxnRequest,
        until: float,
    ) -> pb.TxnResponse:
        try:
            answer = self._below.call(rpcs.TXN, request.SerializeToString(), _seconds_to(until))
        except BaseException:
            with self._shell.turn():
                if owning is not None:
                    owning.note_doubt(held)
            raise
        return pb.TxnResponse.FromString(answer)

    def _clear(self, owning: OwnedKeys | None, keys: KeyRange, until: float) -> int:
        """Make others release a range; return the newest creation of an ownership key in it."""
        name = self._names.ownership_range(keys)
        request = pb.RangeRequest(key=name.key, range_end=name.end)
        answer = self._below.call(rpcs.RANGE, request.SerializeToString(), _seconds_to(until))
        found = list(pb.RangeResponse.FromString(answer).kvs)
        self._revoke_all(owning, found, until)
        return max((each.create_revision for each in found), default=0)

    def _revoke_all(self, owning: OwnedKeys | None, kvs: list[KeyValue], until: float) -> None:
        for kv in kvs:
            key = self._names.owned_key(kv.key)
            is_own = owning is not None and kv.lease == owning.lease and owning.owns(key)
            if not is_own:
                self._revoke(key, kv, until)

    def _revoke(self, key: bytes, kv: KeyValue, until: float) -> None:
        """Ask an owner to release its key, and wait until it has."""
        seconds = round(_seconds_to(until), 1)
        deadline = Deadline(self._client, f"{key!r} was not given up by its owner", seconds)
        operation: Operation[pb.TxnResponse] = Operation(
            rpcs.TXN, make_revoke_txn(kv).SerializeToString(), pb.TxnResponse.FromString
        )
        response = deadline.run(operation)
        if response.succeeded:
            deadline.wait_event(KeyRange(kv.key, b""), response.header.revision + 1, deletes=True)


def _seconds_to(moment: float) -> float:
    return max(moment - clock(), CALL_SECONDS_MIN)


def _with_header(response: pb.TxnResponse) -> pb.ResponseOp:
    """Return the first answer of a transaction with a header, like that of a single call."""
    first = response.responses[0]
    name = first.WhichOneof("response")
    assert name is not None
    getattr(first, name).header.CopyFrom(response.header)
    return first
